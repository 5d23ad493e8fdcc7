"""Rules that a site enforces on a coordinator: each as an attack that succeeds without the rule and fails with it."""

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.limits import limited
from helpers.sneaky_site import SCHEMA, SITES, TREES, bait, score_trees, tables
from helpers.studies import Recorded, envelopes, federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.candidates import SentModel
from silvan.algorithms.evaluation.evaluate import EvaluateModels
from silvan.algorithms.horizontal import histogram_forest
from silvan.algorithms.horizontal.histogram_forest import GrowLevel
from silvan.algorithms.shared_bins import CountFine, CountGrid, CutPoints
from silvan.data.schema import MAX_BINS
from silvan.errors import RefusedError, SilvanError, SiteError
from silvan.federation import wire
from silvan.federation.describe import CountCategories
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope, Trouble
from silvan.federation.site import Outbox
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import join_forests
from silvan.privacy.terms import Terms
from silvan.tree.objectives import Measure

TABLES = parts(table(), 4)


def lenient(fed):
    """Removes the rules, to show what the attack gains without them."""
    for name in fed.sites:
        fed.site(name).outbox = Outbox()
    return fed


def refusals(fed, site):
    return [line.how for line in fed.site(site).outbox.ledger.lines() if line.outcome == "refused"]


# -- a sum in the clear


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_no_part_of_a_sum_leaves_in_the_clear(sums):
    """Every summed request, of every learner, with the other verb, or without masks."""
    fed = federate(TABLES, Recorded, sums=sums, test=0.25)
    for learner in (sv.HistogramForest(2, max_depth=2), sv.BOFRF(2, max_depth=2), sv.MultBoost(2)):
        learner.fit(fed)
    learner.evaluate(fed)
    asked = envelopes(fed, "received", "site 1")
    asked = [envelope for envelope in asked if HANDLERS[envelope.kind][0].verb == "total"]
    assert {e.kind for e in asked} >= {
        "CountCategories",
        "CountGrid",
        "CountFine",
        "GrowLevel",
        "ScoreTrees",
        "CountByScore",
    }
    member = fed.site("site 1")
    for envelope in asked:
        bare = msgspec.structs.replace(envelope, step=None)
        tries = [(envelope, "ask"), (bare, "ask")] + ([] if sums == "trusted" else [(bare, "total")])
        for changed, verb in tries:
            answer = wire.decode(member.receive(wire.encode(changed), verb), Envelope)
            assert answer.kind == "Trouble"
            assert wire.decode(answer.body, Trouble).code == "refused"


# -- a tree that isolates one person

PATIENT = {"age": 71.5, "dose": 3.25}


def wards(n=60):
    """Sites of which the second has the one patient whose age and dose are known, and whose label is not."""
    rng = np.random.default_rng(0)
    frames = {}
    for site in SITES:
        frame = {"age": rng.integers(60, 80, n) + 0.25, "dose": rng.integers(1, 6, n) + 0.5}
        frames[site] = pl.DataFrame({**frame, "label": rng.choice(["no", "yes"], n)})
    patient = pl.DataFrame([{**PATIENT, "label": "yes"}])
    return frames | {SITES[1]: pl.concat([frames[SITES[1]], patient])}


def invented(fed, splits, nodes, features=((0, 1),), **changes):
    """A request about nodes of a tree that nobody grew: splits as (node, feature, bin), a list for each round."""
    cuts = np.array([71.375, 71.625, 3.125, 3.375], np.float32)
    points = CutPoints(np.array([2, 2]), cuts, max_bins=changes.get("max_bins", MAX_BINS))
    made = [split for level in splits for split in level]
    columns = [np.array(column, np.int32) for column in (zip(*made, strict=True) if made else ([], [], []))]
    question = GrowLevel(
        schema=fed.blob(SCHEMA.to_json().encode()),
        bins=fed.blob(wire.encode(points)),
        measure=Measure("gini", 2, 0, (1, 1), 200),
        n_trees=1,
        bootstrap=False,
        min_leaf=2,
        nodes=np.array(nodes, np.int32),
        features=np.array(features * len(nodes), np.int32).reshape(len(nodes), -1),
        round_sizes=np.array([len(level) for level in splits], np.int64),
        split_node=columns[0],
        split_feature=columns[1],
        split_bin=columns[2],
        split_missing_left=np.zeros(len(made), bool),
        split_words=np.zeros((len(made), SET_WORDS), np.uint64),
    )
    return msgspec.structs.replace(question, **changes)


# age above 71.375, then not above 71.625, then dose above 3.125, then not above 3.375
BOX = [[(0, 0, 1)], [(2, 0, 2)], [(3, 1, 1)], [(6, 1, 2)]]
PERSON = 7


def test_a_level_has_at_most_the_declared_bins():
    """Otherwise a policy would check the wrong number, and the site's rows would be counted in finer bins."""
    fed = federate(wards(), schema=SCHEMA, policy=sv.Policy(max_bins=2))
    for said, error in ((3, "policy allows 2 bins"), (2, "could not read what it was sent")):
        with pytest.raises(SilvanError, match=error):
            fed.total(invented(fed, [], [0], max_bins=said))
    fed = federate(wards(), schema=SCHEMA, policy=sv.Policy(max_bins=3))
    fed.total(invented(fed, [], [0], max_bins=3))


def test_without_the_rule_an_invented_tree_reveals_a_patients_class():
    fed = lenient(federate(wards(), schema=SCHEMA))
    total = fed.total(invented(fed, BOX, [PERSON]))
    of_age = total.sums[: len(total.sums) // 2]
    assert of_age.sum(axis=0).tolist() == [0, 1]  # one person, "yes"


ATTACKS = {
    "the whole path at once": (0, BOX, {}),
    "a level left out": (1, BOX[:2], {}),
    "another path than before": (2, [[(0, 0, 2)], *BOX[1:2]], {}),
    "a node that was not asked about": (1, [[(0, 0, 1), (1, 0, 1)]], {}),
    "a node split twice": (2, [*BOX[:1], [(2, 0, 2), (2, 1, 1)]], {}),
    "a feature that was not asked about": (3, [*BOX[:2], [(3, 0, 1)]], {}),
    "back to a level before, by another way": (3, [[(0, 1, 1)]], {}),
    "other trees on the way": (1, BOX[:1], {"n_trees": 2}),
    "all rows, then some": (1, BOX[:1], {"bootstrap": True}),
    "another measure": (1, BOX[:1], {"measure": Measure("gini", 2, 0, (1, 1), 2)}),
}


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "restarted"])
@pytest.mark.parametrize("how", ATTACKS)
def test_an_invented_tree_is_refused(how, cold):
    """After some honest requests, down the path to the patient; a restarted site remembers them."""
    fed = federate(wards(), schema=SCHEMA, cold=cold)
    honest, splits, changes = ATTACKS[how]
    asked_at = {3: ((1,),)}  # the third level uses dose alone
    for depth in range(honest):
        fed.total(invented(fed, BOX[:depth], [[0], [1, 2], [3, 4]][depth], asked_at.get(depth + 1, ((0, 1),))))
    nodes = {1: [2], 2: [3]}.get(len(splits), [PERSON])
    with pytest.raises(RefusedError, match=r"refused GrowLevel: the (question|site)"):
        fed.total(invented(fed, splits, nodes, **changes))
    assert refusals(fed, "north")


def test_another_set_of_nodes_at_the_same_level():
    """A level may come in several messages, each about other nodes; one about the same nodes is another form."""
    fed = federate(wards(), schema=SCHEMA)
    fed.total(invented(fed, [], [0]))
    fed.total(invented(fed, BOX[:1], [1]))
    fed.total(invented(fed, BOX[:1], [2]))
    with pytest.raises(RefusedError, match="in another form"):
        fed.total(invented(fed, BOX[:1], [2], ((0,),)))
    with pytest.raises(RefusedError, match="in another form"):
        fed.total(invented(fed, BOX[:1], [0]))


def test_repeated_requests_of_an_honest_forest_get_equal_replies():
    """A coordinator that lost its journal requests everything again; the site has moved on and replies as before."""
    fed = federate(TABLES, Recorded)
    sv.HistogramForest(3, max_depth=4, max_features=1).fit(fed)
    for site in ("site 0", "site 3"):
        record = [(way, data) for name, way, data in fed.transport.record if name == site]
        asked, replies = ([d for w, d in record if w == way] for way in ("received", "sent"))
        assert [fed.site(site).receive(d, HANDLERS[wire.decode(d, Envelope).kind][0].verb) for d in asked] == replies


def test_the_remaining_attack():
    """Level by level, with each split plausible, the path can still be walked: the ledger shows it."""
    fed = federate(wards(), schema=SCHEMA)
    for depth, nodes in enumerate([[0], [1, 2], [3, 4], [5, 6], [7, 8]]):
        total = fed.total(invented(fed, BOX[:depth], nodes))
    assert total.sums[:4].sum(axis=0).tolist() == [0, 1]
    said = [line.describe() for line in fed.site("north").outbox.ledger.lines() if line.kind == "GrowLevel"]
    assert len(said) == 5
    assert "x 2 nodes, summed with 3 other sites" in said[-1]


@pytest.mark.parametrize("bins", ["shared", "adaptive"])
@pytest.mark.parametrize("max_features", [1, None])
def test_honest_forests_pass(bins, max_features, monkeypatch):
    """Nodes that stay open because their sampled columns offer no split, levels in several messages, short trees."""
    constant = table(n=160).drop_nulls().with_columns(same=pl.lit(1.0), alike=pl.lit(2.0))
    policy = sv.Policy(messages=["*", "AdaptiveLevel"])
    fed = federate(parts(constant, 3), policy=policy)
    monkeypatch.setattr(histogram_forest, "_LEVEL_BYTES", 500)
    forest = sv.HistogramForest(4, max_depth=6, max_features=max_features, bins=bins).fit(fed).forest_
    assert forest.depth.max() > 2


def test_leaves_below_the_policys_minimum():
    with pytest.raises(RefusedError, match=r"refused GrowLevel: .* leaves of at least 5 rows"):
        sv.HistogramForest(2, min_samples_leaf=4).fit(federate(TABLES, policy=sv.Policy(min_leaf=5)))


# -- one quantity over two sets of sites


def counts_of(fed, over=None):
    schema = fed.blob(fed.schema.to_json().encode())
    return fed.total(CountGrid(schema=schema), over=over).label


def test_without_the_rule_two_sums_reveal_a_sites_part():
    fed = lenient(federate(TABLES))
    part = counts_of(fed) - counts_of(fed, ["site 0", "site 1", "site 2"])
    own = TABLES["site 3"]["label"].value_counts()
    assert part.tolist() == [own.filter(pl.col("label") == c)["count"].item() for c in ("no", "yes")]


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "restarted"])
@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_a_sum_over_other_sites_is_refused(sums, cold):
    fed = federate(TABLES, sums=sums, cold=cold)
    whole = counts_of(fed)
    for task in ("", "a model", "another"):  # not in any task of the study
        with (
            pytest.raises(RefusedError, match="the site sums one thing over one set of sites"),
            fed.working_on(task),
        ):
            counts_of(fed, ["site 0", "site 1", "site 2"])
    assert counts_of(fed).tolist() == whole.tolist()


def test_a_plain_sum_cannot_lose_a_site_midway():
    """A coordinator that declares a second sum a wave of the first: only sums in steps have waves."""
    fed = federate(TABLES, Recorded)
    counts_of(fed)
    [asked] = [
        envelope
        for envelope in (
            wire.decode(d, Envelope) for s, w, d in fed.transport.record if (s, w) == ("site 0", "received")
        )
        if envelope.kind == "CountGrid"
    ]
    for whole in ("", asked.question):
        again = msgspec.structs.replace(asked, question="another", over=asked.over[:3], whole=whole)
        answer = wire.decode(fed.site("site 0").receive(wire.encode(again), "total"), Envelope)
        assert "one set of sites" in wire.decode(answer.body, Trouble).text


def test_within_a_task_sites_are_only_removed():
    """Not the same request, but nearly."""
    fed = federate(TABLES)
    with fed.working_on("a model"):
        counts_of(fed, ["site 0", "site 1", "site 2"])
        with pytest.raises(RefusedError, match="only become fewer"):
            other_counts(fed, fed.sites)
        other_counts(fed, ["site 0", "site 2"])
        with pytest.raises(RefusedError, match="in another form"):
            other_counts(fed, ["site 0", "site 2"], max_bins=32)


def loses(site, after):
    """A federation in which a site fails."""
    seen = [0]

    class Losing(Recorded):
        def deliver(self, messages, verb, timeout):
            for name, data in super().deliver(messages, verb, timeout):
                seen[0] += name == site
                if name != site or seen[0] <= after:
                    yield name, data

    return Losing


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_a_site_that_is_lost_may_stay_out(sums):
    """A study continues without it, in new requests; what was summed with it is not summed without it."""
    agreed, waves = 3, {"trusted": 1, "ring": 3, "masked": 3}[sums]
    fed = federate(TABLES, loses("site 2", agreed + 4 * waves), sums=sums, quorum=3)
    model = sv.HistogramForest(3, max_depth=4).fit(fed)
    assert list(fed.lost) == ["site 2"]
    assert model.forest_.depth.max() > 2
    with pytest.raises(RefusedError, match="the site sums one thing over one set of sites"):
        sv.HistogramForest(3, max_depth=4, random_state=1).fit(fed)


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_a_policy_may_forbid_losses(sums):
    agreed, waves = 3, {"trusted": 1, "ring": 3, "masked": 3}[sums]
    policy = sv.Policy(losses=0)
    fed = federate(TABLES, loses("site 2", agreed + 4 * waves), sums=sums, quorum=3, policy=policy)
    with pytest.raises(RefusedError, match="lets a study lose 0 sites"):
        sv.HistogramForest(3, max_depth=4).fit(fed)


def other_counts(fed, over, max_bins=64):
    """Nearly the same as ``counts_of``: of no cells."""
    none, schema = np.zeros(0, np.int32), fed.blob(fed.schema.to_json().encode())
    fed.total(CountFine(schema=schema, max_bins=max_bins, columns=none, cells=none, shifts=none), over=over)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "restarted"])
@pytest.mark.parametrize("sums", ["trusted", "masked"])
def test_losses_are_counted_per_study(sums, cold):
    """A new task begins with the sites of the study, not with those of its first sum; nor does the first task."""
    fed = federate(TABLES, sums=sums, cold=cold, policy=sv.Policy(losses=0))
    for task in ("a model", "another"):
        with fed.working_on(task), pytest.raises(RefusedError, match="lets a study lose 0 sites"):
            other_counts(fed, ["site 0", "site 1", "site 2"])
        counts_of(fed)


def test_a_lost_site_does_not_return_in_another_task():
    fed = federate(TABLES)
    with fed.working_on("a model"):
        other_counts(fed, ["site 0", "site 1", "site 2"])
    with fed.working_on("another"), pytest.raises(RefusedError, match="only become fewer"):
        counts_of(fed)


def test_a_study_has_the_sites_of_the_roster():
    """Without other terms a site with signed messages knows the participants."""
    fed = federate(TABLES, signed=True, policy=sv.Policy(losses=1))
    for site in fed.local_sites.values():
        site.outbox.terms = Terms()
    with fed.working_on("a model"), pytest.raises(RefusedError, match="lets a study lose 1 site"):
        counts_of(fed, ["site 0", "site 1"])


def test_clusters_contain_only_sites_of_the_study():
    """The coordinator chooses a stranger's part of a sum, so the rest of the sum would be the site's own."""
    fed = federate(tables("north"), schema=SCHEMA)
    for site in fed.local_sites.values():
        site.outbox.terms = Terms(sites=SITES[:2])
    with fed.working_on("BOFRF"), pytest.raises(RefusedError, match="sites that are not in the study"):
        scored(fed)


def test_clusters_begin_with_their_own_sites():
    """They are summed separately, and all sites are evaluated afterwards; also where no site may be lost."""
    fed = federate(TABLES, test=0.25, policy=sv.Policy(losses=0))
    model = sv.BOFRF(2, max_depth=2, clusters=2).fit(fed)
    assert len(model.evaluate(fed))


def test_a_column_is_named_once():
    fed = federate(TABLES)
    with fed.working_on("a model"), pytest.raises(SiteError, match="could not read what it was sent"):
        fed.total(CountCategories(names=["ward", "ward"]))


SETS = {
    "nobody": [],
    "without the site": ["site 0", "site 2", "site 3"],
    "the site twice": ["site 1", "site 1", "site 2"],
    "another twice": ["site 1", "site 2", "site 2"],
}


@pytest.mark.parametrize("who", SETS)
def test_sums_that_do_not_name_every_site_once(who):
    """The site has not replied to this kind yet, so no other rule applies."""
    fed = federate(TABLES, Recorded)
    counts_of(fed)
    data = [d for site, way, d in fed.transport.record if (site, way) == ("site 1", "received")][-1]
    changed = msgspec.structs.replace(wire.decode(data, Envelope), over=SETS[who])
    fresh = federate(TABLES).site("site 1")
    for over, kind in ((SETS[who], "Trouble"), (fed.sites, "GridCounts")):
        changed = msgspec.structs.replace(changed, over=over)
        assert wire.decode(fresh.receive(wire.encode(changed), "total"), Envelope).kind == kind


# -- one set of trees


def scored(fed, trees=TREES, validation=0.0):
    return fed.total(score_trees(fed, trees, validation))


def test_without_the_rule_shares_reveal_validation_rows():
    fed = lenient(federate(tables("north"), schema=SCHEMA))
    whole, some = scored(fed), scored(fed, validation=0.2)
    held = whole.counts - some.counts
    assert 0 < held.sum() < whole.counts.sum()


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "restarted"])
def test_trees_are_scored_once_per_task(cold):
    """Other shares of rows, changed and added trees are all refused; an identical request gets a reply."""
    fed = federate(tables("north"), schema=SCHEMA, cold=cold)
    with fed.working_on("BOFRF"):
        first = scored(fed)
        for trees, share in ((TREES, 0.2), (bait("no"), 0.0), (join_forests([TREES, bait("no")]), 0.0)):
            with pytest.raises(RefusedError, match=r"refused ScoreTrees: .* in another form"):
                scored(fed, trees, share)
        assert np.array_equal(scored(fed).counts, first.counts)


def test_a_study_has_no_more_tasks_than_its_text_needs():
    fed = limited(federate(TABLES, test=0.25), tasks=2)
    model = sv.HistogramForest(2, max_depth=2).fit(fed)
    model.evaluate(fed)
    with pytest.raises(RefusedError, match="takes part in 2 tasks of this study"):
        sv.HistogramForest(2, max_depth=2).fit(fed)


@pytest.mark.filterwarnings("ignore:no tree is above tau")
def test_clusters_are_scored_separately():
    fed = federate(TABLES, test=0.25)
    model = sv.BOFRF(3, max_depth=3, clusters=2).fit(fed)
    assert len(model.clusters_) == 2
    model.evaluate(fed)
    sv.BOFRF(3, max_depth=3).fit(fed)


def test_models_are_evaluated_once_per_task():
    """Two models that differ on one patient, one after the other."""
    fed = federate(tables("north"), schema=SCHEMA, test=0.4)

    def judge(tree):
        candidates = [SentModel(fed.blob(tree.to_bytes()))]
        schema = fed.blob(SCHEMA.to_json().encode())
        return fed.ask(EvaluateModels(schema=schema, candidates=candidates, feature_key=np.zeros(2, np.uint64)))

    judge(bait("no"))
    with pytest.raises(RefusedError, match=r"refused EvaluateModels: .* in another form"):
        judge(bait("yes"))


def test_rules_hold_when_messages_come_at_once():
    """Two forms of a request, admitted before either is handled: only one gets a reply."""
    fed = federate(tables("north"), schema=SCHEMA)
    member = fed.site("north")
    gate, held = member.outbox, []
    inner = gate.note

    def late(site, envelope, request, reply, body):
        if not held:  # the other form was admitted while the first waits to be written down, and is written first
            held.append(envelope)
            inner(site, msgspec.structs.replace(envelope, question="x", body=b"other"), request, reply, body)
        inner(site, envelope, request, reply, body)

    gate.note = late
    with pytest.raises(RefusedError, match="in another form"):
        scored(fed)
