"""Which mix of the shared forest and its own trees each site takes: asked of the sites, in one round.

How a site chooses, and what it makes of it, is in ``personal_forest.py``. The forest stays at the site. The coordinator
is told figures and, in one process, which of fifteen mixes it is; where rows are in groups only whether it is the
shared forest or another, since a choice among many tells of the rows that it was made by.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.evaluation.candidates import PersonalForest, PersonalModel, check_candidates
from silvan.algorithms.evaluation.out_of_bag import Draws
from silvan.algorithms.evaluation.personal_forest import MIXES, Ingredients, MixChoice, choose_mix, make_forest
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class, in_groups
from silvan.algorithms.evaluation.score_quality import MetricName, score_quality
from silvan.algorithms.kept_results import keep_made_model
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.privacy.gate import policy_of

UNTOLD = -1
"""A mix that is not the shared forest alone, and that the site does not tell."""

_DIGITS = 3
"""Significant digits of figures that leave a site."""

# -- messages


class ChosenShare(Reply, frozen=True, kw_only=True):
    """Which mix a site will use, and rounded figures of it and of all mixes, on how many rows."""

    choice: int  # its place among the mixes, or ``UNTOLD``
    measure: MetricName  # empty: there were no rows to choose on, or too few
    rows: int
    figure: float  # of the mix that it takes
    figures: np.ndarray  # one a mix; NaN where the site's policy shows none, as in ``figure``


class ChooseShare(Ask[ChosenShare], frozen=True, kw_only=True):
    """How much say the site's own trees and rows should have at the site, by its training rows."""

    once: ClassVar[bool] = True

    schema: Blob
    model: PersonalModel  # the forest that all sites share, which rows its trees drew, and what it is mixed with

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        n = len(MIXES)
        if reply is not None:
            n = int((~np.isnan(reply.figures)).sum()) + (reply.choice == UNTOLD and not np.isnan(reply.figure))
        return (
            "how much say the site's own trees and rows will have in a forest that stays there, and rounded figures of "
            f"{'1 mix' if n == 1 else f'{n} mixes'} on its own training rows"
        )


# -- at a site


@answers(ChooseShare)
def choose_share(site: Site, request: ChooseShare) -> ChosenShare:
    """Choose a mix on training rows, and keep the forest that it makes if results of the study will be kept."""
    schema, model = schema_of(site, request.schema), request.model
    if model.made_in != site.task:
        raise FormatError("a mix needs the trees that the site made in this task")
    check_candidates(site, [model])
    parts = Ingredients.read(site, schema, model)
    chosen = choose_mix(site, schema, parts)
    if site.results is not None and chosen.choice:
        keep_made_model(site.results, make_forest(site, schema, parts).forest)
    if not chosen.quality or chosen.quality[0] is None:
        empty = np.full(len(MIXES), np.nan)
        return ChosenShare(choice=0, measure="", rows=len(chosen.y), figure=np.nan, figures=empty)
    told = policy_of(site).score_groups == 1
    shown = range(len(MIXES)) if told else [0]
    figures = np.array(
        [_figure(site, chosen, i, schema.n_classes) if i in shown else np.nan for i in range(len(MIXES))]
    )
    return ChosenShare(
        choice=chosen.choice if told or not chosen.choice else UNTOLD,
        measure=chosen.quality[0].metric,
        rows=len(chosen.y),
        figure=_figure(site, chosen, chosen.choice, schema.n_classes),
        figures=figures,
    )


def _figure(site: Site, chosen: MixChoice, place: int, n_classes: int) -> float:
    """Return how good a mix is, as far as the site's policy shows it: of rows in groups, rounded."""
    mix, policy = chosen.scores[place], policy_of(site)
    if mix is None:
        return np.nan
    answer, labels = in_groups(Answer(mix, mix.argmax(axis=1)), chosen.y, n_classes, policy.score_groups)
    if hides_one_class(policy, labels, n_classes):
        return np.nan
    return float(f"{score_quality(answer.scores, labels, n_classes, by_pairs=True).value:.{_DIGITS}g}")


# -- at the coordinator


def choose_shares(
    federation: Federation, schema: Schema, models: Mapping[str, PersonalForest], threshold: float | None = None
) -> dict[str, ChosenShare]:
    """Ask every site which mix it takes: one round. The shared forest is sent as when it is judged."""
    schema_blob = federation.blob(schema.to_json().encode())
    requests = {
        site: ChooseShare(schema=schema_blob, model=model.candidate(federation, threshold))
        for site, model in models.items()
    }
    replies: dict[str, ChosenShare] = federation.ask(requests, check=check_chosen)
    return replies


def site_models(
    federation: Federation, shared: Forest, draws: Draws, own: Mapping[str, Blob], fit: bool
) -> dict[str, PersonalForest]:
    """Return what sites that sent trees make their forests of; ``draws`` says which rows the shared trees drew."""
    found = {}
    for site, blob in own.items():
        tasks = [owner.task for owner in federation.makers(blob) if owner.site == site]
        if site in federation.active and tasks:
            found[site] = PersonalForest(shared, draws, blob, tasks[-1], fit)
    return found


def check_chosen(site: str, reply: ChosenShare) -> None:
    """Raise ``FormatError`` for an answer that cannot be."""
    if not UNTOLD <= reply.choice < len(MIXES) or not 0 <= reply.rows < MAX_ROWS:
        raise FormatError("it chose what it was not offered")
    if reply.figures.shape != (len(MIXES),) or reply.figures.dtype != np.float64:
        raise FormatError("its figures are not those asked for")
    told = np.append(reply.figures, reply.figure)
    if np.isinf(told).any() or (told < 0).any():
        raise FormatError("its figures are not possible")
