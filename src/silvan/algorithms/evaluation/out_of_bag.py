"""Thresholds chosen at a site on training rows: every row is scored by the trees of a model that did not learn from it.

No test row takes part. Rows are scored and counted in groups as the site's policy says, so that a threshold tells of no
single row.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.drawn_rows import drawn_by_place
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class, in_groups
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.forest.forest import Forest
from silvan.forest.predict import tally, voting_weights
from silvan.privacy.gate import policy_of
from silvan.tree.draw import RowDraw

_MOST_ROWS = 20_000
"""Training rows that a threshold is chosen on; of more, evenly spread ones are taken."""


class Draws(msgspec.Struct, frozen=True):
    """Which rows the trees of a model drew, as far as sites can tell by their keys.

    ``sizes`` are numbers of trees, one site's after the other's, and ``owners`` these sites. Trees of no site, whose
    owner is "", and all without owners, were grown from sums and drew rows of all sites. After a recount the i-th tree
    of every site drew rows as the i-th of each.
    """

    sizes: tuple[int, ...]
    owners: tuple[str, ...] = ()
    bootstrap: RowDraw = True
    recounted: bool = False


class Unseen(NamedTuple):
    """Training rows, scored by trees that did not see them, and the labels to count them by."""

    answer: Answer
    y: np.ndarray


class Scored(NamedTuple):
    """Training rows, or evenly spread ones of many: what trees that did not see a row answer, and the labels.

    Scores are NaN where all trees saw the row; ``votes`` counts classes where trees vote.
    """

    scores: np.ndarray
    votes: np.ndarray
    y: np.ndarray


def unseen_rows(site: Site, schema: Schema, forest: Forest, draws: Draws | None) -> Unseen | None:
    """Score training rows by the trees that did not see them, in groups; None if that is not known or not allowed."""
    found = score_unseen(site, schema, forest, draws)
    if found is None:
        return None
    known = ~np.isnan(found.scores).any(axis=1)
    scores, y = found.scores[known], found.y[known]
    if len(y) < FLOOR or not policy_of(site).allows_figures(y, schema.n_classes):
        return None
    votes = forest.combine == "vote" and bool(schema.n_classes)
    decided = found.votes[known].argmax(axis=1) if votes else scores.argmax(axis=1)
    policy = policy_of(site)
    unseen = Unseen(*in_groups(Answer(scores, decided), y, schema.n_classes, policy.score_groups))
    return None if hides_one_class(policy, unseen.y, schema.n_classes) else unseen


def score_unseen(site: Site, schema: Schema, forest: Forest, draws: Draws | None) -> Scored | None:
    """Score training rows by the trees that did not see them; None if that is not known."""
    if draws is not None:
        check_draws(draws)
    part = site.part(schema)
    if draws is None or forest.combine not in ("mean", "vote") or sum(draws.sizes) != len(forest):
        return None
    weights = voting_weights(forest, site.absent(schema))
    if not weights.any():
        return None
    taken = np.arange(len(part))
    if len(part) > _MOST_ROWS:
        taken = np.linspace(0, len(part) - 1, _MOST_ROWS).astype(np.int64)
    drawn, skipping = rows_drawn(site, part, draws, taken)
    votes = forest.combine == "vote" and bool(schema.n_classes)
    total = tally(forest, part.take(taken), weights, site.n_jobs, votes=votes, skip=drawn, skipping=skipping)
    return Scored(total.means(), total.votes, part.y[taken])


def rows_drawn(site: Site, part: Part, draws: Draws, taken: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return lines of rows of the site that trees drew, bool (lines, rows), and the line of each tree, -1 for none.

    Of all rows, or of those that are ``taken``.
    """
    owners, sizes = draws.owners or ("",), draws.sizes
    places = np.concatenate([np.arange(size) for size in sizes])
    here = np.repeat([draws.recounted or owner in ("", site.name) for owner in owners], sizes)
    own = [size for owner, size in zip(owners, sizes, strict=True) if owner == site.name]
    n_own = own[0] if own else 0 if draws.owners else sizes[0]
    return drawn_by_place(site, part, draws.bootstrap, n_own, max(sizes), taken), np.where(here, places, -1)


def check_draws(draws: Draws, n_trees: int | None = None) -> None:
    """Raise ``FormatError`` for numbers of trees that are none, or not as many as their sites or trees."""
    owners = draws.owners or ("",)
    if len(draws.sizes) != len(owners) or min(draws.sizes) < 0 or n_trees not in (None, sum(draws.sizes)):
        raise FormatError("what the trees drew does not match their sites")


def site_threshold(site: Site, schema: Schema, forest: Forest, draws: Draws | None, rule: str = "youden") -> float:
    """Return the score from which on the second of two classes is decided on, by a rule; NaN if unknown."""
    unseen = unseen_rows(site, schema, forest, draws) if schema.n_classes == 2 else None
    if unseen is None:
        return np.nan
    negatives, positives = metrics.count_scores(unseen.answer.scores, unseen.y, exact=True)[0]
    return metrics.best_threshold(np.unique(unseen.answer.scores[:, 1])[::-1], negatives, positives, rule)
