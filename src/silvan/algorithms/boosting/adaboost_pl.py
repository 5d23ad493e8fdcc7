"""AdaBoost.PL (thesis, Alg. 3): classifiers of like confidence are merged. One round.

Every site runs AdaBoost on its own rows and sorts its stumps by weight. The stumps of one rank vote together; the
weight of their vote is the mean of theirs. The thesis prints the vote as a sum compared with 0: it is read as the sign
of the sum of votes of -1 and +1, so that a tie is a vote for neither.
"""

import numpy as np

from silvan.algorithms.boosting.adaboost import ask_stumps
from silvan.algorithms.boosting.stumps import Boosting, Stumps, join_stumps
from silvan.data.schema import Schema
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.util.user_warnings import warn_user

# -- messages and the site's half: see ``adaboost``, which is all that sites are asked for


# -- at the coordinator
def fit(federation: Federation, schema: Schema, settings: Boosting) -> Forest:
    """Merge the sites' AdaBoost classifiers."""
    return merge([reply.stumps for reply in ask_stumps(federation, schema, settings).values()], schema)


def merge(sorted_stumps: list[Stumps], schema: Schema) -> Forest:
    """Merge stumps by rank; a site that has fewer than others takes part in the highest ranks.

    A stump of weight 0, which is no better than chance, has no vote, but its weight counts in the mean.
    """
    ranks, weights = [], []
    for below in range(max(map(len, sorted_stumps)), 0, -1):
        rank = join_stumps([stumps.take([len(stumps) - below]) for stumps in sorted_stumps if len(stumps) >= below])
        alpha = rank.weight.sum() / len(sorted_stumps)
        if alpha > 0.0:
            ranks.append(rank.weighted((rank.weight > 0).astype(np.float64)))
            weights.append(alpha)
    if not ranks:
        return nothing_learnt(join_stumps([stumps.take([-1]) for stumps in sorted_stumps]), schema)
    return stage_forest(ranks, weights, schema)


def stage_forest(stages: list[Stumps], weights: list[float], schema: Schema) -> Forest:
    """Return a forest of merged classifiers: the stumps of a stage vote, and the stages vote by their weights."""
    group = np.repeat(np.arange(len(stages)), [len(stumps) for stumps in stages])
    return join_stumps(stages).forest(schema, combine="stages", group=group, say=np.array(weights))


def nothing_learnt(stumps: Stumps, schema: Schema) -> Forest:
    """Warn that no stump is better than chance, and return a forest of one stage in which all vote."""
    warn_user("no stump is better than chance: the model tells nothing apart")
    return stage_forest([stumps.weighted(np.ones(len(stumps)))], [1.0], schema)
