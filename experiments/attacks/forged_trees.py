"""Forged trees: a coordinator sends trees that isolate known patients, and reads labels from their scores.

``EvaluateModels`` is tried with what a site between machines permits: models that each isolate five known patients,
the minimum with ``score_groups=5``, all at once, or one in each task of a study. ``CompareHalves`` is tried likewise,
beside a model that isolates nobody. What a single model reveals is in ``told_of_groups.py``.
"""

from collections.abc import Callable, Sequence

import numpy as np
from experiments.attacks.bait import TARGET, as_between_machines, known, never_yes, single_out, tables
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.bofrf.choose import Choose
from silvan.algorithms.boosting.adaboost import PickModels
from silvan.algorithms.boosting.stumps import Stumps
from silvan.algorithms.evaluation.candidates import MOST, SentModel
from silvan.algorithms.evaluation.evaluate import EvaluateModels
from silvan.algorithms.horizontal.weigh_halves import CompareHalves, compare_halves
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.refit_leaves import CountLeafLabels
from silvan.errors import FederationError, SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.part import Part
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import join_forests

Attack = Callable[[Federation, np.ndarray], np.ndarray]
"""Returns a guess of each known row's label, -1 for none."""


def run(small: bool) -> list[Outcome]:
    """Run each attack with one request to one site."""
    n, outcomes = (90, []) if small else (569, [])
    targets: list[tuple[str, str, Attack, float]] = [
        ("CountLeafLabels", "455 of 455 without signatures", count, 0.0),
        ("EvaluateModels", "171 of 171", judge, 0.0),
        ("Choose", "8 of 455", choose, 0.0),
        ("PickModels", "455 of 455", pick, 0.0),
    ]
    for kind, before, attack, allowed in targets:
        test = kind == "EvaluateModels"
        federation = sv.federate_rows(tables(n, 2), test=0.3 if test else 0.2, n_jobs=1)
        rows = known(federation, test)
        note = ""
        try:
            with federation.working_on("a study"):
                guess = attack(federation, rows.X)
        except (FederationError, SilvanError) as error:
            guess, note = np.full(len(rows), -1), str(error)
        outcomes.append(
            Outcome(f"labels of {len(rows)} by {kind}", before, float((guess == rows.y).sum()), allowed, note)
        )
    return [*outcomes, *_in_fives(n), *_by_halves(n)]


def _in_fives(n: int) -> list[Outcome]:
    outcomes = []
    for tasks in (1, MOST):
        federation = as_between_machines(tables(n, 2), 1, test=0.3)  # most studies need one
        rows = known(federation, test=True)
        read, note = 0, ""
        try:
            guess = judge_fives(federation, rows, tasks)
            read = int((guess == rows.y).sum())
        except SilvanError as error:
            note = str(error)
        target = f"labels of {len(rows)} by EvaluateModels, in fives" + (", one model per task" if tasks > 1 else "")
        outcomes.append(Outcome(target, "171 of 171", read, 0, note))
    return outcomes


def _by_halves(n: int) -> list[Outcome]:
    outcomes = []
    for comparisons in (1, MOST):
        federation = as_between_machines(tables(n, 2), 2, test=0.2)  # those of one comparison
        rows = known(federation, test=False)
        read, note = 0, ""
        try:
            read = int((compare_fives(federation, rows, comparisons) == rows.y).sum())
        except SilvanError as error:
            note = str(error)
        target = f"labels of {len(rows)} by CompareHalves, in fives" + (
            ", one pair per task" if comparisons > 1 else ""
        )
        outcomes.append(Outcome(target, "55 of 455 without groups", read, 0, note))
    return outcomes


def count(federation: Federation, X: np.ndarray) -> np.ndarray:
    """Send trees that isolate one row, and have rows counted by class at their leaves."""
    schema = federation.schema
    baits = join_forests([single_out(schema, X, row) for row in range(len(X))])
    forests = [federation.blob(never_yes(schema).to_bytes()), federation.blob(baits.to_bytes())]
    request = CountLeafLabels(
        schema=federation.blob(schema.to_json().encode()),
        forests=forests,
        owners=[TARGET, "other 0"],
        validation=0.0,
        bootstrap=False,
        few=np.zeros(len(baits.feature) + 3, np.bool_),
        min_leaf=10,
        offset=0.0,
        scale=1.0,
    )
    found = federation.total(request, over=[TARGET]).counts[2:]
    return np.asarray(found[baits.value[:, 1] == 1].argmax(axis=1))


def judge(federation: Federation, X: np.ndarray) -> np.ndarray:
    """Send models that vote "yes" for one row alone: their correlation is positive if that is right."""
    schema = federation.schema
    models = [federation.blob(single_out(schema, X, row).to_bytes()) for row in range(len(X))]
    request = EvaluateModels(
        schema=federation.blob(schema.to_json().encode()),
        candidates=[SentModel(model) for model in models],
        feature_key=np.zeros(2, np.uint64),
    )
    figures = federation.ask({TARGET: request})[TARGET].metrics
    return np.where(figures[:, 4] > 0, 1, np.where(figures[:, 4] < 0, 0, -1))


def judge_fives(federation: Federation, rows: Part, tasks: int) -> np.ndarray:
    """Send models that score five rows above all others: the AUC reveals how many of the five are "yes"."""
    schema, X = federation.schema, rows.X
    fives = [range(5 * i, 5 * i + 5) for i in range(min(MOST, len(X) // 5))]
    models = [join_forests([single_out(schema, X, row) for row in five]) for five in fives]
    found = []
    for some in np.array_split(np.arange(len(models)), tasks):
        request = EvaluateModels(
            schema=federation.blob(schema.to_json().encode()),
            candidates=[SentModel(federation.blob(models[i].to_bytes())) for i in some],
            feature_key=np.zeros(2, np.uint64),
        )
        with federation.working_on("a study"):
            found += federation.ask({TARGET: request})[TARGET].metrics[:, 0].tolist()
    return _labels_of_fives(rows, fives, found)


def compare_fives(federation: Federation, rows: Part, comparisons: int) -> np.ndarray:
    """Compare a model that scores five rows above all others with a constant one.

    Whoever adds up knows the parts of the other sites, and subtracts them.
    """
    schema, X = federation.schema, rows.X
    fives = [range(5 * i, 5 * i + 5) for i in range(min(comparisons, len(X) // 5))]
    found, elsewhere = [], "other 0"  # no row of the target is declared a training row of trees from there
    for five in fives:
        bait = join_forests([single_out(schema, X, row) for row in five])
        models = [
            SentModel(federation.blob(forest.to_bytes()), draws=RowSamples((len(forest),), (elsewhere,)))
            for forest in (never_yes(schema), bait)
        ]
        request = CompareHalves(schema=federation.blob(schema.to_json().encode()), models=models)
        with federation.working_on("a study"):
            total = federation.total(request).gap[1]
        others = [compare_halves(federation.site(name), request).gap[1] for name in federation.active if name != TARGET]
        found.append(0.5 + (total - sum(others) - 100) / 1000)
    return _labels_of_fives(rows, fives, found)


def _labels_of_fives(rows: Part, fives: Sequence[range], found: Sequence[float]) -> np.ndarray:
    """Return the labels implied by the AUC of models that score five rows above all others, -1 for none."""
    yes = int(rows.y.sum())  # how many there are is public
    no = len(rows) - yes
    ahead = np.array([_auc_of_five(p, yes, no) for p in range(6)])
    guess = np.full(len(rows), -1)
    for five, auc in zip(fives, found, strict=True):
        fits = np.flatnonzero(np.abs(ahead - auc) < 6e-4)
        if len(fits) == 1 and fits[0] in (0, 5):
            guess[list(five)] = int(fits[0] == 5)
    return guess


def _auc_of_five(p: int, yes: int, no: int) -> float:
    """Return the AUC with five rows ahead of all others, ``p`` of which are "yes"."""
    q = 5 - p
    pairs = p * q / 2 + p * (no - q) + (yes - p) * (no - q) / 2
    return pairs / (yes * no)


def choose(federation: Federation, X: np.ndarray) -> np.ndarray:
    """Let every lower threshold add one more tree, which raises or lowers the AUC by one row."""
    schema = federation.schema
    taus = [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    baits = join_forests([single_out(schema, X, row) for row in range(len(taus))])
    forests = [federation.blob(never_yes(schema).to_bytes()), federation.blob(baits.to_bytes())]
    request = Choose(
        schema=federation.blob(schema.to_json().encode()),
        forests=forests,
        own=0,
        alphas=np.array([0.9, *(tau + 0.05 for tau in taus)]),
        taus=taus,
        protocol="honest",
        validation=0.0,
        bootstrap=True,
    )
    figures = federation.ask({TARGET: request})[TARGET].metrics[:, 0]
    change = np.diff(np.concatenate([[0.5], figures]))
    guess = np.full(len(X), -1)
    guess[: len(taus)] = np.where(change > 0, 1, np.where(change < 0, 0, -1))
    return guess


def pick(federation: Federation, X: np.ndarray) -> np.ndarray:
    """Send classifiers that vote "yes" for one row alone: one error fewer than a constant "no", or one more."""
    schema = federation.schema
    models = [_never_yes(), *(_single_out(X, row) for row in range(len(X)))]
    request = PickModels(
        schema=federation.blob(schema.to_json().encode()),
        models=[federation.blob(wire.encode(model)) for model in models],
        own=0,
        tau=0.0,
        printed=True,
    )
    return np.where(federation.ask({TARGET: request})[TARGET].picked[1:], 0, 1)


def _single_out(X: np.ndarray, row: int) -> Stumps:
    """Return three stumps of which two vote "yes" for one row alone."""
    f = min((np.sum(X[:, f] == X[row, f]), f) for f in range(X.shape[1]))[1]
    value = X[row, f]
    return Stumps(
        feature=np.array([f, f, -1], np.int32),
        threshold=np.array([value, np.nextafter(value, np.float32(-np.inf)), 0], np.float32),
        missing_left=np.zeros(3, np.bool_),
        words=np.zeros((3, SET_WORDS), np.uint64),
        vote=np.array([[1, 0], [0, 1], [0, 0]], np.uint8),
        weight=np.ones(3),
    )


def _never_yes() -> Stumps:
    return Stumps(
        feature=np.array([-1], np.int32),
        threshold=np.zeros(1, np.float32),
        missing_left=np.zeros(1, np.bool_),
        words=np.zeros((1, SET_WORDS), np.uint64),
        vote=np.zeros((1, 2), np.uint8),
        weight=np.ones(1),
    )
