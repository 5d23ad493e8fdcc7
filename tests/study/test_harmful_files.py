"""Malicious texts and files: reading them ends in an error, at a cost in proportion to their length."""

import pytest

from silvan.deploy.membership.coordinator_folder import Invite
from silvan.errors import FormatError, InputError
from silvan.federation.keys import Key
from silvan.privacy.ledger import HEAD, LEDGER, read_lines, verify
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import RUN, Run
from silvan.study.toml_lines import key_lines

DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" + ".a" * 100_000 + " = 1", "too many names"),
        ("'a'" + ' . "a"' * 100_000 + " = 1", "too many names"),
        ("[" + "a." * 100_000 + "a]", "too many names"),
        ("x = " + "[" * 100_000 + "]" * 100_000, "too many levels deep"),
        ("x = " + "{a = " * 50_000 + "1" + "}" * 50_000, "too many levels deep"),
        ("x = " + "9" * 6_000, "too many digits"),
        ('x = "' + '\\"' * 100_000, "unterminated"),
        ("x = 1" + "\n" * (1 << 24), "characters are too many"),
    ],
)
def test_a_malicious_study(text, said):
    """A site reads a coordinator's text before its owner has approved anything."""
    with pytest.raises(InputError, match=said):
        parse_remote_study(text)


def test_lists_of_many_lines():
    """Each line used to be read once for every line before it."""
    text = 'name = "x"\nexclude = [\n' + '  "a column", # ]\n' * 20_000 + ']\nlabel = """\n]"""\ntest = 0.5\n'
    assert key_lines(text) == {("name",): 1, ("exclude",): 2, ("label",): 20_004, ("test",): 20_006}


def test_a_deeply_nested_record(tmp_path):
    (tmp_path / RUN).write_bytes(DEEP)
    with pytest.raises(FormatError, match="damaged, or not of a run"):
        Run(tmp_path).read()


def test_a_deeply_nested_invitation(tmp_path):
    (tmp_path / "invite").write_bytes(DEEP)
    with pytest.raises(FormatError, match="not an invitation"):
        Invite.read(tmp_path / "invite")


def test_a_deeply_nested_ledger(tmp_path):
    for name in (LEDGER, HEAD):
        (tmp_path / name).write_bytes(DEEP + b"\n")
    assert verify(tmp_path, Key.generate().public).faults == [f"{HEAD} is damaged", "line 1 is damaged"]
    with pytest.raises(FormatError, match="line 1 is damaged"):
        read_lines(tmp_path)
