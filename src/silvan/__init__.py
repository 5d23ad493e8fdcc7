"""Random forests grown across data silos: the rows stay, trees, counts and sums travel.

Names are imported when they are first used, so that ``silvan --help`` need not wait for numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silvan.algorithms.advice import Advice, advise
    from silvan.algorithms.distances import cluster_sites, site_distances
    from silvan.audit.audit import audit
    from silvan.data.database import Query
    from silvan.data.schema import Feature, Label, Schema
    from silvan.errors import (
        AgreementError,
        ExportError,
        FederationError,
        FormatError,
        InputError,
        RefusedError,
        SchemaError,
        SilvanError,
        SiteError,
        VersionError,
        WireError,
    )
    from silvan.estimators import ForestClassifier, ForestRegressor
    from silvan.federate import federate_rows
    from silvan.federate_by_columns import federate_columns
    from silvan.learners import (
        BOFRF,
        BOPPID,
        AdaBoostPL,
        HistogramForest,
        LocalAdaBoost,
        LocalForest,
        MergedForest,
        MultBoost,
        PooledForest,
        VerticalForest,
        VerticalLinear,
    )
    from silvan.privacy.outbox import Policy
    from silvan.tree.forest import Forest

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022, in plain order
    "AdaBoostPL",
    "Advice",
    "AgreementError",
    "BOFRF",
    "BOPPID",
    "ExportError",
    "Feature",
    "FederationError",
    "Forest",
    "ForestClassifier",
    "ForestRegressor",
    "FormatError",
    "HistogramForest",
    "InputError",
    "Label",
    "LocalAdaBoost",
    "LocalForest",
    "MergedForest",
    "MultBoost",
    "Policy",
    "PooledForest",
    "Query",
    "RefusedError",
    "Schema",
    "SchemaError",
    "SilvanError",
    "SiteError",
    "VersionError",
    "VerticalForest",
    "VerticalLinear",
    "WireError",
    "advise",
    "audit",
    "cluster_sites",
    "federate_columns",
    "federate_rows",
    "site_distances",
]

_HOMES = {
    "silvan.algorithms.advice": ("Advice", "advise"),
    "silvan.algorithms.distances": ("cluster_sites", "site_distances"),
    "silvan.audit.audit": ("audit",),
    "silvan.data.database": ("Query",),
    "silvan.data.schema": ("Feature", "Label", "Schema"),
    "silvan.estimators": ("ForestClassifier", "ForestRegressor"),
    "silvan.federate": ("federate_rows",),
    "silvan.federate_by_columns": ("federate_columns",),
    "silvan.learners": (
        "AdaBoostPL",
        "BOFRF",
        "BOPPID",
        "HistogramForest",
        "LocalAdaBoost",
        "LocalForest",
        "MergedForest",
        "MultBoost",
        "PooledForest",
        "VerticalForest",
        "VerticalLinear",
    ),
    "silvan.privacy.outbox": ("Policy",),
    "silvan.tree.forest": ("Forest",),
}
"""Where public names live; all others are errors."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'silvan' has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "silvan.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
