"""The parties' and the label holder's steps in a vertical regression (``linear_fit.py``).

Every request repeats all steps so far, as blobs, so a party without any state can reply by going through the steps
again. A party's state is only a cache.
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.coded_names import named_columns, named_label
from silvan.algorithms.vertical.columns import encode_labels, encode_rows
from silvan.algorithms.vertical.linear_shares import ROOM, Design, LinearShare, linear_key, to_whole
from silvan.algorithms.vertical.solver import Block, MisfitError, ReducedColumns, Regression, RegressionTarget
from silvan.data.schema import Label, Schema
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.message import (
    Agreed,
    Ask,
    Blob,
    Derived,
    Each,
    Fixed,
    ProtocolPosition,
    Reply,
    SummedReply,
    Total,
)
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey, digest
from silvan.privacy.aggregation.counters import offsets
from silvan.privacy.identity.identity import places_of
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal
from silvan.util.threads import algebra_threads

FRACTION = 28
"""Fractional bits of columns and residuals."""

PER_ROW = 36
"""Fractional bits of products, which are sent divided by the number of rows."""

SHARPEST = 27
"""Maximum number of bits for scaling up a small direction; no tolerance is finer."""

_EXACT = 2.0**-6
"""Smaller columns are too coarse in fixed point: they are requested again, scaled up."""

INNER = 0.1
"""The label holder's tolerance, as a fraction of that of the whole regression."""


# -- messages


class RegressionTerms(msgspec.Struct, frozen=True):
    """The inputs of a regression, as one party sees them."""

    rows: Agreed[Blob]
    columns: Agreed[Blob]  # the schema of the party's columns
    numbers: Agreed[bool]
    alpha: Fixed[float]
    tol: Fixed[float]


class SealedStep(msgspec.Struct, frozen=True):
    """What the label holder sends the parties, sealed: the residuals, and the step size in each direction."""

    residuals: np.ndarray  # int64 (rows, predictors); no rows in the last step
    taken: np.ndarray  # (directions so far,)
    sharper: int  # bits by which to scale up the next direction


class Offer(SummedReply, frozen=True, kw_only=True):
    """A party's proposed addition to each row's predictors, and products of its directions."""

    column: np.ndarray  # (rows, predictors)
    products: np.ndarray  # (2 + earlier directions,)


class Unexplained(Reply, frozen=True, kw_only=True):
    """The label holder's residuals, sealed for the parties."""

    step: bytes
    width: int  # predictors per row
    done: bool
    broken: bool


class Explain(Ask[Unexplained], frozen=True, kw_only=True):
    """The residuals after the label holder's columns and the directions offered so far."""

    terms: Each[RegressionTerms]
    label: Agreed[Label]
    offered: Derived[list[Blob]]

    def position(self) -> ProtocolPosition:
        """Return the position of the request: after all offered directions."""
        return ProtocolPosition("explaining", tuple(blob.hash for blob in self.offered))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the request is about the same rows and columns as before."""
        return _same_as_before(traces, further, wire.encode(self.terms) + msgspec.json.encode(self.label))


class OfferDirection(Total[Offer], frozen=True, kw_only=True):
    """A direction in the party's columns that reduces the residuals."""

    terms: Each[RegressionTerms]
    steps: Derived[list[Blob]]

    def position(self) -> ProtocolPosition:
        """Return the position of the request: after all steps; the first involves only the label holder."""
        return ProtocolPosition("directions", tuple(blob.hash for blob in self.steps[1:]))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the request is about the same rows and columns as before."""
        return _same_as_before(
            traces, further, wire.encode(self.terms) + b"".join(b.hash.encode() for b in self.steps[:1])
        )

    def alike(self) -> bytes:
        """Return everything except the columns, which differ by party."""
        terms = msgspec.structs.replace(self.terms, columns=Blob(""))
        return wire.encode(msgspec.structs.replace(self, terms=terms))


def _same_as_before(traces: list[bytes], further: bool, same: bytes) -> bytes | None:
    trace = digest(same).encode()
    return trace if further and all(other == trace for other in traces) else None


class KeptConstant(Reply, frozen=True, kw_only=True):
    """The constant, from the label holder; empty from others."""

    present: np.ndarray
    constant: np.ndarray
    unit: np.ndarray


class KeepCoefficients(Ask[KeptConstant], frozen=True, kw_only=True):
    """Keep the coefficients of the party's columns; the label holder sends the constant."""

    once: ClassVar[bool] = True  # one model is stored per task

    terms: Each[RegressionTerms]
    steps: Derived[list[Blob]]
    model: Derived[str]
    label: Agreed[Label | None]  # for the label holder, as is what was offered
    offered: Derived[list[Blob]]


# -- at every party


def prepare(party: Party, terms: RegressionTerms) -> tuple[Design, ReducedColumns]:
    """Return the design of the party's columns, and the columns of the training rows."""

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
    """The directions that a party has offered so far, and the steps that requested them."""

    block: Block
    done: list[str] = field(default_factory=list)
    offer: tuple[np.ndarray, np.ndarray] | None = None  # the last one


def follow_steps(party: Party, terms: RegressionTerms, steps: list[Blob]) -> OfferedDirections:
    """Compute the direction that the last step requests; earlier ones again if they are not cached."""
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
    reject(not width or not np.isfinite(taken).all() or not 0 <= step.sharper <= SHARPEST, "the step is not possible")
    return step


@answers(OfferDirection)
def offer_direction(site: Site, request: OfferDirection) -> Offer:
    """Offer a direction; the label holder instead adds a mask that hides the sum."""
    party, terms = party_of(site), request.terms
    check_terms(terms)
    reject(not request.steps, "there is no step to follow")
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
    """Return numbers that only the label holder knows and adds to a sum to mask it; the same for the same request."""
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
    left: float = np.inf  # the change of predictors by the last direction
    sharper: int = 0  # number of bits to scale the next one up, so that it is about 1
    used: list[int] = field(default_factory=list)  # which directions were used
    done: list[str] = field(default_factory=list)  # hashes of offered directions
    steps: list[str] = field(default_factory=list)  # hashes of sent steps
    sealed: bytes = b""  # the last step

    def add_offer(self, party: Party, offer: Offer) -> None:
        """Add the sum of the others' directions as one more column, if it is large enough for fixed point."""
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
            self.regression.fit(INNER * self.left)
        self.sharper = int(np.clip(-np.floor(np.log2(max(self.left, 1e-300))), 0, SHARPEST))

    @property
    def taken(self) -> np.ndarray:
        """The step size in each direction; 0 for unused ones."""
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
    """Fit the label with all offered directions, from the beginning if nothing is cached."""
    check_terms(terms)
    if terms.numbers != (label.classes is None):
        raise FormatError("the label is of another kind")
    key = CacheKey[LabelFit]("explaining", digest(wire.encode(terms) + msgspec.json.encode(label)))
    hashes = [blob.hash for blob in offered]
    fit: LabelFit | None = party.cache.pop(key, None)  # a failed attempt must not be reused
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
    regression.fit(INNER * terms.tol)
    fit = LabelFit(regression, target.present, target.unit, terms.tol)
    fit.seal_step(party)
    return fit


class LabelTarget(NamedTuple):
    """The label to fit, initial constants, the classes that occur, and the unit of numbers."""

    target: RegressionTarget
    start: np.ndarray
    present: np.ndarray
    unit: np.ndarray  # mean and standard deviation


def make_target(y: np.ndarray, label: Label) -> LabelTarget:
    """Make the target of an encoded label; refuse a single class."""
    if label.classes is None:
        mean, deviation = float(y.mean()), float(y.std()) or 1.0
        target = RegressionTarget(((y - mean) / deviation)[:, None], True)
        return LabelTarget(target, np.zeros(1), np.zeros(0, np.int64), np.array([mean, deviation]))
    present, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(present) < 2:
        raise RefusedError("all training rows are of one class")
    logs = np.log(counts)
    if len(present) == 2:
        members, start = codes[:, None].astype(np.float64), logs[1:] - logs[:1]
    else:
        members, start = np.eye(len(present))[codes], logs - logs.mean()
    return LabelTarget(RegressionTarget(members, False), start, present.astype(np.int64), np.array([0.0, 1.0]))


@answers(Explain)
def explain(site: Site, request: Explain) -> Unexplained:
    """Fit the offered directions and return the sealed residuals."""
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
