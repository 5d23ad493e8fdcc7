"""Pretrained forests of a site's owner: read, fitted if necessary, and translated to the agreed schema.

A forest may be silvan's own, the path of one, or scikit-learn's, fitted or not; an unfitted one is trained on the
site's rows as silvan encodes them. Columns and classes are matched by name. Its thresholds are then moved to the
nearest cut of the site's own bins on the public grid, and branches that too few of the site's rows reach are cut off.
The changed tree is then used everywhere, including at the site itself.
"""

from os import PathLike
from typing import Any

import numpy as np

from silvan.data.bins.bins import find_bins
from silvan.data.schema import MAX_BINS, Class, Feature, Schema
from silvan.errors import InputError
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.forest.category_set import SET_WORDS, is_category_split, set_bits
from silvan.forest.forest import Forest
from silvan.forest.snap import snap, trim
from silvan.util.threads import thread_count


def site_forest(site: Site, schema: Schema, part: Part, min_leaf: int) -> Forest:
    """Return a site's pretrained forest, in the form that may leave the site."""
    source = site.forest
    if is_unfitted(source):
        forest = from_codes(fit_estimator(source, part, site.split_seed), schema)
    else:
        given = read_forest(source)
        columns = [name for name in site.table.names if name != site.label]
        forest = conform(given, schema, columns)
    bins, _ = find_bins(part.X, schema, MAX_BINS, thread_count(site.n_jobs), FLOOR)
    return trim(snap(forest, bins), part.X, min_leaf)


def is_unfitted(source: Any) -> bool:
    """Return whether this is an unfitted estimator of scikit-learn or silvan."""
    learns = hasattr(source, "fit") and hasattr(source, "get_params")
    # scikit-learn's rule: fitted attributes have names that end with an underscore
    return learns and not any(name.endswith("_") and not name.startswith("_") for name in vars(source))


def read_forest(source: Any) -> Forest:
    """Read a fitted forest: silvan's, the path of one, or scikit-learn's."""
    if isinstance(source, str | PathLike):
        try:
            return Forest.load(source)  # type: ignore[arg-type]
        except OSError as error:
            raise InputError(f"the forest that is brought, {str(source)!r}, cannot be read: {error.strerror}") from None
    forest = source if isinstance(source, Forest) else getattr(source, "forest_", None)
    return forest if isinstance(forest, Forest) else Forest.from_sklearn(source)


def name_of(source: Any) -> str:
    """Return a name derived from a forest's content, for the coordinator's journal."""
    if is_unfitted(source):
        return repr((type(source).__name__, sorted(source.get_params().items(), key=str)))
    return read_forest(source).hash


def fit_estimator(model: Any, part: Part, seed: int) -> Forest:
    """Fit a copy of an estimator to encoded rows, with the same seed after a restart."""
    from sklearn.base import clone

    model = clone(model)
    if model.get_params().get("random_state", 0) is None:
        model.set_params(random_state=seed)
    return read_forest(model.fit(part.X, part.y))


def from_codes(forest: Forest, schema: Schema) -> Forest:
    """Translate trees that were grown on encoded rows: a split on codes up to one becomes a set of categories."""
    by_category = is_category_split(schema, forest.feature)
    codes = np.floor(forest.threshold[by_category].astype(np.float64)).clip(-1, 254)[:, None]
    bits = np.arange(64 * SET_WORDS) <= codes + 1
    n_codes = np.array([f.n_codes for f in schema.features])[forest.feature[by_category]]
    bits &= np.arange(64 * SET_WORDS) <= n_codes[:, None]
    bits[:, 0] = forest.missing_left[by_category]
    return Forest(
        schema=schema,
        offsets=forest.offsets,
        feature=forest.feature,
        threshold=np.where(by_category, 0, forest.threshold),
        missing_left=forest.missing_left,
        sets=_words(bits),
        value=_spread(forest, schema, int),
        weights=forest.weights,
    )


def conform(forest: Forest, schema: Schema, columns: list[str]) -> Forest:
    """Translate a forest to the agreed schema, by the names of columns and classes.

    One that calls its columns x0, x1, ... was grown on an array: they are the site's own ``columns``, in their order.
    """
    if forest.combine != "mean":
        raise InputError("a forest that is brought must average its trees, as random forests do; this one votes")
    names = list(forest.schema.names)
    if names == [f"x{i}" for i in range(len(names))] and not set(names) <= set(schema.names):
        if len(names) != len(columns):
            raise InputError(
                f"the forest that is brought has {len(names)} columns without names, the table has {len(columns)}; "
                "fit it on a data frame, so that columns are known by name"
            )
        names = columns
    place = {name: f for f, name in enumerate(schema.names)}
    used = np.unique(forest.feature[forest.feature >= 0])
    for f in used:
        if names[f] not in place:
            raise InputError(f"the forest that is brought asks about {names[f]!r}, which is not an agreed column")
        if forest.schema.features[f].categorical != schema.features[place[names[f]]].categorical:
            kind = schema.features[place[names[f]]].kind
            raise InputError(f"column {names[f]!r} is {kind} by agreement and not so to the forest that is brought")
    to = np.array([place.get(name, -1) for name in names])
    feature = np.where(forest.feature >= 0, to[forest.feature], -1)
    by_category = is_category_split(schema, feature)
    bits = np.zeros((int(by_category.sum()), 64 * SET_WORDS), np.bool_)
    known_bits, before = set_bits(forest.sets), forest.feature[by_category]
    for f in np.unique(before):
        bins = _bins_of_codes(schema.features[to[f]], forest.schema.features[f])
        bits[before == f, : len(bins)] = known_bits[before == f][:, bins]
    return Forest(
        schema=schema,
        offsets=forest.offsets,
        feature=feature,
        threshold=forest.threshold,
        missing_left=forest.missing_left,
        sets=_words(bits),
        value=_spread(forest, schema, lambda c: _class_of(c, schema)),
        weights=forest.weights > 0,
    )


def _bins_of_codes(agreed: Feature, known: Feature) -> np.ndarray:
    """Return the bin of the forest's feature for each agreed bin; categories unknown to it count as missing."""
    code = {name: i for i, name in enumerate(known.categories or ())}
    other = len(code) if known.other else -1
    codes = [code.get(name, other) for name in agreed.categories or ()] + [other] * agreed.other
    return np.array([0, *(c + 1 for c in codes)])


def _class_of(name: Class, schema: Schema) -> int:
    classes = list(schema.label.classes or ())
    if name in classes:
        return classes.index(name)
    texts = [str(c) for c in classes]
    if str(name) not in texts:
        raise InputError(f"the forest that is brought knows a class {name!r}, which is not an agreed one")
    return texts.index(str(name))


def _spread(forest: Forest, schema: Schema, code: Any) -> np.ndarray:
    """Put class probabilities in the agreed order; classes that a forest does not know have probability 0."""
    classes = forest.schema.label.classes
    if (classes is None) != (schema.label.classes is None):
        kinds = ("a number", "classes")
        has, wants = kinds[classes is not None], kinds[schema.label.classes is not None]
        raise InputError(f"the forest that is brought predicts {has}, the agreed label has {wants}")
    if classes is None:
        return forest.value
    value = np.zeros((len(forest.value), schema.n_classes))
    value[:, [code(c) for c in classes]] = forest.value
    return value


def _words(bits: np.ndarray) -> np.ndarray:
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64).reshape(len(bits), SET_WORDS)
