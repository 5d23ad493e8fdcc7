"""The schema of one table as it is."""

from silvan.data.encode import infer_features, infer_label
from silvan.data.schema import Schema


def infer_schema(frame, label="label", *, task=None, exclude=(), min_category_rows=1):
    """Describe the columns of a table as they are, without asking anybody."""
    target = infer_label(frame, label, task)
    return Schema(infer_features(frame, {label, *exclude}, min_category_rows), target)
