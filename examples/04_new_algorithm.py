"""A new algorithm in forty lines: naive Bayes across sites, from one sum of counts.

Every algorithm has three parts: its messages, the site's half and the coordinator's half. CONTRIBUTING.md explains
them. Run it with ``python examples/04_new_algorithm.py``.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

import silvan as sv
from silvan.algorithms.requests import schema_of
from silvan.algorithms.shared_bins import bins_of, find_shared_bins
from silvan.data.bins.bins import Bins
from silvan.errors import FormatError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Reply, Total
from silvan.federation.site import Site, answers

# -- messages


class ClassCounts(Reply, frozen=True, kw_only=True):
    """Rows by column, bin and class."""

    counts: np.ndarray  # int64 (columns, bins, classes)


class CountCells(Total[ClassCounts], frozen=True, kw_only=True):  # the coordinator sees only the sum over sites
    """Request the number of rows of each class in each bin of each column."""

    schema: Blob
    bins: Blob


# -- at a site


@answers(CountCells)
def count_classes(site: Site, request: CountCells) -> ClassCounts:
    """Count the site's training rows."""
    schema = schema_of(site, request.schema)
    bins, part = bins_of(site, request.bins, schema), site.part(schema)
    counts = np.zeros((len(schema.features), int(bins.last.max()) + 1, schema.n_classes), np.int64)
    for column, codes in enumerate(bins.apply(part.X, 1).T):
        np.add.at(counts[column], (codes, part.y), 1)
    return ClassCounts(counts=counts)


# -- at the coordinator


def fit(federation: Federation, max_bins: int = 16) -> tuple[Bins, np.ndarray, np.ndarray]:
    """Return the bins, the log share of each bin by column and class, and the log share of each class."""
    schema = federation.schema
    shared = find_shared_bins(federation, schema, max_bins)

    def check(site: str, reply: ClassCounts) -> None:
        if reply.counts.ndim != 3 or reply.counts.dtype != np.int64 or reply.counts.min() < 0:
            raise FormatError("its counts are invalid")

    request = CountCells(schema=federation.blob(schema.to_json().encode()), bins=shared.blob)
    counts = federation.total(request, check=check).counts + 1.0  # no share is zero
    classes = np.log(shared.label / shared.label.sum())
    return shared.bins, np.log(counts / counts.sum(axis=1, keepdims=True)), classes


def main() -> None:
    """Train at three hospitals and evaluate on rows that none of them has."""
    X, y = load_breast_cancer(return_X_y=True)
    fed = sv.federate_rows({f"hospital {k}": (X[k:400:3], y[k:400:3]) for k in range(3)}, sums="masked")
    bins, shares, prior = fit(fed)
    codes = bins.apply(X[400:].astype(np.float32), 1)
    scores = prior + sum(shares[column, codes[:, column]] for column in range(codes.shape[1]))
    right = (np.argmax(scores, axis=1) == y[400:]).mean()
    print(
        f"naive Bayes of {len(fed.sites)} hospitals, {fed.rounds} rounds: {right:.1%} of {len(y) - 400} new rows right"
    )
    *_, last = fed.site("hospital 0").outbox.ledger.lines()
    print(f"what left the first hospital last: {last.what}; {last.how}")


if __name__ == "__main__":
    main()
