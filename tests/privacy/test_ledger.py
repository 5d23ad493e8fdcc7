"""The ledger: a line for everything that leaves, in plain words, that nobody can change unnoticed."""

import json
import os
import re
import shutil
import threading

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.asking import MARKS, SECRET, frame, schema_blob, send, site, trouble
from helpers.column_studies import federate as federate_by_columns
from helpers.column_studies import split, wide
from helpers.runs import silvan
from helpers.studies import Recorded, envelopes, federate, parts, table

import silvan as sv
from silvan.algorithms.horizontal.merged_forest import GrowTrees
from silvan.errors import DamagedError, FormatError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.describe import CountRows, Describe
from silvan.federation.handlers import HANDLERS
from silvan.federation.keys import Key
from silvan.federation.message import Envelope, shapes
from silvan.federation.store import digest
from silvan.privacy.gate import Gate
from silvan.privacy.ledger import HEAD, LEDGER, START, Ledger, Line, read_lines, verify
from silvan.privacy.policy import Policy
from silvan.privacy.site_folder import SiteFolder
from silvan.tree.fit import Settings

TABLES = parts(table(n=160), 4)
KEY = Key.generate()


def fields(number=1, **changes):
    words = {name: f"{name} {number}" for name in ("site", "study", "task", "kind", "what", "how", "question")}
    numbers = {"round": number, "bytes": 10 * number, "outcome": "answered", "asked": "a", "answer": "b"}
    return {**words, **numbers, **changes}


def written(folder, n=5, key=KEY):
    ledger = Ledger(folder, key)
    for i in range(n):
        ledger.write(**fields(i + 1))
    return ledger


def lines_of(fed, site="site 1"):
    return fed.site(site).outbox.ledger.lines()


# -- every passage is a line


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_every_reply_is_a_line(sums, cold):
    """With every engine and kind of sum, restarted or not: sent messages and lines agree."""
    fed = federate(TABLES, Recorded, sums=sums, cold=cold, test=0.25)
    model = sv.HistogramForest(2, max_depth=2).fit(fed)
    model.evaluate(fed)
    for name in fed.sites:
        sent = envelopes(fed, "sent", name)
        lines = lines_of(fed, name)
        assert [line.answer for line in lines] == [digest(envelope.body) for envelope in sent]
        assert [line.bytes for line in lines] == [len(envelope.body) for envelope in sent]
        assert {line.site for line in lines} == {name}


LEARNERS = {
    "histogram": (sv.HistogramForest(2, max_depth=2), {}),
    "adaptive": (sv.HistogramForest(2, max_depth=2, bins="adaptive"), {"messages": ["*", "AdaptiveLevel"]}),
    "merged": (sv.MergedForest(4), {}),
    "bofrf": (sv.BOFRF(2, max_depth=2), {}),
    "clustered": (sv.BOFRF(2, max_depth=2, clusters=2), {}),
    "boppid": (sv.BOPPID(2), {}),
    "adaboost.pl": (sv.AdaBoostPL(2), {}),
    "multboost": (sv.MultBoost(2), {}),
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.filterwarnings("ignore:no tree is above tau")
def test_every_kind_has_a_plain_description(name):
    learner, policy = LEARNERS[name]
    tables = parts(table(n=200).drop_nulls(), 3)
    fed = federate(tables, policy=sv.Policy(**policy), test=0.25)
    learner.fit(fed).evaluate(fed)
    for line in lines_of(fed, "site 0"):
        words = line.describe()
        assert len(words) > 40
        assert line.what[0].islower() or line.what[0].isdigit()
        assert not re.search(r"[{}<>\[\]]|None|array|dtype|0x|\bnp\b", words), words
        assert re.search(r"shown to the coordinator|summed with (2 other sites|1 other site)", words)
    assert any(line.task.startswith(type(learner).__name__) for line in lines_of(fed, "site 0"))


def test_columns_too():
    fed = federate_by_columns(split(wide(n=120), 2))
    sv.VerticalForest(2, max_depth=2).fit(fed)
    name = fed.sites[0]
    assert {line.kind for line in lines_of(fed, name)} >= {"Introduce", "FindValues", "SplitNodes"}
    assert all(line.what and line.how for line in lines_of(fed, name))


def test_the_example_of_the_documents():
    fed = federate(TABLES, sums="trusted")
    sv.HistogramForest(6, max_depth=3, max_features=2).fit(fed)
    said = [line.describe() for line in lines_of(fed) if line.kind == "GrowLevel"]
    assert re.fullmatch(
        r"round 5: counts of (about )?\d+ bins x 2 features x \d+ nodes, "
        r"summed with 3 other sites; whoever adds sees this part",
        said[-1],
    )
    hidden = federate(TABLES, sums="masked")
    sv.HistogramForest(6, max_depth=3, max_features=2).fit(hidden)
    said = [line.describe() for line in lines_of(hidden) if line.kind == "GrowLevel"]
    assert any(
        re.search(r"nodes: a site's masked part, .*, summed with 3 other sites, hidden \(masked\)", s) for s in said
    )


def test_refusals_and_failures_are_lines_too():
    here = site(outbox=Gate(Policy(messages=["CountRows", "GrowTrees"])))
    assert trouble(send(here, Describe())).code == "refused"
    assert trouble(send(here, CountRows(), verb="total")).code == "refused"
    broken = wire.encode(CountRows())[:-1] + b"\xc1"
    assert trouble(wire.decode(here.receive(wire.encode(Envelope("s", "q", "", "CountRows", broken)), "ask"), Envelope))
    assert trouble(wire.decode(here.receive(wire.encode(Envelope("s", "q2", "", "Unheard", b"")), "ask"), Envelope))
    lines = here.outbox.ledger.lines()
    assert [line.outcome for line in lines] == ["refused", "refused", "failed", "refused"]
    assert lines[0].how == "the site's policy does not allow Describe"
    assert "'Unheard'" in lines[3].what
    assert send(here, CountRows()).kind == "Size"
    assert here.outbox.ledger.lines()[-1].outcome == "answered"


def test_nothing_leaves_if_the_line_cannot_be_written(tmp_path, monkeypatch):
    fed = federate(TABLES, ledgers=tmp_path)

    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SiteError, match="the site failed: no space left on device"):
        sv.HistogramForest(2, max_depth=1).fit(fed)


def test_no_value_of_a_row_is_in_a_ledger():
    """For rows that can be searched for: numbers, rare names, and what an error would quote."""
    gate = Gate(Policy())
    fed = federate({"a": frame(), "b": frame(), "c": frame()}, test=0.25)
    for learner in (sv.HistogramForest(3, max_depth=3), sv.MergedForest(3), sv.MultBoost(2)):
        learner.fit(fed)
    learner.evaluate(fed)
    here = site(outbox=gate)
    named, schema = schema_blob()
    wrong = GrowTrees(schema=named, settings=Settings(), n_trees=0, feature_key=np.zeros(2, np.uint64))
    assert trouble(send(here, wrong, blobs=[schema])).code == "input"
    data = msgspec.json.encode([fed.site(name).outbox.ledger.lines() for name in fed.sites] + [gate.ledger.lines()])
    assert SECRET.encode() not in data
    assert not any(mark in data for mark in MARKS)


def test_names_from_a_coordinator_cannot_mislead():
    """Line breaks, control characters and very long texts in names chosen by the coordinator."""
    here = site(outbox=Gate(Policy()))
    send(here, CountRows(), study="x\n2 answered nothing\x1b[2J", task="y" * 10_000)
    [line] = here.outbox.ledger.lines()
    assert "\n" not in line.study
    assert "\x1b" not in line.study
    assert len(line.task) <= 300


def test_shapes_hold_no_values():
    for kind, _ in HANDLERS.values():
        assert issubclass(kind.reply, msgspec.Struct)
    reply = CountRows.reply(rows=86753)
    assert shapes(reply) == "rows"
    assert "86753" not in CountRows().describe(reply)


# -- a chain


def test_a_ledger_in_memory():
    ledger = written(None, key=None)
    lines = ledger.lines()
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]
    assert [line.before for line in lines] == [START, *(line.hash for line in lines[:-1])]
    assert ledger.position[1] == lines[-1].hash
    assert len(ledger) == 5


def test_a_ledger_on_disk(tmp_path):
    ledger = written(tmp_path)
    assert ledger.lines() == read_lines(tmp_path)
    again = Ledger(tmp_path, KEY)
    assert again.position == ledger.position == (5, ledger.position[1])
    again.write(**fields(6))
    found = verify(tmp_path, KEY.public)
    assert (found.lines, found.hash, found.faults) == (6, again.position[1], [])
    assert oct((tmp_path / LEDGER).stat().st_mode)[-3:] == "600"
    with pytest.raises(InputError, match="needs the site's key"):
        Ledger(tmp_path)


def test_any_changed_byte_is_detected(tmp_path):
    """Every byte of both files, by another bit or by its case."""
    written(tmp_path, 2)
    for name in (LEDGER, HEAD):
        data = (tmp_path / name).read_bytes()
        with (tmp_path / name).open("r+b", buffering=0) as file:  # cutting it to write it anew takes much longer
            for place in range(len(data)):
                other = data[place] ^ (1 if place % 2 else 0x20)
                file.seek(place)
                file.write(bytes([other]))
                assert verify(tmp_path, KEY.public).faults, (name, place, data[place : place + 1])
                file.seek(place)
                file.write(data[place : place + 1])
        assert (tmp_path / name).read_bytes() == data
    assert not verify(tmp_path, KEY.public).faults


def relined(folder, change):
    data = (folder / LEDGER).read_bytes().splitlines(keepends=True)
    (folder / LEDGER).write_bytes(b"".join(change(data)))


CHANGES = {
    "the first line is missing": lambda lines: lines[1:],
    "a line is missing": lambda lines: lines[:2] + lines[3:],
    "the last line is missing": lambda lines: lines[:-1],
    "several at the end are missing": lambda lines: lines[:1],
    "all are missing": lambda lines: [],
    "two are swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "a line twice": lambda lines: [lines[0], lines[0], *lines[1:]],
    "a line of spaces": lambda lines: [lines[0], b" \n", *lines[1:]],
    "an empty line": lambda lines: [lines[0], b"\n", *lines[1:]],
    "spaces in a line": lambda lines: [lines[0].replace(b":", b": ", 1), *lines[1:]],
    "half of the last line": lambda lines: [*lines[:-1], lines[-1][: len(lines[-1]) // 2]],
}


@pytest.mark.parametrize("how", CHANGES)
def test_missing_and_moved_lines_are_detected(tmp_path, how):
    written(tmp_path)
    relined(tmp_path, CHANGES[how])
    assert verify(tmp_path, KEY.public).faults
    with pytest.raises(FormatError, match=r"ledger.jsonl: .* --verify"):
        Ledger(tmp_path, KEY)


def test_a_ledger_rewritten_with_another_key(tmp_path):
    written(tmp_path, key=Key.generate())
    assert len(verify(tmp_path, KEY.public).faults) >= 5
    with pytest.raises(FormatError, match="another key"):
        Ledger(tmp_path, KEY)


def test_a_ledger_truncated_and_signed_with_its_own_key(tmp_path):
    """The owner of the key can do that; anyone who noted an earlier digest detects it."""
    head = written(tmp_path).position[1]
    assert not verify(tmp_path, KEY.public, head).faults
    (tmp_path / LEDGER).unlink()
    (tmp_path / HEAD).unlink()
    written(tmp_path, 4)
    assert not verify(tmp_path, KEY.public).faults
    assert verify(tmp_path, KEY.public, head).faults == ["the line whose digest was noted is not there"]


def test_without_its_head_completeness_is_unknown(tmp_path):
    written(tmp_path)
    (tmp_path / HEAD).unlink()
    assert "nobody can say" in verify(tmp_path, KEY.public).faults[0]


def test_a_site_stopped_during_a_write(tmp_path):
    """Between the two files, or in the middle of a line: nothing had left, and the ledger continues."""
    written(tmp_path, 3)
    head = (tmp_path / HEAD).read_bytes()
    written(tmp_path, 1)
    (tmp_path / HEAD).write_bytes(head)
    assert not verify(tmp_path, KEY.public).faults
    assert len(Ledger(tmp_path, KEY)) == 4
    written(tmp_path, 1)
    with (tmp_path / LEDGER).open("ab") as file:
        file.write(b'{"line":{"numb')
    found = verify(tmp_path, KEY.public)
    assert (found.lines, found.faults, found.torn) == (5, [], 14)
    written(tmp_path, 1)
    found = verify(tmp_path, KEY.public)
    assert (found.lines, found.faults, found.torn) == (6, [], 0)


def test_two_writers_of_one_ledger(tmp_path):
    """As jobs of two studies do: each sees the other's lines, even an unfinished one."""
    one, two = Ledger(tmp_path, KEY), Ledger(tmp_path, KEY)
    for ledger in (one, two, two, one):
        ledger.write(**fields())
    with (tmp_path / LEDGER).open("ab") as file:
        file.write(b'{"line":{"numb')
    assert two.write(**fields()).number == 5
    found = verify(tmp_path, KEY.public)
    assert (found.lines, found.hash, found.faults, found.torn, found.behind) == (5, two.position[1], [], 0, False)
    assert one.write(**fields()).before == two.position[1]


def test_many_concurrent_writers_of_one_ledger(tmp_path):
    ledgers = [Ledger(tmp_path, KEY) for _ in range(4)]

    def add(ledger):
        for i in range(10):
            with ledger.locked():  # between two lines of one writer there is nothing of another
                lines = len(ledger)
                assert ledger.write(**fields(i)).number == lines + 1

    threads = [threading.Thread(target=add, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = verify(tmp_path, KEY.public)
    assert (found.lines, found.faults) == (40, [])


def test_a_line_added_by_somebody_else(tmp_path):
    """Signed with another key, out of order, or gone: nothing is written after it."""
    one = written(tmp_path, 2)
    whole = (tmp_path / LEDGER).read_bytes()
    written(tmp_path / "other", 2)
    foreign = written(tmp_path / "foreign", 3, Key.generate())
    for data in ((tmp_path / "other" / LEDGER).read_bytes(), (foreign.folder / LEDGER).read_bytes(), b"{}\n"):
        (tmp_path / LEDGER).write_bytes(whole + data)
        with pytest.raises(DamagedError, match=r"somebody else has written|damaged"):
            one.write(**fields())
    (tmp_path / LEDGER).write_bytes(whole[:-10])
    with pytest.raises(DamagedError, match="missing at the end"):
        one.write(**fields())


def test_damaged_records_are_reported(tmp_path):
    """Except for a message that could not be read."""
    here = site(outbox=Gate(Policy(), ledger=written(tmp_path, 2)))
    relined(tmp_path, lambda lines: lines[:1])
    said = trouble(send(here, CountRows()))
    assert (said.code, said.text) == ("records", "a file of the site's own records is damaged")


def test_a_study_with_ledgers_on_disk(tmp_path):
    for _ in range(2):
        fed = federate(TABLES, ledgers=tmp_path, signed=True)
        sv.HistogramForest(2, max_depth=1).fit(fed)
    folder = SiteFolder(tmp_path / "site 1")
    found = verify(folder.path, folder.public())
    assert not found.faults
    assert found.lines == 2 * (3 + 1 + 3), "agreement, the key for fingerprints, training"
    assert fed.site("site 1").signer.roster.sites["site 1"] == folder.public()
    os.chmod(tmp_path / "site 1" / "site.key", 0o644)
    with pytest.raises(InputError, match="others on this machine can read"):
        federate(TABLES, ledgers=tmp_path)


# -- the command


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledgers")
    fed = federate(TABLES, ledgers=path, sums="ring", test=0.25, policy=sv.Policy(min_leaf=3))
    sv.HistogramForest(2, max_depth=1, min_samples_leaf=3).fit(fed).evaluate(fed)
    with pytest.raises(RefusedError):
        sv.HistogramForest(2, max_depth=1).fit(fed)
    return path


@pytest.fixture
def folder(ledgers, tmp_path):
    return shutil.copytree(ledgers / "site 1", tmp_path / "site 1")


def test_the_command_shows_lines(folder):
    shown = silvan("site", "ledger", folder).output
    words = " ".join(shown.split())
    assert "Study: rows of site 0, site 1, site 2, site 3; label label" in words
    assert "summed with 3 other sites, hidden (ring)" in words
    assert "HistogramForest (1)" in words
    assert "agreement" in words
    assert "refused: counts by bin" in words
    assert re.search(r"\d+ lines: \d+ answered, 1 refused; [\d.]+ [kM]B in all", words)
    last = " ".join(silvan("site", "ledger", folder / LEDGER, "--last", "2").output.split())
    assert "2 lines (the last 2 of" in last


def test_the_command_verifies(folder):
    good = silvan("site", "ledger", folder, "--verify")
    assert "The ledger is intact" in good.output
    head = re.search(r"Digest of the last line: (\w{64})", " ".join(good.output.split())).group(1)
    assert "intact" in silvan("site", "ledger", folder, "--noted", head).output
    data = (folder / LEDGER).read_bytes()
    (folder / LEDGER).write_bytes(data.replace(b"summed", b"summer", 1))
    bad = silvan("site", "ledger", folder, "--verify", ok=False)
    assert bad.exit_code == 1
    assert "cannot be trusted" in bad.output
    assert re.search(r"line \d+ was changed", bad.output)


def test_the_command_with_another_key(folder):
    bad = silvan("site", "ledger", folder, "--key", Key.generate().public.hex(), ok=False)
    assert bad.exit_code == 1
    assert "signed with another key" in bad.output
    assert silvan("site", "ledger", folder, "--key", "xyz", ok=False).exit_code == 1


def test_the_command_without_a_ledger(tmp_path):
    for path, text in ((tmp_path / "nothing", "no such folder"), (tmp_path, "there is no ledger")):
        answer = silvan("site", "ledger", path, ok=False)
        assert answer.exit_code == 1
        assert text in " ".join(answer.stderr.split())
    written(tmp_path, 1)
    assert "there is no public key" in " ".join(silvan("site", "ledger", tmp_path, "--verify", ok=False).stderr.split())


def test_the_command_escapes_control_characters(tmp_path):
    ledger = Ledger(tmp_path, KEY)
    ledger.write(**fields(what="\x1b[31m[red]x[/red]", study="[link=x]y[/link]"))
    shown = silvan("site", "ledger", tmp_path).output
    assert "\x1b[31m" not in shown
    assert "[red]x[/red]" in shown


def test_lines_are_json_that_others_can_read(tmp_path):
    written(tmp_path, 1)
    [line] = (tmp_path / LEDGER).read_text().splitlines()
    assert set(json.loads(line)) == {"line", "signature"}
    # left out where empty: the state of other files, who decided, and which lines were lost
    assert set(json.loads(line)["line"]) == set(Line.__struct_fields__) - {"kept", "charges", "spent", "by", "behind"}
    assert pl.read_ndjson(tmp_path / LEDGER).height == 1
