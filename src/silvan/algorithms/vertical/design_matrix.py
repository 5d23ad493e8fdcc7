"""The design matrix of a linear model: categories as columns of zeros and ones, gaps filled in, all on one scale.

A missing value is replaced by the mean of its column. If a feature had missing values among the rows that the design
was made from, one more column of zeros and ones says which rows lack it. Then every column has mean 0 and standard
deviation 1 on those rows; a column that is the same in all of them becomes 0.
"""

from functools import cached_property

import msgspec
import numpy as np

from silvan.data.schema import Schema

_SAME = 1e-9
"""A column whose standard deviation is smaller than that, relative to its mean, counts as the same in all rows."""


class Design(msgspec.Struct, frozen=True, dict=True):
    """How encoded features become columns: what fills gaps, which gaps are marked, and each column's mean and scale."""

    schema: Schema
    fill: np.ndarray  # (columns before those that mark gaps,)
    gaps: np.ndarray  # bool (features,), whether a column marks where it is missing
    mean: np.ndarray  # (columns,)
    scale: np.ndarray  # (columns,), 0 for a column that is the same in all rows

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
        """Return whether the arrays are of the sizes that the schema asks for, and finite."""
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
