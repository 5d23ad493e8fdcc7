"""Prediction by a linear model in shares: parties' parts of the predictors are summed, in one round."""

from typing import ClassVar

import numpy as np

from silvan.algorithms.columns import encode_rows, rows_blob
from silvan.algorithms.linear_shares import FINE, LinearModel, linear_share_of, to_whole
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Reply, Request, Verb
from silvan.federation.party import party_of
from silvan.federation.site import Site, answers
from silvan.threads import algebra_threads

# -- messages


class Predictors(Reply, frozen=True, kw_only=True):
    """A party's part of each row's predictors."""

    parts: np.ndarray


class SumPredictors(Request, frozen=True, kw_only=True):
    """What the party's columns add to the predictors of some rows."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = Predictors

    model: str
    rows: Blob


# -- at a party


@answers(SumPredictors)
def sum_predictors(site: Site, request: SumPredictors) -> Predictors:
    """Say what the party's columns add to the predictors."""
    party = party_of(site)
    share = linear_share_of(party, request.model)
    X = encode_rows(party, share.design.schema, request.rows)
    with algebra_threads(party.n_jobs):
        return Predictors(parts=to_whole(share.predict(X), FINE))


# -- at the coordinator


def predict(federation: Federation, model: LinearModel, digests: np.ndarray) -> np.ndarray:
    """Score rows: probabilities (rows, classes), or numbers (rows, 1). One round."""
    absent = [party for party in model.parties if party not in federation.active]
    if absent:
        raise InputError(
            f"party {absent[0]!r} has a share of this model and is not in the federation; without it no row can be "
            "scored"
        )

    def check(site: str, reply: Predictors) -> None:
        if reply.parts.shape != (len(digests), model.width) or reply.parts.dtype != np.int64:
            raise FormatError("its predictors are not as many as the rows")

    request = SumPredictors(model=model.model, rows=rows_blob(federation, digests))
    sum_: Predictors = federation.total(request, over=model.parties, check=check)
    return model.scores(sum_.parts * 2.0**-FINE)
