"""Models that differ by site: all but one evaluate a constant model, so that a sum is the last site's part.

A single model that gives every known row a different score is tried as well. With ``score_groups=5`` a site's rows
count in groups of five or more, and the report does not reveal whether all rows of a group have one class, or all but
one.
"""

import numpy as np
from experiments.attacks.bait import TARGET, as_between_machines, known, never_yes, rank_all, tables
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.evaluation.candidates import SentModel
from silvan.algorithms.evaluation.evaluate import CountByScore
from silvan.algorithms.evaluation.evaluation import answer_of
from silvan.algorithms.evaluation.score_groups import in_groups
from silvan.errors import SilvanError
from silvan.federation.federation import Federation
from silvan.metrics import GRID


def run(small: bool) -> list[Outcome]:
    """Read the labels of one site's test rows from a masked sum over four sites."""
    outcomes = []
    for alike in (False, True):
        given, settings = tables(44 if small else 220, 3), {"test": 0.2, "sums": "masked"}
        if alike:
            federation = as_between_machines(given, 1, min_sites=4, **settings)
        else:
            federation = sv.federate_rows(given, policy=sv.Policy(min_sites=4), n_jobs=1, **settings)
        rows = known(federation, test=True)
        note = ""
        try:
            with federation.working_on("a study"):
                guess = read_labels(federation, rows.X, alike)
        except SilvanError as error:
            guess, note = np.full(len(rows), -1), str(error)
        target = f"labels of {len(rows)} by CountByScore" + (", one model for all" if alike else "")
        outcomes.append(Outcome(target, "44 of 44", float((guess == rows.y).sum()), 0, note))
    return outcomes


def read_labels(federation: Federation, X: np.ndarray, alike: bool) -> np.ndarray:
    """Make the target score every row differently and the others constantly, unless requests must be equal."""
    schema = federation.schema
    baits = rank_all(schema, X)
    models = {site: baits if alike else never_yes(schema) for site in federation.active} | {TARGET: baits}
    shared = {"schema": federation.blob(schema.to_json().encode()), "feature_key": np.zeros(2, np.uint64)}
    counts = federation.total(
        {
            site: CountByScore(candidates=[SentModel(federation.blob(model.to_bytes()))], **shared)
            for site, model in models.items()
        }
    )
    negatives, positives = counts.scores[0, 0]
    answer = answer_of(baits, X, np.zeros(X.shape[1], np.bool_))
    # the site's code is public, and how rows fall into groups does not depend on their labels
    score = (in_groups(answer, np.zeros(len(X), np.int64), 2, 5)[0] if alike else answer).scores[:, 1]
    cell = GRID - 1 - np.minimum((score * GRID).astype(int), GRID - 1)
    if not alike:
        pure = (negatives[cell] == 0) | (positives[cell] == 0)
        return np.where(pure, (positives[cell] > 0).astype(int), -1)
    groups = np.unique(cell)
    least, most = possible(positives[groups], negatives[groups])
    group = np.searchsorted(groups, cell)
    size = (positives + negatives)[cell]
    return np.where(most[group] == 0, 0, np.where(least[group] == size, 1, -1))


def possible(positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimum and maximum number of "yes" in each group, given the counts of all groups."""
    size = positives + negatives
    least, most = positives.copy(), positives.copy()
    for side, others in ((positives <= 1, positives), (negatives <= 1, negatives)):
        seen, n = int(others[side].sum()), int(side.sum())
        fewest, highest = max(0, seen - (n - 1)), min(1, seen)  # in a group, if no other has more than one
        if seen <= 1:
            fewest = 0  # one is counted where there is none
        if others is positives:
            least[side], most[side] = fewest, highest
        else:
            least[side], most[side] = size[side] - highest, size[side] - fewest
    return least, most
