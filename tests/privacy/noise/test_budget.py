"""A site's privacy budget: checked and charged before counting, and permanent, whatever is killed."""

import subprocess
import sys
import threading
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from experiments.attacks import epsilon_beyond_the_text
from helpers.asking import send, trouble
from helpers.limits import limited
from helpers.private_study import budgets, federate, schema, spent
from helpers.studies import table

import silvan as sv
from silvan.algorithms.private import table_counts
from silvan.algorithms.private.noisy_counts import NoisyCounts
from silvan.algorithms.private.table_counts import CountPeople, CountScores
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.journal import Journal
from silvan.federation.message import Blob, Envelope
from silvan.federation.site import Site
from silvan.federation.store import digest
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation.masked_site import Turn
from silvan.privacy.aggregation.ring import Hop
from silvan.privacy.gate import Clock, Gate
from silvan.privacy.noise.budget import Budget, StudyShare
from silvan.privacy.noise.noisy_request import read_epsilon
from silvan.privacy.terms import Terms
from silvan.study.parse import parse_remote_study

# -- the books


def test_charged_once_and_up_to_the_limit():
    budget = Budget(1.0)
    budget.charge("a", 0.6, "first")
    budget.charge("a", 0.6, "the same again")
    assert budget.spent == 0.6
    for refuse in (budget.check, lambda draw, cost: budget.charge(draw, cost, "")):
        with pytest.raises(RefusedError, match=r"used up: of epsilon 1, 0\.6 is spent, and this question costs 0\.5"):
            refuse("b", 0.5)
    budget.check("a", 0.6)
    assert budget.spent == 0.6
    assert budget.left == pytest.approx(0.4)
    budget.charge("c", 0.4, "last")
    assert [(charge.what, charge.epsilon) for charge in budget.charges()] == [("first", 0.6), ("last", 0.4)]
    assert budget.left == 0.0


def test_a_study_spends_no_more_than_its_text_says():
    budget = Budget(1.0)
    one, other = StudyShare("one", 0.5), StudyShare("other", 0.5)
    budget.charge("a", 0.3, "", one)
    for refuse in (budget.check, budget.admit, lambda draw, cost, study: budget.charge(draw, cost, "", study)):
        with pytest.raises(RefusedError, match=r"may cost epsilon 0\.5 by its text, of which 0\.3 is spent"):
            refuse("b", 0.3, one)
    budget.charge("a", 0.3, "", other)  # the same reply again costs nobody anything
    budget.charge("b", 0.5, "", other)
    with pytest.raises(RefusedError, match="used up"):
        budget.charge("c", 0.3, "")


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ("", 1.0),
        ("[evaluation]\nepsilon = 0.5\n", 1.5),
        ('noise = "site"\n', 1.0),
    ],
)
@pytest.mark.parametrize("quorum", [None, 2])
def test_what_a_study_may_cost_follows_from_its_text(more, most, quorum):
    """If a site is lost, the others sample their shares of the noise again."""
    head = "" if quorum is None else f"quorum = {quorum}\n"
    text = f"{head}test = 0.5\n[schema]\nlabel = {{ classes = [0, 1] }}\n[learner]\nepsilon = 1.0\n{more}"
    again = 1 if quorum is None or "site" in more else 2
    assert parse_remote_study(text).max_epsilon(["a", "b", "c"]) == most * again


def test_without_the_texts_limit_a_coordinator_spends_the_whole_budget():
    """tests/attacks tries the same with this check on."""
    assert epsilon_beyond_the_text.epsilon_spent(held=False)[0] > 9.0


def test_costs_add_up_exactly():
    """Ten times 0.1 fits, eleven times does not; and no amount is too small to count."""
    budget = Budget(1.0)
    for i in range(10):
        budget.charge(f"draw {i}", 0.1, "")
    with pytest.raises(RefusedError):
        budget.charge("one more", 0.1, "")
    small = Budget(None)
    small.charge("large", 100.0, "")
    for i in range(100):
        small.charge(f"draw {i}", 1e-15, "")
    assert Fraction(small.spent) > 100  # added one by one as floats, it would still be 100


def test_spending_without_a_limit_is_recorded():
    budget = Budget()
    budget.charge("a", 1000.0, "much")
    assert (budget.spent, budget.left) == (1000.0, None)


def test_the_first_stored_reply_stays():
    budget = Budget()
    assert budget.kept("a") is None
    budget.charge("a", 1.0, "")
    assert budget.kept("a") is None
    assert budget.keep("a", b"first") == b"first"
    assert budget.keep("a", b"second") == b"first"
    assert budget.kept("a") == b"first"
    with pytest.raises(RefusedError, match="not charged"):
        budget.keep("never charged", b"")


# -- on disk


def test_the_budget_outlives_the_process(tmp_path):
    file = tmp_path / "budget.sqlite"
    first = Budget(1.0, file, "here")
    first.charge("a", 0.7, "bins")
    first.keep("a", b"answer")
    again = Budget(1.0, file, "here")  # the first is still open, as after a kill
    assert (again.spent, again.kept("a")) == (0.7, b"answer")
    with pytest.raises(RefusedError):
        again.charge("b", 0.4, "")


KILLED = """
import os, sys
from silvan.privacy.noise.budget import Budget
from silvan.privacy.noise.noisy_request import read_epsilon
budget = Budget(1.0, sys.argv[1], "here")
budget.charge("a", 0.7, "cells")
if sys.argv[2] == "kept":
    budget.keep("a", b"answer")
os._exit(9)
"""


@pytest.mark.parametrize("when", ["charged", "kept"])
def test_killed_between_charge_and_answer(tmp_path, when):
    """Charges are permanent. Noise that had not left is sampled again at no cost; stored replies are sent again."""
    file = tmp_path / "budget.sqlite"
    assert subprocess.run([sys.executable, "-c", KILLED, str(file), when], check=False).returncode == 9
    budget = Budget(1.0, file, "here")
    assert budget.spent == 0.7
    assert budget.kept("a") == (b"answer" if when == "kept" else None)
    budget.charge("a", 0.7, "the same again")
    assert budget.spent == 0.7


def test_concurrent_charges_cannot_overdraw(tmp_path):
    file, refused = tmp_path / "budget.sqlite", []

    def study(number):
        budget = Budget(1.0, file, "here")
        for i in range(10):
            try:
                budget.charge(f"{number} {i}", 0.05, "")
            except RefusedError:
                refused.append(i)

    threads = [threading.Thread(target=study, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 20
    assert Budget(1.0, file).spent == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("here.sqlite", FormatError, "another site"),
        ("text", FormatError, "privacy budget"),
        ("journal", FormatError, "something else"),
        ("nowhere/file", InputError, "such a folder"),
    ],
)
def test_invalid_budget_files(tmp_path, name, error, said):
    Budget(1.0, tmp_path / "here.sqlite", "here").charge("a", 0.5, "")
    (tmp_path / "text").write_text("this is not a database, whatever its name says")
    Journal(tmp_path / "journal").close()
    with pytest.raises(error, match=said):
        Budget(1.0, tmp_path / name, "there").check("a", 0.1)


# -- at a site's gate


SITES = ["here", "there", "elsewhere"]


def people(epsilon=0.5, **fields):
    return CountPeople(epsilon=epsilon, **fields)


def gated(policy, **settings):
    return Site("here", table(n=80), n_jobs=1, outbox=Gate(policy), **settings)


def test_an_exhausted_budget_refuses_before_computing(monkeypatch):
    site = gated(sv.Policy(epsilon=1.0))
    assert send(site, people(0.9), over=SITES[:1]).kind == "NoisyCounts"
    monkeypatch.setattr(table_counts, "drawn_once", lambda *args: pytest.fail("it was computed"))
    assert "used up" in trouble(send(site, people(0.2), over=SITES[:1])).text
    assert site.outbox.budget.spent == 0.9


def test_a_retry_gets_the_same_reply_for_free():
    site = gated(sv.Policy(epsilon=1.0))
    answers = [wire.decode(send(site, people(), over=SITES[:1]).body, NoisyCounts).counts for _ in range(4)]
    assert all(np.array_equal(answers[0], answer) for answer in answers)
    assert site.outbox.budget.spent == 0.5
    # a site that was restarted, with its budget and its table
    assert np.array_equal(
        wire.decode(send(site.rebuilt(), people(), over=SITES[:1]).body, NoisyCounts).counts, answers[0]
    )
    assert site.outbox.budget.spent == 0.5


def test_changed_rows_get_new_noise():
    """After a change of the table or of the split, stored replies are not used."""
    gate = Gate(sv.Policy())
    kept = {"test": 0.2, "test_key": b"one", "schema": schema()}
    for i, settings in enumerate([{}, kept, {**kept, "split_seed": 1}, {**kept, "test_key": b"another"}]):
        send(Site("here", table(n=80), outbox=gate, **settings), people(), over=SITES[:1])
        assert gate.budget.spent == 0.5 * (i + 1)
    send(Site("here", table(n=81), outbox=gate), people(), over=SITES[:1])
    assert gate.budget.spent == 2.5


def test_a_failed_check_costs_nothing():
    site = gated(sv.Policy(epsilon=1.0))
    text = schema().to_json().encode()
    wrong = CountScores(epsilon=0.5, schema=Blob(""), model=Blob(""), edges=np.zeros((1, 3)))
    blobs = {"schema": text, "model": b"no model"}
    named = {name: Blob(digest(data)) for name, data in blobs.items()}
    answer = send(site, msgspec.structs.replace(wrong, **named), blobs=list(blobs.values()), over=SITES[:1])
    assert trouble(answer).code == "format"
    assert site.outbox.budget.spent == 0.0


def test_nonsense_is_refused():
    site = gated(sv.Policy())
    for wrong in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        assert trouble(send(site, people(wrong), over=SITES[:1])).code == "format"
    for sharers in (0, 2, -1):
        assert "shared by more sites" in trouble(send(site, people(sharers=sharers), over=SITES[:1])).text
    assert site.outbox.budget.spent == 0.0


def test_shares_of_noise_need_masked_sums():
    """With a budget, a site adds less than all the noise only in masked and ring sums."""
    site = gated(sv.Policy(epsilon=1.0))
    assert "hide their parts" in trouble(send(site, people(sharers=2), over=SITES[:3])).text
    assert send(gated(sv.Policy()), people(sharers=2), over=SITES[:3]).kind == "NoisyCounts"


def test_a_site_without_a_budget_refuses_noise():
    assert "no privacy budget" in trouble(send(Site("here", table(n=80)), people(), over=SITES[:1])).text


# -- in a federation


def test_exact_replies_must_be_allowed_beside_a_budget():
    with pytest.raises(RefusedError, match="Describe is answered without noise"):
        sv.federate_rows({"a": table(n=60), "b": table(n=60, seed=1)}, policy=sv.Policy(epsilon=1.0))
    fed = federate(policy=sv.Policy(epsilon=1.0), test=0.2)
    assert fed.rows == {}  # not even the number of rows
    with pytest.raises(RefusedError, match="CountGrid is answered without noise"):
        sv.HistogramForest(n_estimators=3).fit(fed)
    model = sv.HistogramForest(epsilon=1.0).fit(fed)
    with pytest.raises(RefusedError, match="EvaluateModels is answered without noise"):
        model.evaluate(fed)
    open_ = sv.Policy(epsilon=1.0, messages=("*", "EvaluateModels", "CountByScore"))
    fed = federate(policy=open_, test=0.2)
    assert "guarantee" in sv.HistogramForest(epsilon=1.0).fit(fed).evaluate(fed).columns


def test_a_budget_for_all_studies(tmp_path):
    settings = {"policy": sv.Policy(epsilon=1.0), "budgets": tmp_path / "budgets"}
    first = federate(**settings)
    forest = sv.HistogramForest(epsilon=0.7).fit(first).forest_
    assert spent(first) == pytest.approx(0.7)
    second = federate(**settings)  # as if all had been restarted
    assert sv.HistogramForest(epsilon=0.7).fit(second).forest_ == forest  # the same requests
    assert spent(second) == pytest.approx(0.7)
    with pytest.raises(RefusedError, match=r"site 'site 0' refused .*used up"):
        sv.HistogramForest(epsilon=0.7, random_state=1).fit(second)
    assert (spent(second) <= 1.0).all()
    assert len(list((tmp_path / "budgets").glob("site*.sqlite"))) == 3


def test_killed_while_replying(monkeypatch):
    """A site that dies after sampling noise, before its reply leaves, gives the same reply after a restart."""
    fed = federate(n_sites=1)
    budget = budgets(fed)["site 0"]
    keep = Budget.keep

    def dies(self, draw, answer):
        keep(self, draw, answer)
        raise KeyboardInterrupt

    monkeypatch.setattr(Budget, "keep", dies)
    with pytest.raises(KeyboardInterrupt):
        sv.HistogramForest(epsilon=1.0).fit(fed)
    assert [charge.epsilon for charge in budget.charges()] == pytest.approx([0.05])
    before = budget.spent
    monkeypatch.setattr(Budget, "keep", keep)
    model = sv.HistogramForest(epsilon=1.0).fit(fed)
    assert before < budget.spent == pytest.approx(1.0)
    assert len(budget.charges()) == len(model.privacy_.queries)


def test_a_policy_is_checked():
    for wrong in (0.0, -1.0, "much", True):
        with pytest.raises(InputError):
            sv.Policy(epsilon=wrong)
    assert sv.Policy(epsilon=2).epsilon == 2


# -- shares of noise


def shares(site, sites, request=None):
    return wire.decode(send(site, request or people(sharers=2), over=sites).body, NoisyCounts).counts


def test_a_share_of_noise_serves_one_set_of_sites():
    """The same share in sums over sets that differ by one site would reveal its part: a new share is charged."""
    budget, drawn = Budget(10.0), []
    for sites in (
        ["here", "there"],
        ["here", "elsewhere"],
        ["there", "here"],
    ):  # in studies that know nothing of another
        site = Site("here", table(n=80), n_jobs=1, outbox=Gate(sv.Policy(), budget, terms=Terms(tolerate=0)))
        drawn.append(shares(site, sites, people(1e-3, sharers=2))[0])
    assert drawn[0] == drawn[2] != drawn[1]  # noise of scale 1000: equal by chance once in thousands
    assert [charge.epsilon for charge in budget.charges()] == [1e-3, 1e-3]


def test_a_changed_set_of_sites_is_charged_again(tmp_path):
    frame, settings = table(n=900), {"schema": schema(), "budgets": tmp_path, "sums": "masked", "n_jobs": 1}
    tables = {f"site {i}": frame[i::4] for i in range(4)}
    first = sv.federate_rows({name: tables[name] for name in ("site 0", "site 1", "site 2")}, **settings)
    second = sv.federate_rows({name: tables[name] for name in ("site 0", "site 1", "site 3")}, **settings)
    learner = sv.HistogramForest(epsilon=1.0, n_rows=675)
    for fed in (first, second):
        learner.fit(fed)
    assert {name: budget.spent for name, budget in budgets(second).items()} == {
        "site 0": pytest.approx(2.0),
        "site 1": pytest.approx(2.0),
        "site 3": pytest.approx(1.0),
    }


def test_a_share_is_used_in_one_sum(tmp_path):
    """What was confirmed survives the site's memory of the sum."""
    file = tmp_path / "budget.sqlite"
    Budget(1.0, file).settle("draw", ["a", "b", "c"])
    Budget(1.0, file).settle("draw", ["c", "b", "a"])
    with pytest.raises(RefusedError, match="other sites already"):
        Budget(1.0, file).settle("draw", ["a", "b"])


def losing(lost, is_lost):
    """Makes a transport that loses a site's replies to some steps of a sum."""

    class Losing(InProcess):
        def deliver(self, messages, verb, timeout):
            for site, answer in super().deliver(messages, verb, timeout):
                step = wire.decode(messages[site], Envelope).step
                if site != lost or step is None or not is_lost(step.body):
                    yield site, answer

    return Losing


def test_a_masked_sum_of_shares_is_opened_once(tmp_path):
    """A coordinator is refused if it claims, in a new study, that it lost a site after all."""
    frame = table(n=900)
    tables = {f"site {i}": frame[i::4] for i in range(4)}
    settings = {"schema": schema(), "budgets": tmp_path, "sums": "masked", "n_jobs": 1, "quorum": 3}

    def total(lost):
        transport = losing(lost, lambda body: wire.decode(body, Turn).what != "key")
        fed = sv.federate_rows(tables, transport=transport, **settings)
        return fed.total(CountPeople(epsilon=0.5, sharers=2)).counts

    total(None)
    with pytest.raises(RefusedError, match="in a sum over other sites already"):
        total("site 3")


def test_a_smaller_ring_has_other_shares():
    """A part prepared for a ring that lost a site is not reused without it: its share is sampled anew."""
    frame = table(n=900)
    tables = {f"site {i}": frame[i::4] for i in range(4)}
    transport = losing("site 3", lambda body: wire.decode(body, Hop).ring)
    fed = sv.federate_rows(tables, schema=schema(), sums="ring", n_jobs=1, quorum=3, transport=transport)
    fed.total(CountPeople(epsilon=0.5, sharers=2))
    assert list(fed.lost) == ["site 3"]
    assert spent(fed).tolist() == [1.0, 1.0, 1.0, 0.5]


# -- response times


@pytest.mark.parametrize(("took", "step", "waited"), [(0.01, 0.0625, 0.0525), (0.3, 0.0625, 0.2), (0.3, 0.0, None)])
def test_the_time_of_a_count_is_hidden(took, step, waited):
    """A reply leaves after a power of two of time steps, because noise does not cover the running time."""
    times, waits = iter([0.0, took]), []
    policy = type("Stepping", (sv.Policy,), {"time_step": step})()
    site = gated(policy)
    site.outbox.clock = Clock(lambda: next(times), waits.append)
    assert send(site, people(), over=SITES[:1]).kind == "NoisyCounts"
    assert waits == pytest.approx([] if waited is None else [waited])


# -- how much of the noise must be there without some sites


@pytest.mark.parametrize(("tolerate", "sharers", "answered"), [(0, 4, 1), (1, 4, 0), (1, 3, 1), (2, 3, 0), (2, 2, 1)])
def test_the_study_sets_the_number_of_spare_shares(tolerate, sharers, answered):
    site = gated(sv.Policy())
    site.outbox.terms = Terms(tolerate=tolerate)
    answer = send(site, people(sharers=sharers), over=[*SITES, "far"])
    assert (answer.kind == "NoisyCounts") == bool(answered)
    if not answered:
        assert f"enough without the shares of {tolerate} of its sites" in trouble(answer).text
    assert site.outbox.budget.spent == 0.5 * answered


def test_no_sum_is_opened_that_lost_too_many_sites():
    """One spare share is for a curious site; with one more, a site may also be lost on the way."""
    frame = table(n=200)

    def total(sharers):
        tables = {f"site {i}": frame[i::4] for i in range(4)}
        transport = losing("site 3", lambda body: wire.decode(body, Turn).what != "key")
        fed = sv.federate_rows(tables, schema=schema(), sums="masked", n_jobs=1, quorum=3, transport=transport)
        return fed.total(CountPeople(epsilon=0.5, sharers=sharers)).counts

    with pytest.raises(RefusedError, match="of these 3 it is not"):
        total(3)
    assert total(2).shape == (1,)


def test_no_shares_where_more_sites_collude_than_the_sum_withstands():
    frame = table(n=200)
    tables = {f"site {i}": frame[i::6] for i in range(6)}
    for sums in ("ring", "masked"):
        fed = limited(sv.federate_rows(tables, schema=schema(), sums=sums, n_jobs=1), tolerate=2)
        with pytest.raises(RefusedError, match="so many would see its part"):
            fed.total(CountPeople(epsilon=0.5, sharers=2))
        fed.total(CountPeople(epsilon=0.5))


@pytest.mark.parametrize("epsilon", [float("nan"), float("inf"), 0.0, -1.0])
def test_an_epsilon_out_of_range_is_malformed(epsilon):
    """A site without a gate also cannot read the request, and does not fail."""
    for use in (lambda given: CountPeople(epsilon=given).noise(1), read_epsilon):
        with pytest.raises(FormatError, match="out of range"):
            use(epsilon)
