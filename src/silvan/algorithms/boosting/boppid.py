"""BOPPID (thesis, Alg. 4): each site takes over the classifiers that do about as well on its rows as its own.

Two rounds. Every site runs AdaBoost on its own rows. Each then tries all classifiers on its rows and picks those whose
error is near that of its own; a picked one counts by its site's share of rows, the site's own by a factor sigma more.
The thesis prints line 10 as own error minus the other's <= tau, which lets every worse classifier in; its text says
that the difference is less than tau, so the absolute difference is taken unless ``printed``.
"""

import math
from typing import ClassVar

import numpy as np

from silvan.algorithms.boosting.adaboost import ask_stumps
from silvan.algorithms.boosting.stumps import Boosting, Stumps, check_stumps, check_two_classes
from silvan.algorithms.requests import MAX_TREES, check_owners, schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, reject
from silvan.federation import wire
from silvan.federation.bound import Agreed, Derived, Fixed
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import decide


# -- messages
class Picked(Reply, frozen=True, kw_only=True):
    """The classifiers that the site picked."""

    picked: np.ndarray


class PickModels(Ask[Picked], frozen=True, kw_only=True):
    """The AdaBoost classifiers of other sites that do about as well on the site's rows as the local one."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    models: Derived[list[Blob]]
    own: Derived[int]  # which of them is the site's own
    tau: Fixed[float]
    printed: Fixed[bool]


# -- at a site
@answers(PickModels)
def pick_models(site: Site, request: PickModels) -> Picked:
    """Try all classifiers on the training rows (lines 3 and 9) and pick (line 10)."""
    schema = schema_of(site, request.schema)
    check_two_classes(schema)
    check_owners(site, request.models, request.own)
    reject(not 0.0 <= request.tau < math.inf, "there is no such tau")
    part = site.part(schema)
    wrong = np.array([_wrong(site, schema, blob, part.X, part.y) for blob in request.models])
    worse = (wrong[request.own] - wrong) / len(part)
    picked = worse <= request.tau if request.printed else np.abs(worse) < request.tau
    picked[request.own] = True
    return Picked(picked=picked)


def _wrong(site: Site, schema: Schema, blob: Blob, X: np.ndarray, y: np.ndarray) -> int:
    """Count the rows that a classifier gets wrong."""
    stumps = wire.decode(site.blob(blob.hash), Stumps)
    check_stumps(stumps, schema, MAX_TREES)
    reject(not len(stumps), "a classifier without stumps")
    return int((decide(stumps.forest(schema), X, site.n_jobs) != y).sum())


# -- at the coordinator
def fit(
    federation: Federation, schema: Schema, settings: Boosting, rows: dict[str, int], tau: float, printed: bool
) -> dict[str, Forest]:
    """Return the classifier that each site puts together."""
    boosted = ask_stumps(federation, schema, settings)
    sites, stumps = list(boosted), {site: reply.stumps for site, reply in boosted.items()}
    named = federation.blob(schema.to_json().encode())
    models = [federation.work(site, reply) for site, reply in boosted.items()]
    requests = {
        site: PickModels(schema=named, models=models, own=own, tau=float(tau), printed=printed)
        for own, site in enumerate(sites)
        if site in federation.active
    }

    def check(site: str, reply: Picked) -> None:
        if reply.picked.shape != (len(sites),) or reply.picked.dtype != np.bool_ or not reply.picked[sites.index(site)]:
            raise FormatError("its choice is not one of the classifiers, its own included")

    replies: dict[str, Picked] = federation.ask(requests, check=check)
    built = {}
    for site, reply in replies.items():
        picked = [name for name, is_in in zip(sites, reply.picked, strict=True) if is_in]
        built[site] = integrate(site, {name: stumps[name] for name in picked}, rows, schema)
    return built


def integrate(own: str, picked: dict[str, Stumps], rows: dict[str, int], schema: Schema) -> Forest:
    """Join classifiers (the output of Alg. 4) with weights alpha * sigma * lambda; equal ones if all are 0."""
    all_rows = sum(rows[site] for site in picked)
    factors = {site: rows[site] / all_rows for site in picked}  # lambda
    factors[own] *= sigma(rows[own], [rows[site] for site in picked])
    voting = {site: stumps for site, stumps in picked.items() if stumps.weight.any()}
    if not voting:
        return picked[own].forest(schema)
    return join_forests([stumps.forest(schema) for stumps in voting.values()], [factors[site] for site in voting])


def sigma(own: int, rows: list[int]) -> float:
    """Return the factor of a site's own classifier (line 19), from its rows and those of all picked sites.

    lambda / max(lambda)^2 * ceil(max(lambda)^2 / min(lambda)), in whole numbers as far as the ceiling: a rounded
    quotient could reach the next whole number.
    """
    total, most, least = sum(rows), max(rows), min(rows)
    return own * total / most**2 * -(-(most**2) // (total * least))
