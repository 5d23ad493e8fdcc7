"""A coordinator that learns rows from the errors of noisy requests, which cost nothing if they fail."""

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.private.table_counts import CountTables
from silvan.errors import SilvanError
from silvan.federation.federation import Federation

MOST = 127
"""Ages are whole numbers of at most this."""

Test = Callable[[range], bool]


def run(small: bool) -> list[Outcome]:
    """Find the oldest person and all ages that occur, by which requests fail and how."""
    n = 24 if small else 300
    ages = np.random.default_rng(0).integers(18, 101, n)
    values = set(ages.tolist())
    outcomes = []
    for label in ("age", "label"):  # of another column than the label, or of the label itself
        for malformed in (True, False):
            form = "malformed" if malformed else "well-formed"
            how = f"{form} requests on {'the label' if label == 'label' else 'a column'}"
            frame = pl.DataFrame({"age": ages, "label": ages if label == "label" else np.arange(n) % 2})
            oracle = Oracle(frame, label, malformed)
            oldest = _largest(oracle.occurs)
            told = oracle.tells
            outcomes.append(
                Outcome(f"the oldest of all, by 7 {how}", "1", int(told and oldest == ages.max()), note=oracle.note)
            )
            found = set(_present(oracle.occurs, range(MOST + 1))) if told else set()
            before = f"{len(values)} of {len(values)}"
            outcomes.append(Outcome(f"{len(values)} ages by {how}", before, len(found & values), note=oracle.note))
    return outcomes


class Oracle:
    """One site with a budget, and noisy requests whose label has only some of the values as classes."""

    def __init__(self, frame: pl.DataFrame, label: str, malformed: bool) -> None:
        policy = sv.Policy(epsilon=1.0, messages=("*", "Describe"))
        self.federation: Federation = sv.federate_rows({"alone": frame}, task="regression", policy=policy, n_jobs=1)
        self.label, self.malformed = label, malformed
        self.answers: set[str] = set()

    @property
    def tells(self) -> bool:
        """Whether replies have differed at all."""
        return len(self.answers) > 1

    @property
    def note(self) -> str:
        """The site's reply."""
        return "; ".join(sorted(self.answers))

    def occurs(self, some: range) -> bool:
        """Send a request with all classes but some, to learn whether one of these occurs."""
        classes = (-1, *(value for value in range(MOST + 1) if value not in some))
        schema = sv.Schema.of([sv.Feature("nothing", bounds=(0.0, 1.0))], sv.Label(self.label, classes=classes))
        request = CountTables(
            epsilon=1e-6,
            schema=self.federation.blob(schema.to_json().encode()),
            columns=np.array([0], np.int32),
            sizes=np.array([1]),
            cuts=np.array([0.5], np.float32),
            missing=np.array([9 if self.malformed else 0]),
            table_sizes=np.array([1]),
            table_columns=np.array([0]),
        )
        try:
            with self.federation.working_on("a model"):
                self.federation.total(request)
            answer = "answered"
        except SilvanError as error:
            answer = str(error)
        self.answers.add(answer)
        return "on its table" in answer


def _largest(occurs: Test) -> int:
    low, high = 0, MOST
    while low < high:
        middle = (low + high + 1) // 2
        if occurs(range(middle, MOST + 1)):
            low = middle
        else:
            high = middle - 1
    return low


def _present(occurs: Test, some: range) -> Iterator[int]:
    """Bisect until single values are left."""
    if not occurs(some):
        return
    if len(some) == 1:
        yield some[0]
        return
    middle = len(some) // 2
    yield from _present(occurs, some[:middle])
    yield from _present(occurs, some[middle:])
