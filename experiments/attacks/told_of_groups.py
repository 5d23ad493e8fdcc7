"""Everything that a site discloses about its test rows for known models, compared with all possible labels.

With few rows every combination of labels can be tried. A coordinator cannot distinguish combinations with equal
metrics, equal counts by score and decision, and equal values derived from them. A label that is equal in all of these
combinations is read for certain. Most studies evaluate one model. With two, because the coordinator knows the site's
forest or a learner needs more, the groups of one may be compared with those of the other. An `AutoForest` site
discloses which of fifteen mixes it chose, of the shared forest, that forest with leaf values from its rows, and its
local trees; and the metrics of the shared forest and the chosen mix, not of all fifteen. The leaves here are two
halves of the rows; within a half, each row is scored by the labels of the others.
"""

from collections import defaultdict
from itertools import product

import numpy as np
from experiments.attacks.outcome import Outcome

from silvan.algorithms.evaluation.personal_forest import MIXES, likely_mix
from silvan.algorithms.evaluation.score_groups import Answer, in_groups, one_class
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.metrics import classification, confusion, count_scores

LEAST = 5
"""``score_groups`` between machines."""


def run(small: bool) -> list[Outcome]:
    """Read labels from the reports on some models, and on pairs of them."""
    n = 10 if small else 12
    all_labels = np.array(list(product(range(2), repeat=n)))
    models = _models(n)
    told = [[tell(model, y, LEAST) for y in all_labels] for model in models]
    raw = [tell(models[0], y, 1) for y in all_labels]
    alone = max(labels_read(all_labels, one) for one in told)
    pairs = [labels_read(all_labels, list(zip(told[0], other, strict=True))) for other in told[1:]]
    before = labels_read(all_labels, raw)
    mixes = [] if small else _by_mixes(all_labels, models[-1], models[0])
    return [
        Outcome(f"labels of {n} by one model, everything disclosed", f"{before:.3g}", alone, 0),
        Outcome(f"labels of {n} by two models, everything disclosed", f"{before:.3g}", max(pairs), 1.5, "on average"),
        *mixes,
    ]


def _by_mixes(all_labels: np.ndarray, shared: np.ndarray, own: np.ndarray) -> list[Outcome]:
    """Read labels from the chosen mix, and from the metrics of all mixes, or of two."""
    told: list[tuple[list[float], int]] = []
    for y in all_labels:
        fitted = _by_leaf(shared, y)
        scores = [(1.0 - a - b) * shared + a * own + b * fitted for a, b in MIXES]
        mixes = [np.column_stack([1.0 - score, score]) for score in scores]
        judged = tuple(score_quality(mix, y, 2) for mix in mixes)
        choice = 0 if judged[0].metric == "accuracy" else likely_mix(judged, y)
        figures = []
        for mix in mixes:
            answer, labels = in_groups(Answer(mix, mix.argmax(axis=1)), y, 2, LEAST)
            figures.append(
                np.nan if one_class(labels, 2) else float(f"{score_quality(answer.scores, labels, 2).value:.3g}")
            )
        told.append((figures, choice))
    of_all = labels_read(all_labels, [repr(one).encode() for one in told])
    of_two = labels_read(all_labels, [repr((f[0], f[choice], choice > 0)).encode() for f, choice in told])
    what = f"labels of {all_labels.shape[1]} by the mixes of a forest and local trees"
    return [Outcome(what, f"{of_all:.3g}", of_two, 1, "on average")]


def _by_leaf(shared: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return scores by two leaves: the share of the second class among the other rows, and the shared score as one."""
    leaf = np.arange(len(y)) % 2
    sums = np.bincount(leaf, y)[leaf] - y
    return (sums + shared) / np.bincount(leaf)[leaf]


def _models(n: int) -> list[np.ndarray]:
    """Return scores: in a known order, with two rows exchanged, the other way round, and at random."""
    score = np.linspace(0.02, 0.98, n)
    exchanged = score.copy()
    exchanged[[n // 2 - 1, n // 2]] = score[[n // 2, n // 2 - 1]]
    return [score, exchanged, score[::-1], np.random.default_rng(0).permutation(score)]


def tell(score: np.ndarray, y: np.ndarray, least: int) -> bytes:
    """Return metrics and counts as they leave a site, with three digits and integers."""
    answer, labels = in_groups(
        Answer(np.column_stack([1.0 - score, score]), (score > 0.5).astype(np.int64)), y, 2, least
    )
    figures = np.round(list(classification(answer.scores, labels, answer.decided).values()), 3)
    if least > 1 and one_class(labels, 2):
        figures[:] = np.nan
    counts = [*count_scores(answer.scores, labels, exact=True), confusion(answer.scores, labels, answer.decided)]
    return b"".join([figures.tobytes(), *(np.ascontiguousarray(count).tobytes() for count in counts)])


def labels_read(all_labels: np.ndarray, told: list[bytes] | list[tuple[bytes, bytes]]) -> float:
    """Return how many labels are read for certain, on average over all possible labels."""
    alike = defaultdict(list)
    for labels, one in zip(all_labels, told, strict=True):
        alike[one].append(labels)
    read = 0
    for found in alike.values():
        share = np.mean(found, axis=0)
        read += len(found) * int(((share == 0) | (share == 1)).sum())
    return read / len(all_labels)
