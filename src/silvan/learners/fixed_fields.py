"""What a learner's parameters fix of the requests that it makes: the values of fields declared ``Fixed``.

A site holds a coordinator to these (``privacy/terms.py``), so no learner is imported here, and what only one algorithm
needs is imported where it is used. A value is the one that a
field must have, or a function that says whether a value is allowed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from silvan.data.schema import Schema
from silvan.federation.describe import FLOOR
from silvan.learners.forest_settings import forest_settings
from silvan.tree.fit import Settings
from silvan.tree.objectives import Measure
from silvan.tree.sampling import make_key

if TYPE_CHECKING:
    from silvan.algorithms.evaluation.candidates import Candidate
    from silvan.algorithms.evaluation.column_effects import ColumnGrid

REPEATS = 5
"""How often columns are shuffled to measure what they matter."""


def fixed_fields(
    parameters: Mapping[str, Any],
    schema: Schema | None,
    *,
    random_state: int = 0,
    by: Sequence[str] = (),
    dependence: Sequence[str] = (),
    epsilon: float = 0.0,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Return what a learner's parameters, by name, fix: ``by`` and ``dependence`` are columns of its evaluation.

    ``epsilon`` is the most that one request of the evaluation may spend on noise.
    """
    most = max(epsilon, parameters.get("epsilon") or 0.0)
    fixed: dict[str, Any] = {"epsilon": lambda one: 0.0 < one <= most}
    if schema is None:
        return fixed
    from silvan.algorithms.evaluation.score_groups import places_of

    fixed["by"] = places_of(schema, by)
    fixed["grids"] = _grids_of(schema, dependence)
    fixed["repeats"] = repeats
    fixed["feature_key"] = make_key(random_state, "features")
    fixed |= _of_boosting(parameters) if "min_samples_split" not in parameters else _of_forests(parameters, schema)
    return fixed


def fixed_for_parties(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the parameters of a learner by columns fix: no party knows the columns of the others."""
    # of the label, or of all columns; and what the coordinator alone draws by
    free = {"criterion", "class_weight", "monotonic_cst", "max_features"}
    named = [name for name in Settings.__dataclass_fields__ if name in parameters and name not in free]
    wanted = Settings(**{name: parameters[name] for name in named})

    def fits(given: Settings) -> bool:
        return all(getattr(given, name) == getattr(wanted, name) for name in named)

    def monotonic(given: bool) -> bool:
        return not given or parameters.get("monotonic_cst") is not None

    fixed: dict[str, Any] = {name: float(parameters[name]) for name in ("alpha", "tol") if name in parameters}
    if parameters.get("labels") == "encrypted":
        fixed |= {"settings": fits, "monotonic": monotonic, "key_bits": parameters["key_bits"]}
    elif "labels" in parameters:
        fixed |= {"settings": fits, "turned": monotonic}
    return fixed


def _of_boosting(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what AdaBoost with stumps fixes."""
    from silvan.algorithms.boosting.stumps import Boosting
    from silvan.algorithms.evaluation.candidates import LocalBoosting

    names = ("n_estimators", "criterion", "min_samples_leaf", "max_bins")
    boosting = Boosting(*(parameters[name] for name in names))
    return {
        "settings": boosting,
        "tau": float(parameters.get("tau", 0.0)),
        "printed": parameters.get("printed"),
        "candidates": _candidates(lambda one: isinstance(one, LocalBoosting) and one.boosting == boosting),
    }


def _of_forests(parameters: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return what all forests fix."""
    from silvan.algorithms.evaluation.candidates import LocalModel, PersonalModel

    settings = forest_settings(parameters, schema)
    alike, measures, least = _like(settings), _measures(settings), settings.min_samples_leaf
    threshold = parameters.get("threshold")

    def local_fits(one: LocalModel) -> bool:
        return alike(one.settings) and one.threshold == threshold

    fixed = {
        "n_trees": lambda n: 1 <= n <= settings.n_estimators,
        "bootstrap": settings.row_sampling,
        "min_leaf": lambda n: n in (least, max(FLOOR, least)),  # leaves that sites re-estimate are larger
        "max_bins": settings.max_bins,
        "measure": measures,
        "settings": alike,
        "validation": 0.0,
        "candidates": _candidates(lambda one: isinstance(one, LocalModel) and local_fits(one)),
        "model": lambda one: not isinstance(one, PersonalModel) or not one.fit or _fits_leaves(parameters),
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


def _like(settings: Settings) -> Callable[[Settings], bool]:
    """Allow settings that differ in what follows from sums, or tells nothing of rows.

    That is the number of trees, which sites share, balanced weights, and how trees are combined.
    """

    def fits(given: Settings) -> bool:
        balanced = settings.class_weight == "balanced" and isinstance(given.class_weight, list)
        weight = given.class_weight if balanced else settings.class_weight
        free = replace(settings, n_estimators=given.n_estimators, class_weight=weight, vote=given.vote)
        return given == free

    return fits


def _measures(settings: Settings) -> Callable[[Measure], bool]:
    """Allow measures of the criterion; weights and bounds follow from sums."""
    weighted = settings.class_weight is not None
    return lambda given: given.objective == settings.criterion and (weighted or len(set(given.class_weight)) <= 1)


def _candidates(local: Callable[["Candidate"], bool]) -> Callable[[Sequence["Candidate"]], bool]:
    """Allow models that are sent, and what the study grows at the site alone."""
    from silvan.algorithms.evaluation.candidates import PersonalModel, SentModel

    return lambda given: all(isinstance(one, SentModel | PersonalModel) or local(one) for one in given)


def _grids_of(schema: Schema, columns: Sequence[str]) -> Callable[[Sequence["ColumnGrid"]], bool]:
    """Allow columns that the study names."""
    places = {schema.names.index(name) for name in columns if name in schema.names}
    return lambda grids: all(grid.feature in places for grid in grids)
