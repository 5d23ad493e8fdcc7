"""What a learner's parameters fix in its requests: the values of fields declared ``Fixed``.

Sites enforce these (``privacy/terms.py``), so no learner is imported here, and what only one algorithm needs is
imported where it is used. A value is what a field must hold, or a function that returns whether a value is allowed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.describe import FLOOR
from silvan.tree.fit import NO_VOTES, Settings, monotonic_signs
from silvan.tree.objectives import DEFAULTS, OBJECTIVES, Measure
from silvan.tree.sampling import make_key

if TYPE_CHECKING:
    from silvan.algorithms.evaluation.candidates import Candidate
    from silvan.algorithms.evaluation.column_effects import ColumnGrid

REPEATS = 5  # how often each column is shuffled to measure its importance


def fixed_fields(
    parameters: Mapping[str, Any],
    schema: Schema | None,
    *,
    random_state: int = 0,
    by: Sequence[str] = (),
    dependence: Sequence[str] = (),
    epsilon: float = 0.0,
    repeats: int = REPEATS,
    training: bool = False,
) -> dict[str, Any]:
    """Return what a learner's parameters fix; ``by`` and ``dependence`` are columns of its evaluation.

    ``epsilon`` is the maximum epsilon of one request of the evaluation. Columns are shuffled ``repeats`` times, in test
    rows or in ``training`` rows.
    """
    most = max(epsilon, parameters.get("epsilon") or 0.0)
    fixed: dict[str, Any] = {"epsilon": lambda one: 0.0 < one <= most}
    if schema is None:
        return fixed
    from silvan.algorithms.evaluation.score_groups import places_of

    fixed["by"] = places_of(schema, by)
    fixed["grids"] = _grids_of(schema, dependence)
    fixed["repeats"], fixed["training"] = repeats, training
    fixed["feature_key"] = make_key(random_state, "features")
    fixed |= _of_boosting(parameters) if "min_samples_split" not in parameters else _of_forests(parameters, schema)
    return fixed


def fixed_for_parties(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the parameters of a learner over columns fix: no party knows the columns of the others."""
    # these depend on the label or on all columns, or are used by the coordinator alone
    free = {"criterion", "class_weight", "monotonic_cst", "max_features"}
    names = Settings.__dataclass_fields__.keys() - free
    wanted = Settings(**{name: parameters[name] for name in names & parameters.keys()})

    criterion, weighted = parameters.get("criterion"), parameters.get("class_weight") is not None
    criteria = ("gini", "squared_error") if criterion is None else (criterion,)

    def fits(given: Settings) -> bool:
        same = all(getattr(given, name) == getattr(wanted, name) for name in names)
        return same and given.criterion in criteria and (weighted or given.class_weight is None)

    def monotonic(given: bool) -> bool:
        return not given or parameters.get("monotonic_cst") is not None

    fixed: dict[str, Any] = {name: float(parameters[name]) for name in ("alpha", "tol") if name in parameters}
    if parameters.get("labels") == "encrypted":
        fixed |= {"settings": fits, "monotonic": monotonic, "key_bits": parameters["key_bits"]}
    elif "labels" in parameters:
        fixed |= {"settings": fits, "turned": monotonic}
    return fixed


def forest_settings(parameters: Mapping[str, Any], schema: Schema) -> Settings:
    """Return the settings of trees for a schema; raise ``InputError`` if they do not fit."""
    criterion = parameters.get("criterion")
    chosen = OBJECTIVES.get(str(criterion))
    task = schema.label.task
    if chosen is not None and chosen.task != task:
        fits = "'gini', 'entropy' or 'log_loss'" if schema.n_classes else repr(DEFAULTS[task])
        raise InputError.about("criterion", f"{criterion!r} does not fit {task}: leave it out, or use {fits}")
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
    return Settings(criterion=criterion or DEFAULTS[task], class_weight=weight, **values)


def _of_boosting(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what AdaBoost with stumps fixes."""
    from silvan.algorithms.boosting.stumps import Boosting
    from silvan.algorithms.evaluation.candidates import LocalBoosting, SentModel

    names = ("n_estimators", "criterion", "min_samples_leaf", "max_bins")
    boosting = Boosting(*(parameters[name] for name in names))
    return {
        "settings": boosting,
        "tau": float(parameters.get("tau", 0.0)),
        "printed": parameters.get("printed"),
        "candidates": _candidates(lambda one: isinstance(one, LocalBoosting) and one.boosting == boosting),
        "model": lambda one: isinstance(one, SentModel),
    }


def _of_forests(parameters: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return what all forests fix."""
    from silvan.algorithms.evaluation.candidates import LocalModel, PersonalModel, SentModel

    settings = forest_settings(parameters, schema)
    alike, measures, least = _like(settings, schema.n_classes), _measures(settings, schema), settings.min_samples_leaf
    threshold = parameters.get("threshold")
    adjusts = parameters.get("calibrate") is not False or bool(parameters.get("intervals"))

    def local_fits(one: LocalModel) -> bool:
        trees = one.settings.n_estimators == settings.n_estimators
        return trees and alike(one.settings) and one.threshold == threshold

    def trusted(one: "Candidate") -> bool:
        return adjusts or not isinstance(one, SentModel) or not one.adjust

    candidates = _candidates(lambda one: isinstance(one, LocalModel) and local_fits(one))
    fixed = {
        "n_trees": lambda n: 1 <= n <= settings.n_estimators,
        "bootstrap": settings.row_sampling,
        "min_leaf": lambda n: n in (least, max(FLOOR, least)),  # re-estimated leaves are larger
        "max_bins": settings.max_bins,
        "measure": measures,
        "settings": lambda given: given.n_estimators <= settings.n_estimators and alike(given),
        "validation": 0.0,
        "candidates": lambda given: all(trusted(one) for one in given) and candidates(given),
        "model": lambda one: (
            trusted(one) and (not isinstance(one, PersonalModel) or not one.fit or _fits_leaves(parameters))
        ),
    }

    return {**fixed, **(_of_bofrf(parameters) if "tau" in parameters else {})}


def _of_bofrf(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what BOFRF adds."""
    from silvan.algorithms.bofrf.choose import TAUS
    from silvan.algorithms.bofrf.tune import as_search

    protocol, validation, tau = parameters["protocol"], float(parameters["validation"] or 0.0), parameters["tau"]
    return {
        "protocol": protocol,
        "validation": validation,
        "oob": protocol == "honest" and not validation,
        "tune": as_search(parameters["tune"]),
        "max_trees": parameters["max_trees"],
        "equal": parameters["equal"],
        "taus": [tau, *(one for one in TAUS if one != tau)] if parameters["personal"] else [tau],
    }


def _fits_leaves(parameters: Mapping[str, Any]) -> bool:
    given = parameters.get("fit_leaves")
    allowed = parameters.get("monotonic_cst") is None and parameters.get("class_weight") is None
    return allowed if given is None else bool(given)


def _like(settings: Settings, n_classes: int) -> Callable[[Settings], bool]:
    """Allow settings that differ only in values that follow from sums or disclose nothing about rows.

    These are the number of trees, balanced weights, and how trees are combined.
    """

    def fits(given: Settings) -> bool:
        weights = given.class_weight if isinstance(given.class_weight, list) else ()
        balanced = settings.class_weight == "balanced" and len(weights) == n_classes
        weight = given.class_weight if balanced else settings.class_weight
        free = replace(settings, n_estimators=given.n_estimators, class_weight=weight, vote=given.vote)
        return given == free

    return fits


def _measures(settings: Settings, schema: Schema) -> Callable[[Measure], bool]:
    """Allow measures of the criterion; balanced weights, total mass and bounds of a number follow from sums."""
    n_classes = schema.n_classes
    weighted = settings.class_weight is not None

    def fits(given: Measure) -> bool:
        same = given.objective == settings.criterion and given.fits(n_classes, schema.label.task)
        return same and (weighted or set(given.class_weight) == {1}) and (not n_classes or not given.offset)

    return fits


def _candidates(local: Callable[["Candidate"], bool]) -> Callable[[Sequence["Candidate"]], bool]:
    """Allow models that are sent, and the study's local models."""
    from silvan.algorithms.evaluation.candidates import PersonalModel, SentModel

    return lambda given: all(isinstance(one, SentModel | PersonalModel) or local(one) for one in given)


def _grids_of(schema: Schema, columns: Sequence[str]) -> Callable[[Sequence["ColumnGrid"]], bool]:
    """Allow columns that the study names, each once; their values follow from cut points."""
    places = {schema.names.index(name) for name in columns if name in schema.names}

    def fits(grids: Sequence["ColumnGrid"]) -> bool:
        features = [grid.feature for grid in grids]
        return len(set(features)) == len(features) and places.issuperset(features)

    return fits
