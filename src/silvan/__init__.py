"""Random forests grown across data silos: the rows stay, trees, counts and sums travel."""

from silvan.data.schema import Feature, Label, Schema
from silvan.errors import ExportError, FormatError, InputError, SchemaError, SilvanError, VersionError
from silvan.estimators import ForestClassifier, ForestRegressor
from silvan.federate import federate_rows
from silvan.learners import HistogramForest, LocalForest, MergedForest, PooledForest
from silvan.privacy.outbox import Policy
from silvan.tree.forest import Forest

__version__ = "0.1.0"

__all__ = [
    "ExportError",
    "Feature",
    "Forest",
    "ForestClassifier",
    "ForestRegressor",
    "FormatError",
    "InputError",
    "Label",
    "Schema",
    "SchemaError",
    "SilvanError",
    "VersionError",
]
