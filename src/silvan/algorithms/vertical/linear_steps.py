"""The steps of a linear regression across parties, at the label holder and at the others.

Every question repeats all steps so far, as blobs, so a party that remembers nothing can answer it: it goes through the
steps again. What a party remembers is a cache.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.vertical.coded_names import named_columns, named_label
from silvan.algorithms.vertical.columns import encode_labels, encode_rows
from silvan.algorithms.vertical.design_matrix import Design
from silvan.algorithms.vertical.linear_shares import ROOM, LinearModel, LinearShare, to_whole
from silvan.algorithms.vertical.solver import Block, MisfitError, ReducedColumns, Regression, Target
from silvan.data.schema import Label, Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.cache import CacheKey
from silvan.federation.message import Blob, Reply
from silvan.federation.party import Party
from silvan.federation.store import digest
from silvan.privacy.aggregation.counters import offsets
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal

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


class Terms(msgspec.Struct, frozen=True):
    """What a regression is of, as one party is told it."""

    rows: Blob
    schema: Blob  # of the party's own columns
    numbers: bool
    alpha: float
    tol: float


class Step(msgspec.Struct, frozen=True):
    """What the label holder tells the parties, sealed: what is unexplained, and how far to go in each direction."""

    residuals: np.ndarray  # int64 (rows, predictors); no rows in the last step
    taken: np.ndarray  # (directions so far,)
    sharper: int  # bits by which to make the next direction larger


class Offer(Reply, frozen=True, kw_only=True):
    """What a party would add to each row's predictors, and products of its directions."""

    column: np.ndarray  # (rows, predictors)
    products: np.ndarray  # (2 + earlier directions,)


# -- at every party


def prepare(party: Party, terms: Terms) -> tuple[Design, ReducedColumns]:
    """Return the design of the party's columns, and the columns of the rows to learn from."""

    def reduce() -> tuple[Design, ReducedColumns]:
        schema = named_columns(party, terms.schema)
        design, X = Design.of(encode_rows(party, schema, terms.rows), schema)
        return design, ReducedColumns.of(X)

    return party.cache.once(
        CacheKey[tuple[Design, ReducedColumns]]("design", terms.schema.hash, terms.rows.hash), reduce
    )


def check_terms(terms: Terms) -> None:
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


def follow_steps(party: Party, terms: Terms, steps: list[Blob]) -> OfferedDirections:
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


def open_step(party: Party, hash_: str, rows: int, directions: int, *, last: bool = False) -> Step:
    """Unseal and check a step; the last one need not have residuals."""
    step = wire.decode(unseal(party.key_for("residuals"), party.blob(hash_), LABEL_HOLDER), Step)
    residuals, taken = step.residuals, step.taken
    if residuals.ndim != 2 or residuals.dtype != np.int64 or not residuals.shape[1]:
        raise FormatError("the residuals are of another shape")
    if len(residuals) != rows and not (last and not len(residuals)):
        raise FormatError("the residuals are not as many as the rows")
    if taken.shape != (directions,) or taken.dtype != np.float64 or not np.isfinite(taken).all():
        raise FormatError("the steps do not match the directions")
    if not 0 <= step.sharper <= SHARPEST:
        raise FormatError("the step is not possible")
    return step


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
            if array.shape != pad.shape or array.dtype != np.int64:
                raise FormatError("what was offered does not match the rows")
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
        step = Step(to_whole(residuals, FRACTION), self.taken, self.sharper)
        self.sealed = seal(party.key_for("residuals"), wire.encode(step))
        self.steps.append(digest(self.sealed))


def explain_label(party: Party, terms: Terms, label: Label, offered: list[Blob]) -> LabelFit:
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


def _begin(party: Party, terms: Terms, label: Label) -> LabelFit:
    target = make_target(encode_labels(party, named_label(party, label), terms.rows), label)
    regression = Regression(prepare(party, terms)[1].X, target.target, terms.alpha, target.start)
    regression.fit(_INNER * terms.tol)
    fit = LabelFit(regression, target.present, target.unit, terms.tol)
    fit.seal_step(party)
    return fit


class LabelTarget(NamedTuple):
    """The label as it is fitted, constants to begin with, the classes that occur, and the unit of numbers."""

    target: Target
    start: np.ndarray
    present: np.ndarray
    unit: np.ndarray  # mean and deviation


def make_target(y: np.ndarray, label: Label) -> LabelTarget:
    """Make the target of an encoded label; refuse one class alone."""
    if label.classes is None:
        mean, deviation = float(y.mean()), float(y.std()) or 1.0
        target = Target(((y - mean) / deviation)[:, None], True)
        return LabelTarget(target, np.zeros(1), np.zeros(0, np.int64), np.array([mean, deviation]))
    present, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(present) < 2:
        raise RefusedError("all rows to learn from are of one class")
    logs = np.log(counts)
    if len(present) == 2:
        members, start = codes[:, None].astype(np.float64), logs[1:] - logs[:1]
    else:
        members, start = np.eye(len(present))[codes], logs - logs.mean()
    return LabelTarget(Target(members, False), start, present.astype(np.int64), np.array([0.0, 1.0]))


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
