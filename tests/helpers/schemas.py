"""The schema of a single table."""

from silvan.data.encode import describe_label, infer_features, label_column
from silvan.data.schema import Schema


def infer_schema(frame, label="label", *, task=None, exclude=(), min_category_rows=1):
    """Describes the columns of a table, without an agreement."""
    target = describe_label(label_column(frame, label), label, task)
    return Schema(infer_features(frame, {label, *exclude}, min_category_rows), target)
