"""Contenders that differ by site: all but one judge a model that says nothing, so that a sum is one site's part.

What is left of it is tried as well: one model for all, that gives every known row a score of its own. With
``score_groups=5`` a site's rows count in groups of five or more, and only those of one class show their labels.
"""

import numpy as np
from experiments.attacks.bait import TARGET, known, never_yes, rank_all, tables
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.evaluation.contenders import Contender
from silvan.algorithms.evaluation.evaluate import Tally
from silvan.algorithms.evaluation.figures import answer_of
from silvan.algorithms.evaluation.score_groups import in_groups
from silvan.errors import SilvanError
from silvan.federation.federation import Federation
from silvan.federation.part import Part
from silvan.forest.forest import Forest
from silvan.metrics import GRID


def run(small: bool) -> list[Outcome]:
    """Read the labels of one site's test rows from a hidden sum over four sites."""
    outcomes = []
    for alike in (False, True):
        policy = sv.Policy(min_sites=4, models=8, score_groups=5) if alike else sv.Policy(min_sites=4)
        given = tables(44 if small else 220, 3)
        federation = sv.federate_rows(given, test=0.2, sums="masked", policy=policy, n_jobs=1)
        rows = known(federation, test=True)
        note = ""
        try:
            with federation.working_on("a study"):
                guess = read_labels(federation, rows.X, alike)
        except SilvanError as error:
            guess, note = np.full(len(rows), -1), str(error)
        target = f"labels of {len(rows)} by Tally" + (", one model for all" if alike else "")
        allowed = _in_groups_of_one_class(rank_all(federation.schema, rows.X), rows) if alike else 0
        outcomes.append(Outcome(target, "44 of 44", float((guess == rows.y).sum()), allowed, note))
    return outcomes


def _in_groups_of_one_class(model: Forest, rows: Part) -> int:
    """Count the rows in groups of five or more whose labels are all the same."""
    score = in_groups(answer_of(model, rows.X, np.zeros(rows.X.shape[1], np.bool_)), 2, 5).scores[:, 1]
    return sum(int((score == s).sum()) for s in np.unique(score) if len(np.unique(rows.y[score == s])) == 1)


def read_labels(federation: Federation, X: np.ndarray, alike: bool) -> np.ndarray:
    """Have the target give every row a score of its own, and the other sites the lowest, unless all are asked alike."""
    schema = federation.schema
    baits = rank_all(schema, X)
    models = {site: baits if alike else never_yes(schema) for site in federation.active} | {TARGET: baits}
    shared = {"schema": federation.blob(schema.to_json().encode()), "feature_key": np.zeros(2, np.uint64)}
    counts = federation.total(
        {
            site: Tally(contenders=[Contender(sent=federation.blob(model.to_bytes()))], **shared)
            for site, model in models.items()
        }
    )
    negatives, positives = counts.scores[0, 0]
    answer = answer_of(baits, X, np.zeros(X.shape[1], np.bool_))
    score = (in_groups(answer, 2, 5) if alike else answer).scores[:, 1]  # what a site does is no secret
    cell = GRID - 1 - np.minimum((score * GRID).astype(int), GRID - 1)
    pure = (negatives[cell] == 0) | (positives[cell] == 0)
    return np.where(pure, (positives[cell] > 0).astype(int), -1)
