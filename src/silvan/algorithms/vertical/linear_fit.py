"""Training of a linear or logistic regression of columns that stay with their parties.

The label holder fits its own columns and sends the others the residuals of all rows, sealed so that the coordinator
carries what it cannot read. Every other party answers with a step of Newton's method in its own columns: what it would
add to each row's predictor. Only the sum over the parties is seen (``total``), and that by the label holder alone,
whose own part hides it from the coordinator. The label holder takes the sum as one more column to fit (``solver.py``),
and so on, until a step would change less than the tolerance. Two rounds a step, and two more; the result is the ridge
regression of the joined table.

What parties learn: every party learns the label, since a residual shows it; the label holder learns as many
combinations of the others' columns as there were steps. See docs/linear.md.

Every question repeats all steps so far, as blobs, so a party that remembers nothing can answer it: it goes through the
steps again. What a party remembers is a cache.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.coded_names import named_columns, named_label
from silvan.algorithms.vertical.columns import encode_labels, encode_rows, label_holder_of, own_columns_blob, rows_blob
from silvan.algorithms.vertical.design_matrix import Design
from silvan.algorithms.vertical.linear_shares import ROOM, LinearModel, LinearShare, check_kept, linear_key, to_whole
from silvan.algorithms.vertical.solver import Block, MisfitError, ReducedColumns, Regression, RegressionTarget
from silvan.data.schema import Label, Schema
from silvan.errors import FederationError, FormatError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.agreement import Columns
from silvan.federation.bound import Agreed, Derived, Each, Fixed
from silvan.federation.cache import CacheKey
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, ProtocolPosition, Reply, Request, Total
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.aggregation.counters import offsets
from silvan.privacy.identity.identity import places_of
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal
from silvan.util.threads import algebra_threads

HISTORY = 1 << 28
"""Most bytes of offered columns, which are kept so that a party can begin anew; no more steps are made then."""

FRACTION = 28
"""Bits after the point of columns and residuals."""

PER_ROW = 36
"""Bits after the point of products, which are sent divided by the number of rows."""

SHARPEST = 27
"""Most bits by which a small direction is scaled up; no tolerance is finer."""

_EXACT = 2.0**-6
"""Columns smaller than that are too coarse in fixed point: they are asked for again, scaled up."""

_INNER = 0.1
"""The label holder's own tolerance, as a part of that of the whole regression."""


# -- messages


class RegressionTerms(msgspec.Struct, frozen=True):
    """What a regression is of, as one party is told it."""

    rows: Agreed[Blob]
    columns: Agreed[Blob]  # the schema of the party's own
    numbers: Agreed[bool]
    alpha: Fixed[float]
    tol: Fixed[float]


class SealedStep(msgspec.Struct, frozen=True):
    """What the label holder tells the parties, sealed: what is unexplained, and how far to go in each direction."""

    residuals: np.ndarray  # int64 (rows, predictors); no rows in the last step
    taken: np.ndarray  # (directions so far,)
    sharper: int  # bits by which to make the next direction larger


class Offer(Reply, frozen=True, kw_only=True):
    """What a party would add to each row's predictors, and products of its directions."""

    column: np.ndarray  # (rows, predictors)
    products: np.ndarray  # (2 + earlier directions,)


class Unexplained(Reply, frozen=True, kw_only=True):
    """What the label holder cannot explain yet, sealed for the parties."""

    step: bytes
    width: int  # predictors a row has
    done: bool
    broken: bool


class Explain(Ask[Unexplained], frozen=True, kw_only=True):
    """What the label holder cannot explain by its own columns and what the others have offered so far."""

    terms: Each[RegressionTerms]
    label: Agreed[Label]
    offered: Derived[list[Blob]]

    def position(self) -> ProtocolPosition:
        """Return where the question stands: after all that was offered."""
        return ProtocolPosition("explaining", tuple(blob.hash for blob in self.offered))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question is about the same rows and columns as before."""
        return _same_as_before(traces, further, wire.encode(self.terms) + msgspec.json.encode(self.label))


class OfferDirection(Total[Offer], frozen=True, kw_only=True):
    """A step that the party's columns could take towards what is unexplained."""

    terms: Each[RegressionTerms]
    steps: Derived[list[Blob]]

    def position(self) -> ProtocolPosition:
        """Return where the question stands: after all steps; the first is the label holder's alone."""
        return ProtocolPosition("directions", tuple(blob.hash for blob in self.steps[1:]))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question is about the same rows and columns as before."""
        return _same_as_before(
            traces, further, wire.encode(self.terms) + b"".join(b.hash.encode() for b in self.steps[:1])
        )

    def alike(self) -> bytes:
        """Return all but the columns, which are the party's own."""
        terms = msgspec.structs.replace(self.terms, columns=Blob(""))
        return wire.encode(msgspec.structs.replace(self, terms=terms))


def _same_as_before(traces: list[bytes], further: bool, same: bytes) -> bytes | None:
    trace = digest(same).encode()
    return trace if further and all(other == trace for other in traces) else None


class KeptConstant(Reply, frozen=True, kw_only=True):
    """The constant, from the label holder; nothing from others."""

    present: np.ndarray
    constant: np.ndarray
    unit: np.ndarray


class KeepCoefficients(Ask[KeptConstant], frozen=True, kw_only=True):
    """Keep the coefficients of the party's own columns; the label holder tells the constant."""

    once: ClassVar[bool] = True  # one model is kept in a task

    terms: Each[RegressionTerms]
    steps: Derived[list[Blob]]
    model: Derived[str]
    label: Agreed[Label | None]  # for the label holder, as is what was offered
    offered: Derived[list[Blob]]


# -- at every party


def prepare(party: Party, terms: RegressionTerms) -> tuple[Design, ReducedColumns]:
    """Return the design of the party's columns, and the columns of the rows to learn from."""

    def reduce() -> tuple[Design, ReducedColumns]:
        schema = named_columns(party, terms.columns)
        design, X = Design.of(encode_rows(party, schema, terms.rows), schema)
        return design, ReducedColumns.of(X)

    return party.cache.once(
        CacheKey[tuple[Design, ReducedColumns]]("design", terms.columns.hash, terms.rows.hash), reduce
    )


def check_terms(terms: RegressionTerms) -> None:
    """Raise an error for a penalty or tolerance that is out of range."""
    if not (0 < terms.alpha < np.inf and 2.0**-SHARPEST <= terms.tol < 1):
        raise FormatError("the penalty or the tolerance is not possible")


# -- at a party without the label


@dataclass
class OfferedDirections:
    """The directions that a party has offered so far, and the steps that asked for them."""

    block: Block
    done: list[str] = field(default_factory=list)
    offer: tuple[np.ndarray, np.ndarray] | None = None  # the last one


def follow_steps(party: Party, terms: RegressionTerms, steps: list[Blob]) -> OfferedDirections:
    """Work out the direction that the last step asks for; earlier ones again if they are forgotten."""
    hashes = [blob.hash for blob in steps]
    known = party.cache.once(
        CacheKey[OfferedDirections]("directions", digest(wire.encode(terms))),
        lambda: OfferedDirections(Block(prepare(party, terms)[1].X, terms.alpha, terms.numbers)),
        lambda known: known.done == hashes[: len(known.done)],
    )
    for hash_ in hashes[len(known.done) :]:
        step = open_step(party, hash_, len(known.block.X), len(known.done))
        if not terms.numbers and np.abs(step.residuals).max(initial=0) > 1 << FRACTION:
            raise FormatError("the residuals are not those of classes")
        known.offer = known.block.offer(step.residuals * 2.0**-FRACTION, step.taken, 2.0**step.sharper)
        known.done.append(hash_)
    return known


def open_step(party: Party, hash_: str, rows: int, directions: int, *, last: bool = False) -> SealedStep:
    """Unseal and check a step; the last one need not have residuals."""
    step = wire.decode(unseal(party.key_for("residuals"), party.blob(hash_), LABEL_HOLDER), SealedStep)
    residuals, taken = step.residuals, step.taken
    width = residuals.shape[-1] if residuals.ndim else 0
    n = 0 if last and not residuals.size else rows
    complaint = "the residuals do not match the rows, or the steps the directions"
    check_arrays(complaint, (residuals, (n, width), np.int64), (taken, (directions,), np.float64))
    if not width or not np.isfinite(taken).all() or not 0 <= step.sharper <= SHARPEST:
        raise FormatError("the step is not possible")
    return step


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


def pads(party: Party, steps: list[str], rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers that only the label holder knows and adds to a sum to hide it; the same for the same question."""
    seed = party.secret_for(f"pads {' '.join(steps)}")[:32]
    words = (offsets(seed, rows * width + len(steps) + 1) >> np.uint64(64 - ROOM)).astype(np.int64)
    return words[: rows * width].reshape(rows, width), words[rows * width :]


@dataclass
class LabelFit:
    """The label holder's regression so far."""

    regression: Regression
    present: np.ndarray
    unit: np.ndarray
    tol: float
    left: float = np.inf  # by how much the last direction would have changed predictors
    sharper: int = 0  # by how many bits to scale the next one up, so that it is about 1
    used: list[int] = field(default_factory=list)  # which directions were taken
    done: list[str] = field(default_factory=list)  # hashes of what was offered
    steps: list[str] = field(default_factory=list)  # hashes of the steps that were sent
    sealed: bytes = b""  # the last step

    def add_offer(self, party: Party, offer: Offer) -> None:
        """Add what the others offer in sum as one more column, if it is large enough for fixed point."""
        n, width = len(self.regression.X), self.regression.target.width
        hidden = pads(party, self.steps, n, width)
        for array, pad in zip((offer.column, offer.products), hidden, strict=True):
            check_arrays("what was offered does not match the rows", (array, pad.shape, np.int64))
            array -= pad
        products = offer.products * (n * 2.0**-PER_ROW)
        if products[0] < -n * _EXACT**4:
            raise MisfitError  # more than rounding
        size = float(np.sqrt(max(float(products[0]), 0.0) / n))
        self.left = size * 2.0**-self.sharper
        if size >= _EXACT and not self.finished:
            self.regression.add_column(offer.column * 2.0**-FRACTION, products[[1, *(2 + i for i in self.used)]])
            self.used.append(len(self.done))
            self.regression.fit(_INNER * self.left)
        self.sharper = int(np.clip(-np.floor(np.log2(max(self.left, 1e-300))), 0, SHARPEST))

    @property
    def taken(self) -> np.ndarray:
        """How far to go in each direction; 0 for one that was not taken."""
        taken = np.zeros(len(self.steps))
        taken[self.used] = self.regression.theta.taken
        return taken

    @property
    def finished(self) -> bool:
        """Whether a further direction would change less than the tolerance."""
        return self.left <= self.tol

    def seal_step(self, party: Party) -> None:
        """Seal the next step for the parties; it has no residuals if it is the last."""
        residuals = self.regression.residuals()[: 0 if self.finished else None]
        step = SealedStep(to_whole(residuals, FRACTION), self.taken, self.sharper)
        self.sealed = seal(party.key_for("residuals"), wire.encode(step))
        self.steps.append(digest(self.sealed))


def explain_label(party: Party, terms: RegressionTerms, label: Label, offered: list[Blob]) -> LabelFit:
    """Fit the label by all that was offered, from the beginning if it is forgotten."""
    check_terms(terms)
    if terms.numbers != (label.classes is None):
        raise FormatError("the label is of another kind")
    key = CacheKey[LabelFit]("explaining", digest(wire.encode(terms) + msgspec.json.encode(label)))
    hashes = [blob.hash for blob in offered]
    fit: LabelFit | None = party.cache.pop(key, None)  # one that fails half-way is not to be met again
    if fit is None or fit.done != hashes[: len(fit.done)]:
        fit = _begin(party, terms, label)
    for hash_ in hashes[len(fit.done) :]:
        fit.add_offer(party, wire.decode(party.blob(hash_), Offer))
        fit.seal_step(party)
        fit.done.append(hash_)
    party.cache[key] = fit
    return fit


def _begin(party: Party, terms: RegressionTerms, label: Label) -> LabelFit:
    target = make_target(encode_labels(party, named_label(party, label), terms.rows), label)
    regression = Regression(prepare(party, terms)[1].X, target.target, terms.alpha, target.start)
    regression.fit(_INNER * terms.tol)
    fit = LabelFit(regression, target.present, target.unit, terms.tol)
    fit.seal_step(party)
    return fit


class LabelTarget(NamedTuple):
    """The label as it is fitted, constants to begin with, the classes that occur, and the unit of numbers."""

    target: RegressionTarget
    start: np.ndarray
    present: np.ndarray
    unit: np.ndarray  # mean and deviation


def make_target(y: np.ndarray, label: Label) -> LabelTarget:
    """Make the target of an encoded label; refuse one class alone."""
    if label.classes is None:
        mean, deviation = float(y.mean()), float(y.std()) or 1.0
        target = RegressionTarget(((y - mean) / deviation)[:, None], True)
        return LabelTarget(target, np.zeros(1), np.zeros(0, np.int64), np.array([mean, deviation]))
    present, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(present) < 2:
        raise RefusedError("all rows to learn from are of one class")
    logs = np.log(counts)
    if len(present) == 2:
        members, start = codes[:, None].astype(np.float64), logs[1:] - logs[:1]
    else:
        members, start = np.eye(len(present))[codes], logs - logs.mean()
    return LabelTarget(RegressionTarget(members, False), start, present.astype(np.int64), np.array([0.0, 1.0]))


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
def keep_coefficients(site: Site, request: KeepCoefficients) -> KeptConstant:
    """Write the party's share of the model to its store."""
    party, terms = party_of(site), request.terms
    check_terms(terms)
    with algebra_threads(party.n_jobs):
        design, columns = prepare(party, terms)
        kept = KeptConstant(present=np.zeros(0, np.int64), constant=np.zeros(0), unit=np.zeros(0))
        if request.label is not None:
            schema = Schema(design.schema.features, named_label(party, request.label))
            design = msgspec.structs.replace(design, schema=schema)
            fit = explain_label(party, terms, request.label, request.offered)
            own = fit.regression.theta.own
            kept, found = KeptConstant(present=fit.present, constant=own[-1], unit=fit.unit), own[:-1]
        elif request.steps:
            *before, last = request.steps
            step = open_step(party, last.hash, len(columns.X), len(before), last=True)
            found = follow_steps(party, terms, before).block.coefficients(step.taken, step.residuals.shape[1])
        else:
            raise FormatError("there is no step to follow")
        share = LinearShare(request.model, party.name, design, columns.expand(found))
    party.store.put(linear_key(request.model), share.to_bytes())
    return kept


# -- in one place


def fit_joined_rows(
    X: np.ndarray, y: np.ndarray, schema: Schema, alpha: float, tol: float
) -> tuple[LinearModel, LinearShare]:
    """Fit the regression of encoded rows that are all in one place: the baseline."""
    design, columns = Design.of(X, schema)
    reduced = ReducedColumns.of(columns)
    found = make_target(y, schema.label)
    regression = Regression(reduced.X, found.target, alpha, found.start)
    regression.fit(_INNER * tol)
    model = LinearModel("", schema, ("",), (X.shape[1],), "", found.present, regression.theta.own[-1], found.unit)
    return model, LinearShare("", "", design, reduced.expand(regression.theta.own[:-1]))


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
    holder, n = label_holder_of(columns), len(columns.training)
    if schema.n_classes == 1:
        raise InputError("the label has one class only; there is nothing to tell apart")
    terms = _terms(federation, columns, schema, alpha, tol)
    offered: list[Blob] = []  # sums of what the others offered
    steps: list[Blob] = []  # what the label holder could not explain, sealed
    widest = schema.n_classes if schema.n_classes > 2 else 1

    def check_reply(site: str, reply: Unexplained) -> None:
        if not reply.broken and not (1 <= reply.width <= widest and reply.width != 2):
            raise FormatError("its predictors are not as many as the label has classes")

    def fit_offered() -> Unexplained:
        """Ask the label holder to fit all that was offered; what it cannot explain is added to the steps."""
        request = Explain(terms=terms[holder], label=schema.label, offered=list(offered))
        reply: Unexplained = federation.ask(request, to=[holder], check=check_reply)[holder]
        if reply.broken:
            raise FederationError(
                "what the parties offer does not fit together, so some party answers nonsense; from a sum nobody can "
                "tell which"
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
    """Return what each party is told of the regression: the rows, and the schema of its own columns."""
    rows, numbers = rows_blob(federation, columns.training), schema.label.classes is None
    return {
        party: RegressionTerms(rows, own_columns_blob(federation, columns, schema, party), numbers, alpha, tol)
        for party in columns.owners
    }


def _check_offer(site: str, reply: Offer, rows: int, width: int, products: int) -> None:
    for array, shape in ((reply.column, (rows, width)), (reply.products, (products,))):
        check_arrays("what it offers does not match the rows", (array, shape, np.int64))
        if int(array.max()) >= 1 << 62 or int(array.min()) <= -(1 << 62):
            raise FormatError("what it offers is too large")


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
            raise FormatError("it speaks of the constant and does not hold the label")

    requests = {
        party: KeepCoefficients(terms=own, steps=steps, model=model, label=None, offered=[])
        for party, own in terms.items()
    }
    requests[holder] = msgspec.structs.replace(requests[holder], label=schema.label, offered=offered)
    kept: KeptConstant = federation.ask(requests, check=check)[holder]
    sizes = tuple(len(own) for own in columns.owners.values())
    return LinearModel(model, schema, tuple(terms), sizes, holder, kept.present, kept.constant, kept.unit)
