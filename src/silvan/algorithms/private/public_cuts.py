"""Cut points of numeric columns that follow from a public schema alone, without reading rows.

A schema with bounds, edges and categories is all that a private forest knows about columns in advance, so a missing
declaration is an error here, not a request to the sites.
"""

import numpy as np

from silvan.data.schema import Feature, Schema
from silvan.errors import InputError
from silvan.util.readable import format_names

LINEAR = 16  # bins of equal width between the bounds
_NEAR = 14  # edges that halve their distance to the lower bound, inside the first of these bins
_NEAR_ZERO = 6  # edges on each side of zero that do so, if the bounds include it


def check_public(schema: Schema) -> None:
    """Raise ``InputError`` for a schema without the required public bounds, categories or classes."""
    lacking = [f.name for f in schema.features if not f.categorical and f.bounds is None and f.edges is None]
    if lacking:
        raise InputError.about(
            "epsilon",
            f"needs public bounds, and the schema has none for {format_names(lacking, 5)}: pass "
            f"schema=sv.Schema.of([sv.Feature({lacking[0]!r}, bounds=(low, high)), ...]) with the smallest and largest "
            "values that are possible (values beyond count as these), not those in the tables",
        )
    unnamed = [f.name for f in schema.features if f.categorical and not f.n_codes]
    if unnamed:
        raise InputError.about(
            "epsilon", f"needs public categories, and the schema names none for {format_names(unnamed, 5)}"
        )
    label = schema.label
    if label.classes is None and label.bounds is None:
        raise InputError.about(
            "epsilon",
            f"needs public bounds of the number to predict: pass label=sv.Label({label.name!r}, "
            "bounds=(low, high)) in the schema, or classes=(...) if it has classes",
        )
    if label.classes is not None and len(label.classes) < 2:
        raise InputError(f"the label {label.name!r} has one class; there is nothing to predict")


def public_cuts(feature: Feature, most: int | None = None) -> np.ndarray:
    """Return the cut points of a numeric column that follow from the schema alone: float32, rising.

    Given edges, or 16 bins between the bounds, finer towards the lower bound, which has a bin of its own, and
    around zero. With ``most`` bins they are thinned evenly.
    """
    if feature.edges is not None:
        edges = np.array(feature.edges)
    elif feature.bounds is None:
        raise InputError(f"the schema has no bounds for {feature.name!r}")
    else:
        low, high = feature.bounds
        step = (high - low) / LINEAR
        parts = [low + step * np.arange(LINEAR), low + step * 0.5 ** np.arange(1, _NEAR + 1)]
        if low < 0.0 < high:
            near = step * 0.5 ** np.arange(_NEAR_ZERO)
            parts += [np.zeros(1), near[near < high], -near[near < -low]]
        edges = np.concatenate(parts)
    with np.errstate(over="ignore"):
        cuts = np.unique(edges.astype(np.float32))
    cuts = cuts[np.isfinite(cuts)]
    if most is not None and len(cuts) + 1 > most:
        cuts = cuts[np.unique(np.rint(np.linspace(0, len(cuts) - 1, most - 1)).astype(np.int64))]
    return cuts


def even_cuts(feature: Feature, n_groups: int) -> np.ndarray:
    """Return cut points of a numeric column into groups of equal width, or of equally many given edges."""
    if feature.edges is not None or feature.bounds is None:
        return public_cuts(feature, n_groups)
    low, high = feature.bounds
    return np.unique((low + (high - low) * np.arange(1, n_groups) / n_groups).astype(np.float32))


def bin_widths(feature: Feature, cuts: np.ndarray) -> np.ndarray:
    """Return the widths of the bins above the first cut; all 1 without bounds to end the last one."""
    if feature.bounds is None or feature.edges is not None:
        return np.ones(len(cuts))
    widths = np.diff(np.append(cuts.astype(np.float64), feature.bounds[1]))
    return np.maximum(widths, np.finfo(np.float64).tiny)  # rounding may put a cut beyond the bound
