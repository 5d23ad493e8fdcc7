"""Settings of trees from a learner's parameters: the same at the coordinator, which asks by them, and at sites."""

from collections.abc import Mapping
from typing import Any

from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.tree.fit import NO_VOTES, Settings, monotonic_signs
from silvan.tree.objectives import OBJECTIVES


def forest_settings(parameters: Mapping[str, Any], schema: Schema) -> Settings:
    """Return the settings of trees for a schema; raise ``InputError`` where the two do not fit."""
    criterion = parameters.get("criterion")
    chosen = OBJECTIVES.get(str(criterion))
    if chosen is not None and chosen.for_classes != bool(schema.n_classes):
        fits = "'gini', 'entropy' or 'log_loss'" if schema.n_classes else "'squared_error'"
        kind = "classification" if schema.n_classes else "regression"
        raise InputError.about("criterion", f"{criterion!r} does not fit {kind}: leave it out, or use {fits}")
    names = set(Settings.__dataclass_fields__) & set(parameters)
    values = {name: parameters[name] for name in names - {"criterion", "class_weight", "monotonic_cst"}}
    values["monotonic_cst"] = monotonic_signs(parameters.get("monotonic_cst"), schema)
    weight, classes = parameters.get("class_weight"), schema.label.classes
    if weight is not None and classes is None:
        raise InputError.about("class_weight", "is for classification")
    if isinstance(weight, dict):
        unknown = [c for c in weight if c not in (classes or ())]
        if unknown:
            raise InputError.about(
                "class_weight", f"names {unknown[0]!r}, which is not a class of {schema.label.name!r}"
            )
        weight = [float(weight.get(c, 1.0)) for c in classes or ()]
    if values.get("vote") == "hard" and not schema.n_classes:
        raise InputError(NO_VOTES)
    default = "gini" if schema.n_classes else "squared_error"
    return Settings(criterion=criterion or default, class_weight=weight, **values)
