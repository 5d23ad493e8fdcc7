"""Noisy replies: on the site's own schema, charged before rows are read, and independent of unusual rows."""

import math

import msgspec
import numpy as np
import pytest
from helpers.asking import send, trouble
from helpers.private_study import FEATURES, KNOWN, LABELS, PLANS, one_more, requests, schema
from helpers.studies import TASKS, table
from hypothesis import example, given
from hypothesis import strategies as st

import silvan as sv
from silvan.algorithms.private.noisy_counts import MOST, whole_target
from silvan.algorithms.private.noisy_levels import NoisyLevel
from silvan.algorithms.private.noisy_rows import STEPS, DisguisedLevel, disguise
from silvan.algorithms.private.table_counts import CountColumns, CountPeople, CountTables, SumTargets, plan_counts
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Blob
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.federation.store import digest
from silvan.privacy.gate import Gate
from silvan.privacy.noise.noisy_request import Noisy

OVER = ["here"]


def asked(task):
    """Every noisy request of all three private forests."""
    every = {name: request for name, request, _ in requests(task, table(task, 30), 0.1)}
    return every | {"disguise": DisguisedLevel(epsilon=0.1, level=every["level"].level)}


def gated(source, owned=None, **settings):
    return Site("here", source, n_jobs=1, outbox=Gate(sv.Policy(epsilon=50.0)), schema=owned, **settings)


def ask(site, request, blobs=()):
    name = f"{request.kind()} {digest(msgspec.json.encode(repr(request)))}"
    return send(site, request, blobs=[*KNOWN.values(), *blobs], over=OVER, question=name)


def about(request, other):
    """The same request about another schema, and the blob of that schema."""
    data = other.to_json().encode()
    blob = Blob(digest(data))
    if hasattr(request, "level"):
        return msgspec.structs.replace(request, level=msgspec.structs.replace(request.level, schema=blob)), data
    return msgspec.structs.replace(request, schema=blob), data


# -- the site's schema

OTHERS = {
    "label": sv.Schema.of(FEATURES, sv.Label("label", bounds=(1000.0, 1151.0))),
    "classes": sv.Schema.of(FEATURES, sv.Label("label", ("no", "yes"))),
    "bounds": sv.Schema.of([sv.Feature("age", bounds=(0, 101)), *FEATURES[1:]], LABELS["number"]),
    "edges": sv.Schema.of([sv.Feature("age", edges=(40.0,)), *FEATURES[1:]], LABELS["number"]),
    "categories": sv.Schema.of(
        [*FEATURES[:2], sv.Feature("sex", "categorical", categories=("m", "f")), *FEATURES[3:]], LABELS["number"]
    ),
    "column": sv.Schema.of([sv.Feature("weight", bounds=(0, 100)), *FEATURES[1:]], LABELS["number"]),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_request_with_another_schema_than_the_owners_is_refused(what):
    site = gated("no such table", schema("number"))  # refused before any row is read
    for name, request in asked("number").items():
        if name != "people":
            request, data = about(request, OTHERS[what])
            assert "does not allow this schema" in trouble(ask(site, request, [data])).text, name
    assert site.outbox.budget.spent == 0.0


def test_federate_rows_gives_sites_the_schema():
    frame = table(n=60)
    fed = sv.federate_rows({"a": frame[::2], "b": frame[1::2]}, schema=schema(), n_jobs=1)
    other = fed.blob(OTHERS["classes"].to_json().encode().replace(b"100", b"99"))
    request = CountColumns(
        epsilon=0.1,
        schema=other,
        columns=np.array([0], np.int32),
        sizes=np.array([1]),
        cuts=np.array([40], np.float32),
    )
    with pytest.raises(sv.RefusedError, match="does not allow this schema"):
        fed.total(request)
    assert fed.site("a").rebuilt().schema == schema()


@pytest.mark.parametrize(
    "bounds",
    [(0.0, 5e-324), (1.0, math.nextafter(1.0, 2.0)), (1e9, 1e9 + 1e-4), (-1e308, 1e308), (-1e-320, 1e-320)],
)
def test_bounds_lost_to_rounding_are_refused(bounds):
    """About a label and about a column, where the owner gave no schema."""
    label = sv.Schema.of(FEATURES, sv.Label("label", bounds=bounds))
    column = sv.Schema.of([sv.Feature("age", bounds=bounds), *FEATURES[1:]], LABELS["number"])
    for name, request in asked("number").items():
        for other in (label, column):
            if name != "people":
                request, data = about(request, other)
                site = gated("no such table")
                assert "too close to each other, or too large" in trouble(ask(site, request, [data])).text, name
                assert site.outbox.budget.spent == 0.0


def test_only_the_sites_label_may_be_requested():
    site = gated("no such table")
    other = sv.Schema.of([sv.Feature("label", bounds=(0, 1)), *FEATURES[1:]], sv.Label("age", bounds=(0.0, 100.0)))
    for name, request in asked("number").items():
        if name != "people":
            request, data = about(request, other)
            assert "another label" in trouble(ask(site, request, [data])).text, name
    assert site.outbox.budget.spent == 0.0


# -- the effect of one row

ANY = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([5e-324, -5e-324, 1e308, -1e308, 0.0]))


@given(st.floats(-1e300, 1e300), st.floats(1e-320, 1e300), st.lists(ANY, min_size=1, max_size=5))
@example(1.0, 2.0**-52, [1.0, 1.0 + 2.0**-52])  # neighbouring floats: their midpoint is one of them
@example(0.0, 5e-324, [0.0, 5e-324])  # half of this width is zero
def test_no_row_changes_more_than_the_noise_covers(low, width, values):
    """For any bounds and numbers: of targets, and of randomised cells."""
    if not low < low + width < math.inf:
        return
    bounds, y = (low, low + width), np.array(values)
    assert np.abs(whole_target(y, sv.Schema.of(["x"], sv.Label(bounds=bounds)))).max() <= MOST
    known = sv.Schema.of([sv.Feature("x", bounds=bounds)], sv.Label(bounds=bounds))
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        seen = []
        patch.setattr("silvan.privacy.noise.laplace.Noise.add", lambda self, steps: seen.append(steps) or steps)
        disguise(Part(y[:, None].astype(np.float32), y, np.zeros(len(y), np.uint64)), known, 1.0)
        assert all(0 <= steps.min() <= steps.max() <= STEPS for steps in seen)


# -- replies do not depend on unusual rows

ODD = {
    "binary": [{"label": "neither"}, {"label": None}, {"ward": "nowhere", "sex": "x"}, {"age": math.inf}, {"dose": -9}],
    "several": [{"label": "neither"}, {"label": None}],
    "number": [{"label": None}, {"label": math.nan}, {"label": math.inf}, {"label": 1e300}, {"noise": -math.inf}],
}


@pytest.mark.parametrize("task", TASKS)
def test_rows_outside_the_schema_cause_no_error(task):
    """Unknown, missing and infinite values: every request gets a reply, and none changes by more than one row may."""
    frame = table(task, 40)
    before = {name: exact for name, _, exact in requests(task, frame, 1.0)}
    for odd in ODD[task]:
        source = one_more(frame, **{"label": frame["label"][0], **odd})
        for name, request, exact in requests(task, source, 1.0):
            noises = request.noises(schema(task))
            change = np.abs(exact - before[name]).reshape(-1, len(noises)).sum(axis=0)
            assert (change <= [noise.sensitivity for noise in noises]).all(), (name, odd)
        site = gated(source, schema(task))
        for name, request in asked(task).items():
            assert ask(site, request).kind in ("NoisyCounts", "Histograms"), (name, odd)


def test_the_number_of_randomised_rows_is_exact():
    """The row count is public, so no row is left out: a label outside the classes counts as the first class."""
    X = np.zeros((4, 5), np.float32)
    worn = disguise(Part(X, np.array([-1, -1, 1, 1]), np.zeros(4, np.uint64)), schema(), 900.0)
    assert worn.y.tolist() == [0, 0, 1, 1]


def test_randomised_rows_in_limited_memory():
    frame = one_more(table(n=40), label="neither")
    site = gated(frame, schema(), memory=1 << 20)
    for name, request in asked("binary").items():
        assert ask(site, request).kind in ("NoisyCounts", "Histograms"), name


MALFORMED = {
    "tables": {"missing": np.array([9, 0, 0, 3, 0])},
    "columns": {"sizes": np.array([2, 1, 2])},
    "scores": {"edges": np.zeros((2, 3))},
    "slopes": {"reach": 0.0},
}


@pytest.mark.parametrize("task", TASKS)
def test_malformed_requests_are_refused_before_reading_rows_at_no_cost(task):
    tables = table(task, 30), one_more(table(task, 30), label=None), "no such table"
    for name, request in asked(task).items():
        if name in MALFORMED:
            wrong = msgspec.structs.replace(request, **MALFORMED[name])
        elif hasattr(request, "level"):
            level = msgspec.structs.replace(request.level, nodes=np.array([2, 3, 0], np.int32))
            wrong = msgspec.structs.replace(request, level=level)
        else:
            continue
        sites = [gated(source) for source in tables]
        assert {trouble(ask(site, wrong)).code for site in sites} == {"format"}, name
        assert [site.outbox.budget.spent for site in sites] == [0.0] * 3, name


@pytest.mark.parametrize("task", TASKS)
def test_failures_while_counting_give_one_error_and_stay_charged(task):
    """Whatever is wrong with the table; a repeated request gets the same reply and is charged once."""
    lacking = table(task, 30).drop("label")
    told = set()
    for source in ("no such table", lacking, b"no table at all"):
        for name, request in asked(task).items():
            if name == "people" and source is lacking:
                continue  # counted without reading columns
            site = gated(source)
            for _ in range(2):
                answer = trouble(ask(site, request))
                told.add((answer.code, answer.text))
                assert site.outbox.budget.spent == pytest.approx(0.1), name
    assert told == {("internal", "the site failed")}


def test_charging_precedes_counting(monkeypatch):
    site, every = gated(table(n=30), schema()), asked("binary")
    spent = []
    monkeypatch.setattr(Site, "part", lambda *args, **more: spent.append(site.outbox.budget.spent) or 1 / 0)
    for name, request in every.items():
        if name != "people":
            ask(site, request)
    assert np.allclose(spent, 0.1 * np.arange(1, len(every)))


def test_plans_read_no_rows():
    """The check of a request runs at a site without a table."""
    for task in TASKS:
        site = Site("here", "no such table", n_jobs=1)
        site.blob = KNOWN.get
        for name, request in asked(task).items():
            if name not in ("people", "disguise"):
                PLANS.get(name, plan_counts)(site, request, schema(task))


def test_every_noisy_request_declares_its_noise():
    kinds = [kind for kind, _ in HANDLERS.values() if issubclass(kind, Noisy)]
    assert {CountPeople, CountTables, SumTargets, NoisyLevel, DisguisedLevel} <= set(kinds)
    assert [kind for kind in kinds if kind.noises is Noisy.noises] == [DisguisedLevel]  # whose rows have it
