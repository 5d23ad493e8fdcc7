"""Random forests across hospitals, banks and labs: rows stay where they are; trees, counts and sums travel.

The imports below define the public names once. Type checkers read them directly; at run time each name is
imported at its first use, so that ``silvan --help`` does not wait for numba.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silvan.algorithms.bofrf.advice import Advice as Advice
    from silvan.algorithms.bofrf.advice import advise as advise
    from silvan.algorithms.bofrf.clusters import cluster_sites as cluster_sites
    from silvan.algorithms.bofrf.clusters import site_distances as site_distances
    from silvan.algorithms.describe_columns import describe as describe
    from silvan.auditing.run_audit import audit as audit
    from silvan.data.partition_files import Partitions as Partitions
    from silvan.data.readers.query import Query as Query
    from silvan.data.readers.table_file import Table as Table
    from silvan.data.schema import Feature as Feature
    from silvan.data.schema import Label as Label
    from silvan.data.schema import Schema as Schema
    from silvan.errors import AgreementError as AgreementError
    from silvan.errors import ExportError as ExportError
    from silvan.errors import FederationError as FederationError
    from silvan.errors import FormatError as FormatError
    from silvan.errors import InputError as InputError
    from silvan.errors import RefusedError as RefusedError
    from silvan.errors import SchemaError as SchemaError
    from silvan.errors import SilvanError as SilvanError
    from silvan.errors import SiteError as SiteError
    from silvan.errors import VersionError as VersionError
    from silvan.errors import WireError as WireError
    from silvan.federate.by_columns import federate_columns as federate_columns
    from silvan.federate.by_rows import federate_rows as federate_rows
    from silvan.forest.forest import Forest as Forest
    from silvan.learners.auto_forest import AutoForest as AutoForest
    from silvan.learners.bofrf import BOFRF as BOFRF
    from silvan.learners.boosting import BOPPID as BOPPID
    from silvan.learners.boosting import AdaBoostPL as AdaBoostPL
    from silvan.learners.boosting import LocalAdaBoost as LocalAdaBoost
    from silvan.learners.boosting import MultBoost as MultBoost
    from silvan.learners.compare import Comparison as Comparison
    from silvan.learners.compare import compare as compare
    from silvan.learners.forest_estimators import ForestClassifier as ForestClassifier
    from silvan.learners.forest_estimators import ForestRegressor as ForestRegressor
    from silvan.learners.horizontal import HistogramForest as HistogramForest
    from silvan.learners.horizontal import LocalForest as LocalForest
    from silvan.learners.horizontal import MergedForest as MergedForest
    from silvan.learners.horizontal import PooledForest as PooledForest
    from silvan.learners.linear import VerticalLinear as VerticalLinear
    from silvan.learners.select_columns import SelectedColumns as SelectedColumns
    from silvan.learners.select_columns import select_columns as select_columns
    from silvan.learners.survival_forest import SurvivalForest as SurvivalForest
    from silvan.learners.vertical import VerticalForest as VerticalForest
    from silvan.privacy.policy import Policy as Policy

__version__ = "0.9.0"


def _modules_by_name() -> dict[str, str]:
    """Return the module of each public name, from the imports above."""
    source = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    block = next(node for node in source.body if isinstance(node, ast.If))
    lines = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


_MODULES = _modules_by_name()

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name, or the module ``datasets``, at its first use."""
    if name == "datasets":
        return import_module("silvan.datasets")
    if name not in _MODULES:
        raise AttributeError(f"module 'silvan' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted([*__all__, "__version__", "datasets"])
