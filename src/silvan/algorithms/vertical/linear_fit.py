"""Training of a linear or logistic regression of columns that stay with their parties.

The label holder fits its own columns and sends the others the residuals of all rows, sealed so that the coordinator
carries what it cannot read. Every other party answers with a step of Newton's method in its own columns: what it would
add to each row's predictor. Only the sum over the parties is seen (``total``), and that by the label holder alone,
whose own part hides it from the coordinator. The label holder takes the sum as one more column to fit (``solver.py``),
and so on, until a step would change less than the tolerance. Two rounds a step, and two more; the result is the ridge
regression of the joined table.

What parties learn: every party learns the label, since a residual shows it; the label holder learns as many
combinations of the others' columns as there were steps. See docs/linear.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import msgspec
import numpy as np

from silvan.algorithms.vertical.coded_names import named_label
from silvan.algorithms.vertical.columns import rows_blob
from silvan.algorithms.vertical.linear_shares import LinearModel, LinearShare, check_kept, linear_key, to_whole
from silvan.algorithms.vertical.linear_steps import (
    FRACTION,
    PER_ROW,
    Offer,
    Terms,
    check_terms,
    explain_label,
    follow_steps,
    open_step,
    pads,
    prepare,
)
from silvan.algorithms.vertical.solver import MisfitError
from silvan.data.schema import Label, Schema
from silvan.errors import FederationError, FormatError, InputError
from silvan.federation import wire
from silvan.federation.agreement import Columns
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Course, Reply, Request, Total
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.identity.identity import places_of
from silvan.util.threads import algebra_threads

HISTORY = 1 << 28
"""Most bytes of offered columns, which are kept so that a party can begin anew; no more steps are made then."""

# -- messages


class Unexplained(Reply, frozen=True, kw_only=True):
    """What the label holder cannot explain yet, sealed for the parties."""

    step: bytes
    width: int  # predictors a row has
    done: bool
    broken: bool


class Explain(Ask[Unexplained], frozen=True, kw_only=True):
    """What the label holder cannot explain by its own columns and what the others have offered so far."""

    terms: Terms
    label: Label
    offered: list[Blob]

    def course(self) -> Course:
        """Return where the question stands: after all that was offered."""
        return Course("explaining", tuple(blob.hash for blob in self.offered))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question is about the same rows and columns as before."""
        return _same_as_before(traces, further, wire.encode(self.terms) + msgspec.json.encode(self.label))


class OfferDirection(Total[Offer], frozen=True, kw_only=True):
    """A step that the party's columns could take towards what is unexplained."""

    terms: Terms
    steps: list[Blob]

    def course(self) -> Course:
        """Return where the question stands: after all steps; the first is the label holder's alone."""
        return Course("directions", tuple(blob.hash for blob in self.steps[1:]))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question is about the same rows and columns as before."""
        return _same_as_before(
            traces, further, wire.encode(self.terms) + b"".join(b.hash.encode() for b in self.steps[:1])
        )

    def alike(self) -> bytes:
        """Return all but the columns, which are the party's own."""
        terms = msgspec.structs.replace(self.terms, schema=Blob(""))
        return wire.encode(msgspec.structs.replace(self, terms=terms))


def _same_as_before(traces: list[bytes], further: bool, same: bytes) -> bytes | None:
    trace = digest(same).encode()
    return trace if further and all(other == trace for other in traces) else None


class Kept(Reply, frozen=True, kw_only=True):
    """The constant, from the label holder; nothing from others."""

    present: np.ndarray
    constant: np.ndarray
    unit: np.ndarray


class KeepCoefficients(Ask[Kept], frozen=True, kw_only=True):
    """Keep the coefficients of the party's own columns; the label holder tells the constant."""

    once: ClassVar[bool] = True  # one model is kept in a task

    terms: Terms
    steps: list[Blob]
    model: str
    label: Label | None  # for the label holder, as is what was offered
    offered: list[Blob]


# -- at a party


@answers(OfferDirection)
def offer_direction(site: Site, request: OfferDirection) -> Offer:
    """Offer a direction; the label holder offers none but adds what hides the sum."""
    party, terms = party_of(site), request.terms
    check_terms(terms)
    if not request.steps:
        raise FormatError("there is no step to follow")
    if party.has_label:
        rows = len(places_of(party, terms.rows))
        step = open_step(party, request.steps[-1].hash, rows, len(request.steps) - 1)
        width = step.residuals.shape[1]
        column, products = pads(party, [blob.hash for blob in request.steps], rows, width)
        return Offer(column=column, products=products)
    with algebra_threads(party.n_jobs):
        offer = follow_steps(party, terms, request.steps).offer
    assert offer is not None  # noqa: S101  there is a step
    return Offer(column=to_whole(offer[0], FRACTION), products=to_whole(offer[1] / len(offer[0]), PER_ROW))


# -- at the label holder


@answers(Explain)
def explain(site: Site, request: Explain) -> Unexplained:
    """Fit what was offered and return, sealed, what is still unexplained."""
    party = party_of(site)
    try:
        with algebra_threads(party.n_jobs):
            fit = explain_label(party, request.terms, request.label, request.offered)
    except MisfitError:
        return Unexplained(step=b"", width=0, done=False, broken=True)
    width = fit.regression.target.width
    return Unexplained(step=fit.sealed, width=width, done=fit.finished, broken=False)


# -- at every party, at the end


@answers(KeepCoefficients)
def keep_coefficients(site: Site, request: KeepCoefficients) -> Kept:
    """Write the party's share of the model to its store."""
    party, terms = party_of(site), request.terms
    check_terms(terms)
    with algebra_threads(party.n_jobs):
        kept, share = _share(party, request)
    party.store.put(linear_key(request.model), share.to_bytes())
    return kept


def _share(party: Party, request: KeepCoefficients) -> tuple[Kept, LinearShare]:
    """Return what the coordinator is told, and the party's share: the coefficients of its columns."""
    terms = request.terms
    design, columns = prepare(party, terms)
    kept = Kept(present=np.zeros(0, np.int64), constant=np.zeros(0), unit=np.zeros(0))
    if request.label is not None:
        schema = Schema(design.schema.features, named_label(party, request.label))
        design = msgspec.structs.replace(design, schema=schema)
        fit = explain_label(party, terms, request.label, request.offered)
        own = fit.regression.theta.own
        kept, found = Kept(present=fit.present, constant=own[-1], unit=fit.unit), own[:-1]
    elif request.steps:
        *before, last = request.steps
        step = open_step(party, last.hash, len(columns.X), len(before), last=True)
        found = follow_steps(party, terms, before).block.coefficients(step.taken, step.residuals.shape[1])
    else:
        raise FormatError("there is no step to follow")
    return kept, LinearShare(request.model, party.name, design, columns.expand(found))


# -- at the coordinator


ASKS: tuple[type[Request], ...] = (Explain, OfferDirection, KeepCoefficients)
"""Kinds of messages that fitting asks."""


@dataclass(frozen=True)
class Fitted:
    """A model, how many steps it took, and whether a further one would have changed nothing."""

    model: LinearModel
    steps: int
    converged: bool


def fit(federation: Federation, columns: Columns, schema: Schema, *, alpha: float, tol: float, max_iter: int) -> Fitted:
    """Fit the regression of all parties' columns; every party keeps the coefficients of its own."""
    holder, n = columns.label_holder, len(columns.training)
    if holder is None:
        raise InputError("no party holds the label, so there is nothing to learn; these rows can only be scored")
    if schema.n_classes == 1:
        raise InputError("the label has one class only; there is nothing to tell apart")
    terms = _terms(federation, columns, schema, alpha, tol)
    offered: list[Blob] = []  # sums of what the others offered
    steps: list[Blob] = []  # what the label holder could not explain, sealed
    explain = partial(_explain, federation, holder, terms[holder], schema)
    unexplained = explain(offered, steps)
    alone = not any(len(own) for party, own in columns.owners.items() if party != holder)
    most = min(max_iter, HISTORY // (8 * n * unexplained.width))
    while not (alone or unexplained.done) and len(offered) < most:
        requests = {party: OfferDirection(terms=own, steps=list(steps)) for party, own in terms.items()}
        check = partial(_check_offer, rows=n, width=unexplained.width, products=len(steps) + 1)
        offer: Offer = federation.total(requests, check=check)
        offered.append(federation.blob(wire.encode(offer)))
        unexplained = explain(offered, steps)
    model = _keep(federation, columns, schema, terms, steps, offered)
    return Fitted(model, len(offered), alone or unexplained.done)


def _explain(
    federation: Federation, holder: str, terms: Terms, schema: Schema, offered: list[Blob], steps: list[Blob]
) -> Unexplained:
    """Ask the label holder to fit all that was offered; what it cannot explain is added to the steps."""
    request = Explain(terms=terms, label=schema.label, offered=list(offered))
    reply: Unexplained = federation.ask(
        request, to=[holder], check=lambda _, reply: _check_reply(reply, schema.n_classes)
    )[holder]
    if reply.broken:
        raise FederationError(
            "what the parties offer does not fit together, so some party answers nonsense; from a sum nobody can "
            "tell which"
        )
    steps.append(federation.blob(reply.step))
    return reply


def _terms(federation: Federation, columns: Columns, schema: Schema, alpha: float, tol: float) -> dict[str, Terms]:
    """Return what each party is told of the regression: the rows, and the schema of its own columns."""
    rows, terms = rows_blob(federation, columns.training), {}
    for party, own in columns.owners.items():
        # classes are the label holder's business
        mine = Schema(schema.features[own.start : own.stop], Label(schema.label.name))
        blob = federation.blob(mine.to_json().encode())
        terms[party] = Terms(rows, blob, schema.label.classes is None, alpha, tol)
    return terms


def _check_reply(reply: Unexplained, n_classes: int) -> None:
    most = n_classes if n_classes > 2 else 1
    if not reply.broken and not (1 <= reply.width <= most and reply.width != 2):
        raise FormatError("its predictors are not as many as the label has classes")


def _check_offer(site: str, reply: Offer, rows: int, width: int, products: int) -> None:
    for array, shape in ((reply.column, (rows, width)), (reply.products, (products,))):
        if array.shape != shape or array.dtype != np.int64:
            raise FormatError("what it offers does not match the rows")
        if int(array.max()) >= 1 << 62 or int(array.min()) <= -(1 << 62):
            raise FormatError("what it offers is too large")


def _keep(
    federation: Federation,
    columns: Columns,
    schema: Schema,
    terms: dict[str, Terms],
    steps: list[Blob],
    offered: list[Blob],
) -> LinearModel:
    """Ask every party to keep its coefficients; return the model, with the constant from the label holder."""
    holder = columns.label_holder
    assert holder is not None  # noqa: S101
    determined = [federation.study, schema.hash, terms[holder].alpha, terms[holder].tol, terms[holder].rows.hash]
    model = digest(msgspec.json.encode([*determined, *(blob.hash for blob in steps)]))

    def check(site: str, reply: Kept) -> None:
        if site == holder:
            check_kept(reply.present, reply.constant, reply.unit, schema.n_classes)
        elif reply.present.size or reply.constant.size or reply.unit.size:
            raise FormatError("it speaks of the constant and does not hold the label")

    requests = {
        party: KeepCoefficients(terms=own, steps=steps, model=model, label=None, offered=[])
        for party, own in terms.items()
    }
    requests[holder] = msgspec.structs.replace(requests[holder], label=schema.label, offered=offered)
    kept: Kept = federation.ask(requests, check=check)[holder]
    sizes = tuple(len(own) for own in columns.owners.values())
    return LinearModel(model, schema, tuple(terms), sizes, holder, kept.present, kept.constant, kept.unit)
