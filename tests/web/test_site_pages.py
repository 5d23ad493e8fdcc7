"""A site's folder as pages: approvals in plain words, the growing ledger, nothing about a table."""

import re

import msgspec
import pytest
from experiments.attacks import approval_collision
from helpers.browsing import act, open_page

from silvan.deploy.membership.certificates import Authority, pem
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.membership.site_log import note_error
from silvan.deploy.studies.explain import explain
from silvan.errors import InputError
from silvan.study.parse import parse_remote_study
from silvan.web.access import Access
from silvan.web.app import Pages
from silvan.web.site_pages import SiteFolderPages

HOSTILE = "<script>alert(1)</script> \u202ekcab"
CELL = "4711-secret"
"""What is in a cell of the table."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The certificate of a federation."""
    return pem(Authority.create(tmp_path_factory.mktemp("root") / "authority", "heart").certificate).decode()


@pytest.fixture
def member(tmp_path, root):
    made = approval_collision.make_member(tmp_path)
    own = msgspec.structs.replace(made.membership, root=root)
    (tmp_path / "member.json").write_bytes(msgspec.json.encode(own))
    (tmp_path / "rows.csv").write_text(f"age,label\n50,no\n{CELL},yes\n")
    (tmp_path / "site.toml").write_text(f'table = "{tmp_path}/rows.csv"\n[policy]\napprove = true\n')
    return JoinedSite(made.path)


@pytest.fixture
def page(member):
    return open_page(SiteFolderPages(member.path))


def study(name=HOSTILE, trees=3):
    escaped = "".join(f"\\u{ord(c):04x}" for c in name)
    top = f'name = "{escaped}"\nlabel = "label"\ntest = 0.25\n'
    return parse_remote_study(f'{top}[learner]\nkind = "HistogramForest"\nn_estimators = {trees}\n')


def shown(client, plan):
    """Returns what the page would approve."""
    text = client.get(f"/studies/{plan.digest}/explanation").text
    found = re.search(r'name="shown" value="([0-9a-f]+)"', text)
    return text, found and found[1]


def write_line(member, plan, **fields):
    given = {
        "site": "north",
        "study": plan.unique_name,
        "task": "forest",
        "round": 3,
        "kind": "GrowLevel",
        "outcome": "answered",
    }
    given |= {"what": "counts", "how": "seen by nobody", "bytes": 10, "question": "", "asked": "", "answer": ""}
    member.folder.ledger.write(**{**given, **fields})


def test_an_approval_covers_what_was_shown(member, page):
    client, access = page
    plan = study("heart")
    member.note_study(plan)
    assert "waits for your approval" in client.get("/").text
    text, token = shown(client, plan)
    for line in explain(member, plan).lines:
        assert line.replace("'", "&#39;") in text
    for wrong in ("", "0" * 64):
        assert "read it again" in act(client, access, "approve", study=plan.digest, shown=wrong)
    assert member.folder.approvals.find(plan.unique_name) is None
    said = act(client, access, "approve", study=plan.digest, shown=token)
    assert f"Approved: {len(explain(member, plan).leaves)} kinds" in said
    made = member.folder.approvals.find(plan.unique_name)
    assert made.messages == [kind.name for kind in explain(member, plan).leaves]
    assert "approved" in client.get(f"/studies/{plan.digest}").text
    assert "Withdrawn" in act(client, access, "withdraw", study=plan.digest)
    assert member.folder.approvals.find(plan.unique_name) is None


def test_a_policy_changed_meanwhile(member, page):
    """What was shown was under another policy: nothing is approved."""
    client, access = page
    plan = study("heart")
    member.note_study(plan)
    _, token = shown(client, plan)
    (member.path / "site.toml").write_text('table = "rows.csv"\n[policy]\napprove = true\nepsilon = 1.0\n')
    assert "read it again" in act(client, access, "approve", study=plan.digest, shown=token)
    text, _ = shown(client, plan)
    assert "would be answered without noise" in text


def test_declining(member, page):
    client, access = page
    plan = study("heart")
    member.note_study(plan)
    for why in ("", "   ", "x" * 151):
        assert "The reason must be text" in act(client, access, "decline", study=plan.digest, why=why)
    assert member.declined(plan) is None
    assert "Declined." in act(client, access, "decline", study=plan.digest, why="<b>not</b> before\u202e May")
    assert member.declined(plan) == "<b>not</b> before\N{REPLACEMENT CHARACTER} May"
    assert "&lt;b&gt;not&lt;/b&gt;" in client.get(f"/studies/{plan.digest}").text
    for digest in ("", plan.digest[:20], "../x"):
        assert "no such study" in act(client, access, "decline", study=digest, why="no")


def test_names_are_text(member, page):
    client, _ = page
    plan = study()
    member.note_study(plan)
    write_line(member, plan, task=HOSTILE, what=HOSTILE)
    for path in ("/", "/ledger", f"/studies/{plan.digest}", f"/studies/{plan.digest}/explanation"):
        text = client.get(path).text
        assert "<script>alert" not in text
        assert "\u202e" not in text
        assert path.endswith("explanation") or "&lt;script&gt;alert" in text


def test_the_ledger_as_it_grows(member, page):
    client, _ = page
    plan = study("heart")
    member.note_study(plan)
    assert "nothing has left" in client.get("/ledger").text
    pages = SiteFolderPages(member.path)
    before = pages.state()
    write_line(member, plan)
    write_line(member, plan, outcome="refused", how="the policy forbids it")
    assert pages.state() != before
    text = client.get("/ledger").text
    assert "round 3: counts, seen by nobody" in text
    assert "1 answered, 1 refused" in text
    path = member.path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"seen by nobody", b"seen by no one"))
    assert "cannot be trusted" in client.get("/ledger").text
    path.write_bytes(b"half a li\n")
    answer = client.get("/ledger")
    assert answer.status_code == 500
    assert "line 1 is damaged" in answer.text


def test_a_damaged_study(member, page):
    client, _ = page
    plan = study("heart")
    member.note_study(plan)
    (member.path / "asked" / f"{plan.digest}.toml").write_text("name = [")
    answer = client.get("/")
    assert answer.status_code == 500
    assert "not valid TOML" in answer.text


def test_nothing_about_a_table_is_shown(member, page, monkeypatch):
    """Not even an error of a cell that cannot be read, which is for the terminal."""

    def not_a_table(*_, **options):
        raise InputError(f"age: {CELL} is not a number")

    monkeypatch.setattr(JoinedSite, "certificate", None)
    monkeypatch.setattr("silvan.deploy.service.start_stop.ends_soon", lambda certificate: False)
    monkeypatch.setattr("silvan.deploy.service.start_stop.check_table", not_a_table)
    monkeypatch.setattr("silvan.deploy.studies.study_table.SiteTable", not_a_table)
    client, access = page
    plan = study("heart")
    member.note_study(plan)
    _, token = shown(client, plan)
    note_error(member.path, plan.unique_name, InputError(CELL))
    said = [act(client, access, "start"), act(client, access, "approve", study=plan.digest, shown=token)]
    said += [client.get(path).text for path in ("/", "/ledger", f"/studies/{plan.digest}")]
    for text in said:
        assert CELL not in text
    assert "`silvan site start` in a terminal shows it".replace("`", "<code>", 1).replace("`", "</code>") in said[0]
    assert "Its table cannot be read from here, and" in said[1]
    assert "An error occurred at " in said[2]
    assert client.get("/rows.csv").status_code == 404
    assert client.get("/site.key").status_code == 404
    assert client.get("/static/../site_pages.py").status_code == 404
    assert client.get("/static/%2e%2e/site_pages.py").status_code == 404


def test_results_without_the_coordinators_signature(member, page):
    client, _ = page
    plan = study("heart")
    member.note_study(plan)
    folder = member.results_folder(plan)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"format": "silvan run", "name": "forged"}')
    text = client.get(f"/studies/{plan.digest}").text
    assert "run the study again with the folder removed" in text
    assert "Open the report" not in text
    for what in ("report", "model"):
        answer = client.get(f"/studies/{plan.digest}/{what}")
        assert answer.status_code == 500
        assert "forged" not in answer.text


def test_a_folder_damaged_while_it_is_shown(member, page):
    """The page says so, and recovers when the folder is repaired."""
    client, _ = page
    pages = Pages(SiteFolderPages(member.path), Access(8100))
    path = member.path / "member.json"
    before = path.read_bytes()
    path.write_text("{")
    answer = client.get("/")
    assert answer.status_code == 500
    assert "damaged; restore it from a backup" in answer.text
    assert "damaged; restore it from a backup" in pages.moving("", pages.access.starter)
    path.write_bytes(before)
    assert client.get("/").status_code == 200
    assert "None yet" in pages.moving("", pages.access.starter)
