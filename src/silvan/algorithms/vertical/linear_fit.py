"""Training of a linear or logistic regression of columns that stay with their parties: the coordinator's side.

The label holder fits its own columns and sends the others the residuals of all rows, sealed so that the coordinator
cannot read them. Every other party replies with a step of Newton's method in its own columns: what it would add to each
row's predictor. Only the sum over the parties is visible (``total``), and only to the label holder, whose part masks it
from the coordinator. The label holder fits the sum as one more column (``solver.py``), and so on, until a step would
change less than the tolerance. This takes two rounds per step, and two more; the result is the ridge regression of the
joined table.

What parties learn: every party learns the label, because a residual reveals it; the label holder learns as many
combinations of the others' columns as there were steps. See docs/linear.md.
"""

from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.columns import label_holder_of, own_columns_blob, rows_blob
from silvan.algorithms.vertical.linear_shares import Design, LinearModel, LinearShare, check_kept
from silvan.algorithms.vertical.linear_steps import (
    INNER,
    Explain,
    KeepCoefficients,
    KeptConstant,
    Offer,
    OfferDirection,
    RegressionTerms,
    Unexplained,
    make_target,
)
from silvan.algorithms.vertical.solver import ReducedColumns, Regression
from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError, InputError, reject
from silvan.federation import wire
from silvan.federation.agreement import Columns
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Request
from silvan.federation.store import digest

HISTORY = 1 << 28
"""Maximum bytes of offered columns, which are kept so that a party can restart; then no further steps follow."""

# -- in one place


def fit_joined_rows(
    X: np.ndarray, y: np.ndarray, schema: Schema, alpha: float, tol: float
) -> tuple[LinearModel, LinearShare]:
    """Fit the regression of encoded rows in one place: the baseline."""
    design, columns = Design.of(X, schema)
    reduced = ReducedColumns.of(columns)
    found = make_target(y, schema.label)
    regression = Regression(reduced.X, found.target, alpha, found.start)
    regression.fit(INNER * tol)
    model = LinearModel("", schema, ("",), (X.shape[1],), "", found.present, regression.theta.own[-1], found.unit)
    return model, LinearShare("", "", design, reduced.expand(regression.theta.own[:-1]))


# -- at the coordinator


ASKS: tuple[type[Request], ...] = (Explain, OfferDirection, KeepCoefficients)
"""Kinds of messages for fitting."""


@dataclass(frozen=True)
class Fitted:
    """A model, its number of steps, and whether it converged."""

    model: LinearModel
    steps: int
    converged: bool


def fit(federation: Federation, columns: Columns, schema: Schema, *, alpha: float, tol: float, max_iter: int) -> Fitted:
    """Fit the regression of all parties' columns; every party keeps the coefficients of its own."""
    holder, n = label_holder_of(columns), len(columns.training)
    if schema.n_classes == 1:
        raise InputError("the label has one class only; there is nothing to tell apart")
    terms = _terms(federation, columns, schema, alpha, tol)
    offered: list[Blob] = []  # sums of the offered directions
    steps: list[Blob] = []  # the residuals, sealed
    widest = schema.n_classes if schema.n_classes > 2 else 1

    def check_reply(site: str, reply: Unexplained) -> None:
        if not reply.broken and not (1 <= reply.width <= widest and reply.width != 2):
            raise FormatError("its predictors are not as many as the label has classes")

    def fit_offered() -> Unexplained:
        """Ask the label holder to fit all offered directions; its residuals are added to the steps."""
        request = Explain(terms=terms[holder], label=schema.label, offered=list(offered))
        reply: Unexplained = federation.ask(request, to=[holder], check=check_reply)[holder]
        if reply.broken:
            raise FederationError(
                "what the parties offer does not fit together, so some party is wrong; the sum does not show which"
            )
        steps.append(federation.blob(reply.step))
        return reply

    unexplained = fit_offered()
    alone = not any(len(own) for party, own in columns.owners.items() if party != holder)
    most = min(max_iter, HISTORY // (8 * n * unexplained.width))
    while not (alone or unexplained.done) and len(offered) < most:
        requests = {party: OfferDirection(terms=own, steps=list(steps)) for party, own in terms.items()}
        check = partial(_check_offer, rows=n, width=unexplained.width, products=len(steps) + 1)
        offer: Offer = federation.total(requests, check=check)
        offered.append(federation.blob(wire.encode(offer)))
        unexplained = fit_offered()
    model = _keep(federation, columns, schema, terms, steps, offered)
    return Fitted(model, len(offered), alone or unexplained.done)


def _terms(
    federation: Federation, columns: Columns, schema: Schema, alpha: float, tol: float
) -> dict[str, RegressionTerms]:
    """Return what each party receives for the regression: the rows, and the schema of its columns."""
    rows, numbers = rows_blob(federation, columns.training), schema.label.classes is None
    return {
        party: RegressionTerms(rows, own_columns_blob(federation, columns, schema, party), numbers, alpha, tol)
        for party in columns.owners
    }


def _check_offer(site: str, reply: Offer, rows: int, width: int, products: int) -> None:
    for array, shape in ((reply.column, (rows, width)), (reply.products, (products,))):
        check_arrays("its direction does not match the rows", (array, shape, np.int64))
        reject(int(array.max()) >= 1 << 62 or int(array.min()) <= -(1 << 62), "what it offers is too large")


def _keep(
    federation: Federation,
    columns: Columns,
    schema: Schema,
    terms: dict[str, RegressionTerms],
    steps: list[Blob],
    offered: list[Blob],
) -> LinearModel:
    """Ask every party to keep its coefficients; return the model, with the constant from the label holder."""
    holder = label_holder_of(columns)
    determined = [federation.study, schema.hash, terms[holder].alpha, terms[holder].tol, terms[holder].rows.hash]
    model = digest(msgspec.json.encode([*determined, *(blob.hash for blob in steps)]))

    def check(site: str, reply: KeptConstant) -> None:
        if site == holder:
            check_kept(reply.present, reply.constant, reply.unit, schema.n_classes)
        elif reply.present.size or reply.constant.size or reply.unit.size:
            raise FormatError("it sent the constant without holding the label")

    requests = {
        party: KeepCoefficients(terms=own, steps=steps, model=model, label=None, offered=[])
        for party, own in terms.items()
    }
    requests[holder] = msgspec.structs.replace(requests[holder], label=schema.label, offered=offered)
    kept: KeptConstant = federation.ask(requests, check=check)[holder]
    sizes = tuple(len(own) for own in columns.owners.values())
    return LinearModel(model, schema, tuple(terms), sizes, holder, kept.present, kept.constant, kept.unit)
