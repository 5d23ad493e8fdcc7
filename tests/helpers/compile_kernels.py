"""Compiles the kernels that most tests need, so that they find them compiled.

Test processes that start at the same time would all compile the same kernels, and so would the four processes of a
real federation. ``conftest.py`` runs this first, in two processes that mostly need different kernels:

    NUMBA_CACHE_DIR=... python -m helpers.compile_kernels rows
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial

from helpers import column_studies, private_study
from helpers.studies import parts, table

import silvan as sv

SMALL = {"n_estimators": 2, "max_depth": 3}


def _rows(task: str) -> None:
    fed = sv.federate_rows(parts(table(task, 90), 3), test=0.2, n_jobs=1)
    forest = sv.HistogramForest(**SMALL).fit(fed)
    forest.evaluate(fed)
    for learner in (sv.MergedForest(**SMALL), sv.BOFRF(**SMALL), sv.BOFRF(**SMALL, personal=True, refit_leaves=True)):
        learner.fit(fed).evaluate(fed)
    sv.LocalForest(**SMALL).fit(fed)
    sv.HistogramForest(**SMALL).fit(sv.federate_rows(parts(table(task, 90), 2), n_jobs=1, memory=5000))


def _private(form: str) -> None:
    sv.HistogramForest(**SMALL, epsilon=50.0, private=form).fit(private_study.federate(n=90, sums="masked"))


def _signed() -> None:
    fed = sv.federate_rows(parts(table(n=90), 3), signed=True, n_jobs=1)
    sv.HistogramForest(**SMALL).fit(fed)


def _adaptive() -> None:
    numbers = parts(table(n=90).select("dose", "noise", "label"), 3)
    fed = sv.federate_rows(numbers, n_jobs=1, policy=sv.Policy(messages=("*", "AdaptiveLevel")))
    sv.HistogramForest(**SMALL, bins="adaptive").fit(fed)


def _boosting(learner: type) -> None:
    learner(2).fit(sv.federate_rows(parts(table(n=90), 3), n_jobs=1))


def _columns(labels: str) -> None:
    tables = column_studies.split(column_studies.wide(n=90), 2)
    for task in ("binary", "number") if labels == "encoded" else ("binary",):
        tables = column_studies.split(column_studies.wide(task, n=90), 2)
        fed = column_studies.federate(tables, test=0.2, match=None)
        sv.VerticalForest(**SMALL, labels=labels).fit(fed).evaluate(fed)


GROUPS: dict[str, list[Callable[[], None]]] = {
    "rows": [partial(_rows, "binary"), partial(_rows, "number"), partial(_columns, "encoded")],
    "others": [  # kernels for "rows" are needed late
        partial(_private, "tables"),
        _signed,
        _adaptive,
        partial(_boosting, sv.MultBoost),
        partial(_columns, "encrypted"),
        partial(_private, "levels"),
        partial(_private, "input"),
        partial(_boosting, sv.BOPPID),
    ],
}


def main(group: str) -> None:
    """Compiles one group; a failure here fails again in a test, with a better message."""
    warnings.simplefilter("ignore")
    for compile_some in GROUPS[group]:
        try:
            compile_some()
        except Exception as error:
            print(f"{group}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
