"""A coordinator that lies during the agreement, to sites that do not know the study's text.

It asks for values of a number as classes, forges the counts that show which categories are common, refines cells of
single rows, sets more cut points than a tree has bins, uses a schema with another label, sums a column of a single
site, and makes parties hand over digests of ids although the study uses private set intersection. ``open_to`` runs the
same attacks with the protections switched off.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
import silvan.algorithms.shared_bins
import silvan.federation.describe
from silvan.algorithms.class_counts import CountClasses
from silvan.algorithms.horizontal.histogram_forest import GrowLevel
from silvan.algorithms.shared_bins import CountFine, CountGrid, CutPoints
from silvan.data.bins.grid import Grid
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.describe import FLOOR, CategoryCounts, CountCategories, Describe, NameCategories
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, request_digest
from silvan.federation.party import KEY_BYTES
from silvan.federation.proven_sums import SumName, prove
from silvan.federation.site_table import Naming
from silvan.federation.sums import add
from silvan.forest.category_set import SET_WORDS
from silvan.privacy.identity.identity import Introduce
from silvan.tree.objectives import Measure

_CLOSE = 1e-5
"""How closely a salary must be known to count as read, as a share of it."""


def run(small: bool) -> list[Outcome]:
    """Run all attacks."""
    n = 400 if small else 800
    return [Outcome(what, before, *_try(attack, n)) for what, (before, attack) in _ATTACKS.items()]


def open_to(n: int = 400) -> dict[str, float]:
    """Return what each attack learns with its protection switched off."""
    with _without_checks():
        return {what: attack(n, False) for what, (_, attack) in _ATTACKS.items()}


def _try(attack: Callable[[int, bool], float], n: int) -> tuple[float, float, str]:
    try:
        return attack(n, True), 0.0, ""
    except SilvanError as error:
        return 0.0, 0.0, str(error).split(": ", 1)[-1]


@contextmanager
def _without_checks() -> Iterator[None]:
    """Switch off the rules that sites check by themselves."""

    def bins_of(site: object, blob: Blob, schema: Schema, *rest: object, **more: object) -> object:
        return real(site, blob, schema, public=True)

    real = silvan.algorithms.shared_bins.bins_of
    with (
        patch("silvan.federation.describe.check_classes"),
        patch("silvan.algorithms.shared_bins.most_fine_cells", lambda *of: 1 << 30),
        patch("silvan.algorithms.horizontal.histogram_forest.bins_of", bins_of),
        patch("silvan.privacy.terms.Terms.check"),
        patch("silvan.privacy.gate.check_columns"),
    ):
        yield


def _federation(n: int, held: bool, label: str = "event", naming: Naming = "proven") -> Federation:
    """Return two sites; with ``held`` they check requests as they do between machines."""
    rng = np.random.default_rng(3)
    table = pl.DataFrame(
        {
            "age": rng.integers(18, 90, 2 * n) + rng.random(2 * n).round(3),
            "surname": [f"name {k // 3}" for k in range(2 * n)],
            "hiv": rng.choice(["negative", "positive"], 2 * n, p=[0.9, 0.1]),
            "event": rng.choice(["no", "yes"], 2 * n),
            "illness": [f"rare {k % n}" if k % n < 3 else "common" for k in range(2 * n)],
            "salary": rng.lognormal(10, 0.5, 2 * n).round(2),
        }
    )
    schema = Schema.of(["age"], Label(label))  # given, so that no request came before the attack
    tables = {"here": table[:n], "there": table[n:]}
    federation = sv.federate_rows(tables, label=label, schema=schema, signed=True, n_jobs=1)
    for site in federation.local_sites.values():
        site.schema, site.naming = None, naming if held else "all"
    return federation


def _salaries(n: int, held: bool) -> float:
    """Make sites list the values of a numeric label as classes."""
    federation = _federation(n, held, "salary", "all")  # whoever asks
    return float(len(federation.ask(Describe(task="classification"))["here"].classes or ()))


def _rare_classes(n: int, held: bool) -> float:
    """Read classes that belong to one row each."""
    federation = _federation(n, held, "illness")
    return float(sum(str(name).startswith("rare") for name in federation.ask(Describe())["here"].classes or ()))


def _surnames(*, keyed: bool) -> Callable[[int, bool], float]:
    """Forge the counts of a column's hashes, so that all names look common; prove them by a key of one's own."""

    def attack(n: int, held: bool) -> float:
        federation = _federation(n, held)
        if not keyed:
            federation.before_sums = None  # sites are given no key
        with federation.working_on("names"):
            total = federation.total(CountCategories(names=["surname"]))
            counts = total.counts + np.where(total.counts > 0, np.int32(FLOOR), np.int32(0))
            name, [first, *others] = SumName(federation.study, federation.task, federation.sites), federation.sites
            asked = request_digest("CountCategories", wire.encode(CountCategories(names=["surname"])))
            forged = prove(bytes(KEY_BYTES), name, asked, first, CategoryCounts(counts=counts))
            for site in others:
                forged = add(
                    forged, prove(bytes(KEY_BYTES), name, asked, site, CategoryCounts(counts=0 * counts)), site, []
                )
            blob = federation.blob(wire.encode(forged))
            replies = federation.ask(NameCategories(names=["surname"], counts=blob, sites=federation.sites))
        return float(sum(len(reply.names[0]) for reply in replies.values()))

    return attack


def _fine_salaries(n: int, held: bool) -> float:
    """Refine all cells that contain a salary; count the salaries known to one part in a hundred thousand."""
    federation = _federation(n, held)
    schema = Schema.of(["salary"], Label("event", ("no", "yes")))
    blob = federation.blob(schema.to_json().encode())
    with federation.working_on("a model"):
        [coarse] = federation.total(CountGrid(schema=blob)).cells
        table_grid, cells = Grid.for_columns(1), np.flatnonzero(coarse).astype(np.int32)
        shifts = np.full(len(cells), table_grid.finest, np.int32)
        request = CountFine(schema=blob, max_bins=64, columns=np.zeros_like(cells), cells=cells, shifts=shifts)
        fine = federation.total(request).cells
    alone = np.flatnonzero(fine == 1)
    wide = 2.0 ** (table_grid.finest - 23)  # of a cell, as a share of the number at most
    return float(len(alone)) if wide <= _CLOSE else 0.0


def _cut_points(n: int, held: bool) -> float:
    """Place a cut point between any two neighbouring ages, and read the labels of rows alone in a bin."""
    federation = _federation(n, held)
    schema = Schema.of([Feature("age")], Label("event", ("no", "yes")))
    ages = np.sort(federation.site("here").frame["age"].to_numpy().astype(np.float32))[:250]
    cuts = np.unique((ages[1:] + ages[:-1]) / 2).astype(np.float32)
    points = CutPoints(np.array([len(cuts)]), cuts)
    none = np.zeros(0, np.int32)
    request = GrowLevel(
        schema=federation.blob(schema.to_json().encode()),
        bins=federation.blob(wire.encode(points)),
        measure=Measure("gini", 2, 0, (1, 1), 2 * n),
        n_trees=1,
        bootstrap=False,
        min_leaf=20,
        max_bins=64,  # as the study says
        nodes=np.zeros(1, np.int32),
        features=np.zeros((1, 1), np.int32),
        round_sizes=np.zeros(0, np.int64),
        split_node=none,
        split_feature=none,
        split_bin=none,
        split_missing_left=np.zeros(0, bool),
        split_words=np.zeros((0, SET_WORDS), np.uint64),
    )
    with federation.working_on("a model"):
        sums = federation.total(request).sums
    return float((sums.sum(axis=1) == 1).sum())


def _other_label(n: int, held: bool) -> float:
    """Count the classes of a column that is not the label."""
    schema = Schema.of([Feature("salary")], Label("hiv", ("negative", "positive")))
    return _count_classes(_federation(n, held), [schema])


def _second_schema(n: int, held: bool) -> float:
    """Count classes with a second schema of the same label, in another task."""
    label = Label("event", ("no", "yes"))
    return _count_classes(_federation(n, held), [Schema.of(["age"], label), Schema.of(["salary"], label)])


def _count_classes(federation: Federation, schemas: list[Schema]) -> float:
    for schema in schemas:
        with federation.working_on("a model"):
            counts = federation.total(CountClasses(schema=federation.blob(schema.to_json().encode()))).counts
    return float(np.count_nonzero(counts))


def _one_site(n: int, held: bool) -> float:
    """Sum a column of a single site over three sites, each of which requires sums over three."""
    rng = np.random.default_rng(3)
    tables = {
        s: pl.DataFrame({"age": rng.random(n), "label": np.arange(n) % 2}) for s in ("here", "there", "elsewhere")
    }
    tables["here"] = tables["here"].with_columns(salary=pl.Series(rng.lognormal(10, 0.5, n)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'salary' is absent", UserWarning)
        federation = sv.federate_rows(tables, policy=sv.Policy(min_sites=3), n_jobs=1)
    schema = federation.blob(Schema.of(["salary"], federation.schema.label).to_json().encode())
    with federation.working_on("a model"):
        return float(federation.total(CountGrid(schema=schema)).cells.sum())


def _digests(n: int, held: bool) -> float:
    """Make parties introduce themselves with digests of all ids."""
    ids = {"id": np.arange(n)}
    tables = {
        "shop": pl.DataFrame({**ids, "visits": np.arange(n)}),
        "bank": pl.DataFrame({**ids, "balance": np.arange(n), "label": np.arange(n) % 2}),
    }
    federation = sv.federate_columns(tables, id="id", label="label", match="psi" if held else "keyed")
    return float(len(federation.ask(Introduce())["shop"].digests))


_ATTACKS: dict[str, tuple[str, Callable[[int, bool], float]]] = {
    "exact salaries, as classes": ("400 of 400", _salaries),
    "classes that one row of a site has": ("3 of 3", _rare_classes),
    "surnames that three people share, by forged counts": ("232 of 800 (250 of 267 in small)", _surnames(keyed=True)),
    "the same, where sites share no key": ("232 of 800 (250 of 267 in small)", _surnames(keyed=False)),
    "salaries to a hundred-thousandth, by cells of one row": ("388 of 400 (796 of 800 in small)", _fine_salaries),
    "labels, by more cut points than the study has bins": ("455 of 455 (114 of 250 in small)", _cut_points),
    "classes of a label outside the study": ("2 of 2", _other_label),
    "classes by a second schema": ("2 of 2", _second_schema),
    "one site's column, by sums over three sites": ("all rows", _one_site),
    "digests of ids, in a study that matches by private set intersection": ("all", _digests),
}
