"""Local models that a coordinator varies, to read the labels of test rows from their metrics.

In an evaluation a site grows the local model itself, so it does not count as an external model. With one column, one
split and another sampling share in each task, the coordinator learns how many test rows above some value have each
class: a sum of labels, over rows that it knows. Many such sums are a system of equations.

If a site knows the study's text, this fixes the columns and settings of local models. Without a text a study still has
one schema, so the columns stay the same. Groups of rows do not help, because the sums are over many rows.
"""

from unittest.mock import patch

import numpy as np
import polars as pl
from experiments.attacks.bait import TARGET, as_between_machines, known
from experiments.attacks.outcome import Outcome
from scipy.optimize import lsq_linear

import silvan as sv
from silvan.algorithms.evaluation.candidates import LocalModel
from silvan.algorithms.evaluation.evaluate import EvaluateModels
from silvan.data.schema import Schema
from silvan.errors import SilvanError
from silvan.federation.federation import Federation
from silvan.privacy.gate import holding_to
from silvan.study.parse import parse_remote_study
from silvan.study.study_text import text_of
from silvan.tree.fit import Settings
from silvan.tree.sampling import make_key


def _tables(n: int) -> dict[str, pl.DataFrame]:
    """Return tables whose labels hardly depend on columns: guesses from the columns are right for 2 of 3 rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n + 80, 6))
    y = rng.random(n + 80) < 1.0 / (1.0 + np.exp(-0.5 * X.sum(axis=1)))
    frame = pl.DataFrame(X, schema=[f"x{i}" for i in range(6)]).with_columns(label=pl.Series(np.where(y, "yes", "no")))
    return {TARGET: frame[:n], "other": frame[n:]}


_TEXT = 'name = "s"\nlabel = "label"\ntest = 0.3\n[learner]\nkind = "HistogramForest"\n'


def run(small: bool) -> list[Outcome]:
    """Read labels of sites that know the study's text, with at most one request to each."""
    n, tasks = (80, 12) if small else (340, 300)
    federation = sv.federate_rows(_tables(n), test=0.3, n_jobs=1)
    said = text_of(parse_remote_study(_TEXT), federation.study)
    with holding_to(said, federation.local_sites.values()):
        read, rows, note = read_labels(federation, tasks)
    target = f"labels of {rows} by local models in {tasks} tasks"
    return [Outcome(target, "91 of 102", read, 0, note)]


def unheld(n: int, tasks: int, *, between_machines: bool = False) -> tuple[float, int]:
    """Return how many labels are read if sites do not check fields, and how many the columns alone predict."""
    given = _tables(n)
    if between_machines:
        federation = as_between_machines(given, 1, test=0.3)
    else:
        federation = sv.federate_rows(given, test=0.3, n_jobs=1)
    rows = known(federation, test=True)
    with patch("silvan.privacy.terms.Terms.check"):
        read = read_labels(federation, tasks)[0]
    return read, int(np.sum((rows.X.sum(axis=1) > 0) == rows.y))


def read_labels(federation: Federation, tasks: int) -> tuple[float, int, str]:
    """Return how many of the target's test labels are read, their number, and the site's last reply."""
    rows, sums, note = known(federation, test=True), [], ""
    n = len(rows.y)
    for i in range(tasks):
        f = i % rows.X.shape[1]
        schema = Schema((federation.schema.features[f],), federation.schema.label)
        settings = Settings(n_estimators=1, max_depth=1, max_samples=0.15 + 0.8 * i / tasks)
        request = EvaluateModels(
            schema=federation.blob(schema.to_json().encode()),
            candidates=[LocalModel(settings)],
            feature_key=make_key(i, "features"),
        )
        try:
            with federation.working_on(f"a model {i}"):
                groups = federation.ask(request, to=[TARGET])[TARGET].details[0].groups[0]
        except SilvanError as error:
            note = str(error)
            continue
        if len(groups) == 2:
            sums.append((f, int(groups[1, 1:].sum()), groups[1, 2], groups[:, 2].sum()))
    return (float(np.sum(_solve(rows.X, sums) == rows.y)) if sums else 0.0), n, note


def _solve(X: np.ndarray, sums: list[tuple[int, int, float, float]]) -> np.ndarray:
    """Guess labels, given how many of the k rows with the largest values of a column have the class.

    Or with the smallest values: the guesses so far decide which.
    """
    n, guess = len(X), (X.sum(axis=1) > 0).astype(float)
    order = np.argsort(-X, axis=0, kind="stable")
    both = np.zeros((len(sums), 2, n))
    for i, (f, size, _, _) in enumerate(sums):
        both[i, 0, order[:size, f]] = 1.0
        both[i, 1, order[n - size :, f]] = 1.0
    positives, total = np.array([p for *_, p, _ in sums]), sums[0][3]
    for _ in range(10):
        side = np.abs(both @ guess - positives[:, None]).argmin(axis=1)
        A = np.concatenate([both[np.arange(len(sums)), side], np.ones((1, n))])
        guess = lsq_linear(A, np.append(positives, total), (0.0, 1.0)).x
    found: np.ndarray = guess > 0.5
    return found
