"""How much say a site's own trees have beside those of all sites: chosen at each site, on rows that trees did not see.

A site's rows are scored by the forest that all share and by the site's own trees, each row by trees that did not learn
from it, and both are mixed in a few fixed shares. What a mix gains over the shared forest counts less 1.28 standard
errors of it, which luck adds one time in ten; less is taken off the surer it is that some mix is better. The site takes
the share that is the mean of all, each weighted by what it gains: few rows leave it near the shared forest, and a lead
of several hundredths takes it all the way. AUCs of several classes count by the pairs of rows that they compare.
"""

from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.bofrf.choose import Judged, Measure, judge
from silvan.algorithms.evaluation.contenders import (
    NO_RULE,
    Contender,
    Decide,
    check_contenders,
    list_contenders,
    model_of,
)
from silvan.algorithms.evaluation.figures import Answer
from silvan.algorithms.evaluation.score_groups import hides_one_class, in_groups
from silvan.algorithms.evaluation.site_thresholds import Draws, score_unseen
from silvan.algorithms.shared.requests import check_owners, forests_of, schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation.agreement.agree import MAX_ROWS
from silvan.federation.agreement.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.privacy.gate.gate import policy_of

SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
"""How much say a site's own trees can get in place of the shared forest; the first is what is agreed."""

_LUCK = 1.28
"""Standard errors that are taken off what a mix gains: as much as luck adds one time in ten."""

_NO_LUCK = (2.5, 4.0)
"""Once a mix is ahead by more standard errors than the first, less is taken off, and nothing at the second."""

_SCALE = 0.003
"""The gain, in AUC or in explained variance, at which a share has e times as much weight as the shared forest."""

_DIGITS = 3
"""Significant digits of figures that leave a site."""

# -- messages


class ChosenShare(Reply, frozen=True, kw_only=True):
    """Which mix a site will use, and rounded figures of all of them, on how many rows."""

    choice: int  # its place among the shares
    measure: Measure  # empty: there were no rows to choose on, or too few
    rows: int
    figures: np.ndarray  # one a share; NaN where the site's policy shows none: see ``_figures``


class ChooseShare(Request, frozen=True, kw_only=True):
    """How much say the site's own trees should have at the site, by its training rows."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = ChosenShare

    schema: Blob
    model: Contender  # the forest that all sites share, and which rows its trees drew
    own: Blob  # the site's own trees, as it signed them

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        n = len(SHARES) if reply is None else int((~np.isnan(reply.figures)).sum())
        return (
            "how much say the site's own trees will have at the site, and rounded figures of "
            f"{'1 mix' if n == 1 else f'{n} mixes'} on its own training rows"
        )

    def course(self) -> Course:
        """Allow the question once."""
        return Course(self.kind())


# -- at a site


@answers(ChooseShare)
def choose_share(site: Site, request: ChooseShare) -> ChosenShare:
    """Score the mixes on training rows, each by trees that did not see it, and take what they gain on average."""
    schema, model = schema_of(site, request.schema), request.model
    if model.sent is None or not isinstance(model.draws, Draws):
        raise FormatError("a mix needs a forest that is sent, whose draws are known")
    check_contenders(site, [model])
    check_owners(site, [request.own], 0)
    [own] = forests_of(site, schema, [request.own])
    alone = Draws((len(own),), (site.name,), model.draws.bootstrap)
    shared = score_unseen(site, schema, model_of(site, schema, model.sent), model.draws)
    mine = score_unseen(site, schema, own, alone)
    if shared is None or mine is None:
        return _no_choice(0)
    known = ~np.isnan(shared.scores + mine.scores).any(axis=1)
    y = shared.y[known]
    if len(y) < FLOOR or not policy_of(site).allows_figures(y, schema.n_classes):
        return _no_choice(len(y))
    mixes = [(1.0 - share) * shared.scores[known] + share * mine.scores[known] for share in SHARES]
    judged = [judge(mix, y, schema.n_classes, by_pairs=True) for mix in mixes]
    if judged[0].measure == "accuracy":
        return _no_choice(len(y))  # all rows are of one class
    choice = likely_share(judged, y)
    figures = _figures(site, mixes, y, schema.n_classes, choice)
    return ChosenShare(choice=choice, measure=judged[0].measure, rows=len(y), figures=figures)


def likely_share(judged: list[Judged], y: np.ndarray) -> int:
    """Return the place of the share that is nearest to the mean of all, each weighted by what it surely gains."""
    unit = float(np.var(y)) if judged[0].measure == "rmse" else 1.0
    if unit <= 0.0:
        return 0  # one number for all rows: nothing to gain
    gains, errors = np.array([one.lead(judged[0]) for one in judged]).T / unit
    ahead = float(np.max(gains / np.maximum(errors, np.finfo(np.float64).tiny)))
    luck = _LUCK * float(np.interp(ahead, _NO_LUCK, (1.0, 0.0)))
    surely, shares = gains - luck * errors, np.array(SHARES)
    weights = np.exp((surely - surely.max()) / _SCALE)
    return int(np.argmin(np.abs(shares - weights @ shares / weights.sum())))


def _figures(site: Site, mixes: list[np.ndarray], y: np.ndarray, n_classes: int, choice: int) -> np.ndarray:
    """Return figures of the mixes as far as the site's policy shows them: of rows in groups, rounded.

    Where rows are in groups, of the shared forest and of the mix that the site takes: whoever knows the trees could set
    the groups of all mixes against one another.
    """
    found, policy = np.full(len(mixes), np.nan), policy_of(site)
    for i in range(len(mixes)) if policy.score_groups == 1 else sorted({0, choice}):
        mix = mixes[i]
        answer, labels = in_groups(Answer(mix, mix.argmax(axis=1)), y, n_classes, policy.score_groups)
        if not hides_one_class(policy, labels, n_classes):
            judged = judge(answer.scores, labels, n_classes, by_pairs=True)
            found[i] = float(f"{judged.figure:.{_DIGITS}g}")
    return found


def _no_choice(rows: int) -> ChosenShare:
    return ChosenShare(choice=0, measure="", rows=rows, figures=np.full(len(SHARES), np.nan))


# -- at the coordinator


def choose_shares(
    federation: Federation, schema: Schema, forest: Forest, draws: Draws, own: dict[str, Blob], decide: Decide = NO_RULE
) -> dict[str, ChosenShare]:
    """Ask every site how much say its own trees should have: one round. The forest is sent as when it is judged."""
    listed = list_contenders(federation, [forest], {forest.hash: draws}, decide)
    schema_blob = federation.blob(schema.to_json().encode())
    requests = {
        site: ChooseShare(schema=schema_blob, model=listed[site][0], own=own[site]) for site in listed if site in own
    }
    replies: dict[str, ChosenShare] = federation.ask(requests, check=check_chosen)
    return replies


def check_chosen(site: str, reply: ChosenShare) -> None:
    """Raise ``FormatError`` for an answer that cannot be."""
    if not 0 <= reply.choice < len(SHARES) or not 0 <= reply.rows < MAX_ROWS:
        raise FormatError("it chose what it was not offered")
    if reply.figures.shape != (len(SHARES),) or reply.figures.dtype != np.float64:
        raise FormatError("its figures are not those asked for")
    if np.isinf(reply.figures).any() or (reply.figures < 0).any():
        raise FormatError("its figures are not possible")


def mixed_forest(shared: Forest, own: Forest, share: float) -> Forest:
    """Return the forest in which a site's own trees have a share of the say, beside the shared one."""
    if share == 0.0:
        return shared
    if share == 1.0:
        return own
    say = shared.weights.sum() / max(own.weights.sum(), 1.0)
    return join_forests([shared, own], [1.0 - share, share * float(say)])
