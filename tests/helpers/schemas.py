"""The schema of one table as it is."""

from silvan.data.encode import describe_label, infer_features, label_column
from silvan.data.schema import Schema


def infer_schema(frame, label="label", *, task=None, exclude=(), min_category_rows=1):
    """Describe the columns of a table as they are, without asking anybody."""
    target = describe_label(label_column(frame, label), label, task)
    return Schema(infer_features(frame, {label, *exclude}, min_category_rows), target)
