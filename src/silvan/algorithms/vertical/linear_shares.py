"""A linear model in shares, and prediction by it in one round.

Every party keeps the coefficients of its own columns, the coordinator keeps the constant. To score rows every party
computes the contribution of its columns to their predictors, and only the sum over the parties is visible (``total``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.columns import encode_rows, rows_blob
from silvan.algorithms.vertical.kept_shares import check_parties, read_share
from silvan.algorithms.vertical.solver import class_probabilities
from silvan.data.schema import Schema
from silvan.errors import RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Derived, SummedReply, Total
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import SHARE as KEPT
from silvan.forest.model_in_shares import VERSION, ModelInShares, require
from silvan.forest.tensors import read_tensors, write_tensors
from silvan.util.threads import algebra_threads

_SAME = 1e-9
"""A column with a smaller standard deviation, relative to its mean, counts as constant."""


class Design(msgspec.Struct, frozen=True, dict=True):
    """How encoded features become columns: values for gaps, marked gaps, and each column's mean and scale."""

    schema: Schema
    fill: np.ndarray  # (columns before those that mark gaps,)
    gaps: np.ndarray  # bool (features,), whether a column marks where it is missing
    mean: np.ndarray  # (columns,)
    scale: np.ndarray  # (columns,), 0 for a constant column

    @classmethod
    def of(cls, X: np.ndarray, schema: Schema) -> "tuple[Design, np.ndarray]":
        """Make the design of encoded rows; return it and the rows' columns."""
        missing = np.isnan(X)
        raw = _one_hot(X, schema)
        known = ~np.isnan(raw)
        fill = np.where(known, raw, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        gaps = missing.any(axis=0) & ~missing.all(axis=0)
        whole = _filled(raw, fill, missing[:, gaps])
        mean = whole.mean(axis=0)
        whole -= mean
        deviation = np.sqrt((whole * whole).mean(axis=0))
        differs = deviation > _SAME * np.maximum(np.abs(mean), 1.0)
        scale = np.where(differs, 1.0 / np.where(differs, deviation, 1.0), 0.0)
        whole *= scale
        return cls(schema, fill, gaps, mean, scale), whole

    def apply(self, X: np.ndarray) -> np.ndarray:
        """Return the columns of encoded rows."""
        whole = _filled(_one_hot(X, self.schema), self.fill, np.isnan(X[:, self.gaps]))
        whole -= self.mean
        whole *= self.scale
        return whole

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns."""
        names = []
        for feature in self.schema.features:
            if feature.categorical:
                categories = [*(feature.categories or ()), *(["other"] if feature.other else [])]
                names += [f"{feature.name} = {category}" for category in categories]
            else:
                names.append(feature.name)
        marked = [f for f, gap in zip(self.schema.features, self.gaps, strict=True) if gap]
        return names + [f"{feature.name} is missing" for feature in marked]

    def fits(self) -> bool:
        """Return whether the arrays have the sizes that the schema requires, and are finite."""
        n = sum(f.n_codes if f.categorical else 1 for f in self.schema.features)
        shapes = {"fill": (n,), "gaps": (len(self.schema.features),)}
        if self.gaps.dtype != np.bool_ or any(getattr(self, name).shape != shape for name, shape in shapes.items()):
            return False
        width = (n + int(self.gaps.sum()),)
        return self.mean.shape == self.scale.shape == width and all(
            bool(np.isfinite(array).all()) for array in (self.fill, self.mean, self.scale)
        )


def _one_hot(X: np.ndarray, schema: Schema) -> np.ndarray:
    """Return numbers as they are, and a column of zeros and ones for each category; NaN where missing."""
    columns = []
    for values, feature in zip(X.T, schema.features, strict=True):
        if feature.categorical:
            members = (values[:, None] == np.arange(feature.n_codes)).astype(np.float64)
            members[np.isnan(values)] = np.nan
            columns.append(members)
        else:
            columns.append(values[:, None].astype(np.float64))
    return np.concatenate(columns, axis=1) if columns else np.zeros((len(X), 0))


def _filled(raw: np.ndarray, fill: np.ndarray, missing: np.ndarray) -> np.ndarray:
    return np.concatenate([np.where(np.isnan(raw), fill, raw), missing.astype(np.float64)], axis=1)


FINE = 32
"""Fractional bits of predictors."""

ROOM = 58
"""Maximum bits of a part of a sum."""

# -- messages


class Predictors(SummedReply, frozen=True, kw_only=True):
    """A party's part of each row's predictors."""

    parts: np.ndarray


class SumPredictors(Total[Predictors], frozen=True, kw_only=True):
    """The contribution of the party's columns to the predictors of some rows."""

    some_sites: ClassVar[bool] = True  # the parties of the model

    model: Derived[str]
    rows: Derived[Blob]


# -- files of the coordinator and of a party

MODEL, SHARE = "silvan linear model", "silvan linear share"

MODEL_ARRAYS = {
    "present": np.int64,  # codes of the classes that the model distinguishes
    "constant": np.float64,  # (predictors,)
    "unit": np.float64,  # (2,) mean and deviation of the label, if it is a number
}

SHARE_ARRAYS = {
    "fill": np.float64,
    "gaps": np.bool_,
    "mean": np.float64,
    "scale": np.float64,
    "coefficients": np.float64,  # (columns of the design, predictors)
}


@dataclass(frozen=True)
class LinearModel(ModelInShares):
    """What the coordinator keeps: the constant, and which party holds which columns."""

    file_format: ClassVar[str] = MODEL
    arrays: ClassVar[Mapping[str, Any]] = MODEL_ARRAYS

    present: np.ndarray
    constant: np.ndarray
    unit: np.ndarray

    @property
    def width(self) -> int:
        """Number of predictors per row."""
        return len(self.constant)

    def scores(self, predictor: np.ndarray) -> np.ndarray:
        """Return scores, given predictors without the constant: probabilities (rows, classes), or numbers (rows, 1)."""
        if not self.schema.n_classes:
            return self.unit[0] + self.unit[1] * (predictor + self.constant)
        found = class_probabilities(predictor + self.constant)
        if self.width == 1:
            found = np.concatenate([1.0 - found, found], axis=1)
        scores = np.zeros((len(predictor), self.schema.n_classes))
        scores[:, self.present] = found
        return scores

    def check_share(self, share: "LinearShare", party: str) -> None:
        """Raise an error for a share of another model, or of another party."""
        require(
            (share.model, share.party) == (self.model, party)
            and self.has_columns(party, share.design.schema)
            and share.coefficients.shape[1] == self.width,
            f"it is not the share of party {party!r}",
        )

    def check(self) -> None:
        """Raise an error unless this is a valid linear model."""
        super().check()
        check_kept(self.present, self.constant, self.unit, self.schema.n_classes)


def check_kept(present: np.ndarray, constant: np.ndarray, unit: np.ndarray, n_classes: int) -> None:
    """Raise an error unless this is valid as the label holder's part of a model."""
    n = present.size
    kinds = present.dtype == np.int64 and constant.dtype == unit.dtype == np.float64
    require(kinds and present.ndim == constant.ndim == 1 and unit.shape == (2,), "its constant")
    require(bool(np.isfinite(constant).all() and np.isfinite(unit).all()), "its constant")
    require(constant.size == (1 if n in (0, 2) else n), "its classes")
    fits = n >= 2 and present[0] >= 0 and present[-1] < n_classes and bool((np.diff(present) > 0).all())
    require(fits if n_classes else n == 0, "its classes")


@dataclass(frozen=True)
class LinearShare:
    """What a party keeps: how its columns are prepared, and their coefficients."""

    model: str
    party: str
    design: Design
    coefficients: np.ndarray

    @property
    def schema(self) -> Schema:
        """The party's columns."""
        return self.design.schema

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return what the party's columns add to the predictors of encoded rows: (rows, predictors)."""
        part: np.ndarray = self.design.apply(X) @ self.coefficients
        return part

    def to_bytes(self) -> bytes:
        """Write the share."""
        words = {"model": self.model, "party": self.party, "schema": self.design.schema.to_json()}
        names = SHARE_ARRAYS.keys() - {"coefficients"}
        arrays = {name: getattr(self.design, name) for name in names}
        return write_tensors(SHARE, VERSION, words, {**arrays, "coefficients": self.coefficients})

    @classmethod
    def from_bytes(cls, data: bytes) -> "LinearShare":
        """Read a share and check all of it."""
        words, arrays = read_tensors(data, SHARE, VERSION, ("model", "party", "schema"), SHARE_ARRAYS)
        coefficients = arrays.pop("coefficients")
        design = Design(Schema.from_json(words["schema"]), **arrays)
        require(design.fits(), "its columns")
        fits = coefficients.ndim == 2 and len(coefficients) == len(design.mean) and coefficients.shape[1] >= 1
        require(fits and bool(np.isfinite(coefficients).all()), "its coefficients")
        return cls(words["model"], words["party"], design, coefficients)


# -- at a party


def to_whole(values: np.ndarray, bits: int) -> np.ndarray:
    """Convert numbers to fixed point with a given number of fractional bits; refuse those that could overflow a sum."""
    scaled = np.rint(values * 2.0**bits)
    if not (np.abs(scaled) < 2.0**ROOM).all():
        raise RefusedError("the party's numbers are too large to be summed")
    return scaled.astype(np.int64)


def linear_key(model: str) -> str:
    """Return the key under which a party's store keeps its share of a model."""
    return f"{KEPT}of linear model {model}"


def linear_share_of(party: Party, model: str) -> LinearShare:
    """Read a party's share of a model."""
    return read_share(party, model, linear_key(model), LinearShare.from_bytes)


@answers(SumPredictors)
def sum_predictors(site: Site, request: SumPredictors) -> Predictors:
    """Compute the contribution of the party's columns to the predictors of the requested rows."""
    party = party_of(site)
    share = linear_share_of(party, request.model)
    X = encode_rows(party, share.design.schema, request.rows)
    with algebra_threads(party.n_jobs):
        return Predictors(parts=to_whole(share.predict(X), FINE))


# -- at the coordinator


def predict(federation: Federation, model: LinearModel, digests: np.ndarray) -> np.ndarray:
    """Score rows: probabilities (rows, classes), or numbers (rows, 1). One round."""
    check_parties(federation, model.parties)

    def check(site: str, reply: Predictors) -> None:
        check_arrays("its predictors are not as many as the rows", (reply.parts, (len(digests), model.width), np.int64))

    request = SumPredictors(model=model.model, rows=rows_blob(federation, digests))
    total: Predictors = federation.total(request, over=model.parties, check=check)
    return model.scores(total.parts * 2.0**-FINE)
