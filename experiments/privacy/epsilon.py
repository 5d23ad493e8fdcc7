"""An empirical lower bound on epsilon for every mechanism, and for deliberately wrong accounting.

    python -m experiments.privacy.epsilon --draws 40000

Every request of every private forest, about two tables that differ in one distant row, gets many noisy replies, at
one site and in shares of three; also randomised rows, and all requests of a forest together: with an honest
coordinator, with one that chooses the worst schema that a site accepts, with a lost site and a curious one. A bound
(Clopper-Pearson, 95% for all audits together) above the claim would refute the accounting. Writes ``epsilon.csv``;
``table.py`` makes tables of it.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # the study that the tests audit, with fewer samples

from experiments.privacy.measured_epsilon import Bound, audit_all, audit_counts, audit_rows  # noqa: E402
from helpers.private_study import FAR, composed, hostile_schema, one_more, requests, rows_scored, schema  # noqa: E402
from helpers.studies import table  # noqa: E402

from silvan.privacy.noise.laplace import Noise  # noqa: E402
from silvan.privacy.noise.noisy_request import Noisy  # noqa: E402

RESULTS = Path(__file__).parent / "epsilon.csv"
FIELDS = ("account", "mechanism", "task", "noise", "counters", "claimed", "at least", "draws")
EPSILONS = (0.5, 1.5, 3.0)
MIDDLE = 1.5
AT_A_SITE = "at a site"
CLAIM = 1.0
SURE = 1 - 0.05 / 100
"""Confidence of one bound, so that all of them, fewer than a hundred, hold together with 95 %."""

PLACES = ((AT_A_SITE, 1, 1), ("3 shares of 3 sites", 3, 3), ("2 shares of 3 sites, one lost", 2, 2))

OF_FOUR = (
    (AT_A_SITE, 1, 1),
    ("3 shares of 4 sites", 3, 4),
    ("3 shares of 4 sites, one curious", 3, 3),
    ("2 shares of 4 sites, one lost", 2, 3),
    ("2 shares of 4 sites, one lost, one curious", 2, 2),
)
"""How many shares are the whole noise, and how many are in the sum for whoever does not know them."""


@dataclass(frozen=True)
class Case:
    """What is audited: the accounting, the place of the noise, how many counters a row changes, and the claim."""

    account: str
    mechanism: str
    task: str
    noise: str
    counters: int
    claimed: float
    audit: Callable[[int], Bound]

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the case."""
        return self.account, self.mechanism, self.task, self.noise, f"{self.claimed:g}"


def cases() -> Iterator[Case]:
    """List the audits: every request at one epsilon; for two classes, at all of them."""
    for epsilon, task in product(EPSILONS, FAR):
        if task == "binary" or epsilon == MIDDLE:
            places = PLACES if (task, epsilon) == ("binary", MIDDLE) else PLACES[:1]
            yield from asked_alone(task, epsilon, places)
            columns = len(schema(task).features) + 1
            yield Case("right", "disguised rows", task, AT_A_SITE, columns, epsilon, _rows(task, epsilon, epsilon))
    for form in ("tables", "levels"):
        asked, _ = composed(form, table(n=120), MIDDLE)
        yield Case("right", f"all of {form}", "binary", AT_A_SITE, _differ(asked), MIDDLE, _all(asked, MIDDLE))
    yield from whole_forms()
    yield from wrong(MIDDLE)
    yield from wrong_sums()


def asked_alone(task: str, epsilon: float, places: tuple[Any, ...]) -> Iterator[Case]:
    """List every request by itself."""
    frame = table(task, 120)
    far = one_more(frame, label=FAR[task])
    for place, sharers, sites in places:
        pair = requests(task, far, epsilon, sharers), requests(task, frame, epsilon, sharers)
        for (name, request, a), (_, _, b) in zip(*pair, strict=True):
            counters = _differ([(request, a, b)])
            yield Case("right", name, task, place, counters, epsilon, _counts(request, task, a, b, sites))


def whole_forms() -> Iterator[Case]:
    """List the forms with all requests: an honest coordinator, a hostile one, a lost site, a curious one."""
    for task in ("binary", "number"):
        frame = table(task, 120)
        for form in ("tables", "levels"):
            for place, sharers, shares in OF_FOUR:
                asked, _ = composed(form, frame, CLAIM, task, sharers)
                yield _form_case(form, task, place, asked, shares, schema(task))
            worst = hostile_schema(task)
            asked, _ = composed(form, frame, CLAIM, task, 1, worst)
            yield _form_case(form, task, f"{AT_A_SITE}, hostile coordinator", asked, 1, worst)
        for place, known in ((AT_A_SITE, schema(task)), (f"{AT_A_SITE}, hostile coordinator", hostile_schema(task))):
            audit = _rows(task, CLAIM, CLAIM, known)
            yield Case("right", "all of input", task, place, len(known.features) + 1, CLAIM, audit)
        for place, others in (("sum of 4 sites, one lost", 2), ("sum of 4 sites, one lost, one curious", 1)):
            columns = len(schema(task).features) + 1
            yield Case("right", "all of input", task, place, columns, CLAIM, _sums_of_rows(task, others))


def _form_case(form: str, task: str, place: str, asked: list[Any], shares: int, known: Any) -> Case:
    return Case(
        "right",
        f"all of {form}",
        task,
        place,
        _differ(asked),
        CLAIM,
        lambda draws: audit_all(asked, known, CLAIM, draws, shares, SURE),
    )


def wrong_sums() -> Iterator[Case]:
    """List requests that sites refuse, as if they did not: an unplanned loss, and bounds one float apart."""
    _, people, n = next(q for q in requests("binary", table(n=120), CLAIM, 3) if q[0] == "people")
    place = "3 shares of 4 sites, one lost, one curious"
    yield Case("a loss not counted", "people", "binary", place, 1, CLAIM, _counts(people, "binary", n + 1, n, 2))
    _, targets, total = next(q for q in requests("number", table("number", 120), CLAIM) if q[0] == "targets")
    audit = _counts(targets, "number", total + 254, total, 1)  # the effect of rounding on bounds one float apart
    yield Case("not clipped after rounding", "targets", "number", AT_A_SITE, 1, CLAIM, audit)


def wrong(epsilon: float) -> Iterator[Case]:
    """List deliberately wrong accounting: the bound must exceed the claim."""
    frame = table(n=120)
    pair = requests("binary", one_more(frame), epsilon), requests("binary", frame, epsilon)
    found = {name: (request, a, b) for (name, request, a), (_, _, b) in zip(*pair, strict=True)}
    (_, shared, without), *_ = [q for q in requests("binary", frame, epsilon, 4) if q[0] == "people"]
    lost, asked = (shared, without + 1, without), list(found.values())
    some: list[tuple[str, str, str, list[Any], Callable[[int], Bound]]] = [
        *(
            ("features as parallel", name, AT_A_SITE, [found[name]], _patched(parallel, _counts_of(found[name])))
            for name in ("columns", "tables", "level")
        ),
        ("rounds as parallel", "all of them", AT_A_SITE, asked, _all(asked, epsilon)),
        ("half the noise", "people", AT_A_SITE, [found["people"]], _patched(halved, _counts_of(found["people"]))),
        ("half the shares lost", "people", "4 shares of 4 sites, 2 lost", [lost], _counts_of(lost, 2)),
    ]
    for account, name, place, answers, audit in some:
        yield Case(account, name, "binary", place, _differ(answers), epsilon, audit)
    audit = _rows("binary", 6 * epsilon, epsilon)
    yield Case("columns as parallel", "disguised rows", "binary", AT_A_SITE, 6, epsilon, audit)


def _differ(asked: list[Any]) -> int:
    """Count the counters that one row changes."""
    return sum(int((a != b).sum()) for _, a, b in asked)


def parallel(self: Noisy, sensitivity: int, share: Any = 1) -> Noise:
    """Make noise as if histograms that all see a row were queried in parallel."""
    return Noise(1, self.epsilon, self.sharers)


_RIGHT = Noisy.noise


def halved(self: Noisy, sensitivity: int, share: Any = 1) -> Noise:
    """Make half of the noise that is claimed."""
    return _RIGHT(self, sensitivity, 2 * share)


def _patched(noise: Callable[..., Noise], audit: Callable[[int], Bound]) -> Callable[[int], Bound]:
    def run(draws: int) -> Bound:
        with mock.patch.object(Noisy, "noise", noise):
            return audit(draws)

    return run


def _counts(request: Noisy, task: str, with_row: Any, without: Any, sites: int) -> Callable[[int], Bound]:
    return lambda draws: audit_counts(request, schema(task), with_row, without, draws, sites, SURE)


def _counts_of(asked: tuple[Noisy, Any, Any], sites: int = 1) -> Callable[[int], Bound]:
    return _counts(asked[0], "binary", asked[1], asked[2], sites)


def _all(asked: list[Any], claimed: float) -> Callable[[int], Bound]:
    return lambda draws: audit_all(asked, schema(), claimed, draws, 1, SURE)


def _rows(task: str, epsilon: float, claimed: float, known: Any = None) -> Callable[[int], Bound]:
    return lambda draws: audit_rows(lambda row, n: rows_scored(task, row, n, epsilon, known), claimed, draws, SURE)


def _sums_of_rows(task: str, others: int) -> Callable[[int], Bound]:
    """Audit a row in the sum of its randomised version and those of known and unknown sites."""

    def scored(row: int, n: int) -> Any:
        return sum(rows_scored(task, known, n, CLAIM) for known in [row, *[0] * others])

    return lambda draws: audit_rows(scored, CLAIM, draws, SURE)


def main() -> None:
    """Run the audits that are missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=40_000)
    parser.add_argument("--part", default="0/1", help="which of so many parts to run, say 0/3")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    if not RESULTS.exists():
        RESULTS.write_text(",".join(FIELDS) + "\n")
    with RESULTS.open(newline="") as file:
        done = {(*(row[name] for name in FIELDS[:4]), row["claimed"]) for row in csv.DictReader(file)}
    for i, case in enumerate(cases()):
        if i % parts != part or case.key in done:
            continue
        found = case.audit(given.draws)
        row = [*case.key[:4], case.counters, f"{found.claimed:g}", f"{found.at_least:.3f}", given.draws]
        with RESULTS.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        print(*row, flush=True)


if __name__ == "__main__":
    main()
