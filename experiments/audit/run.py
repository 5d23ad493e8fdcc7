"""The table of attacks: every attack against releases of the same rows, with defences off and on.

    SILVAN_DATA=folder python -m experiments.audit.run --seeds 3     # resumes where it stopped
    python -m experiments.audit.run --tables                         # puts the tables into README.md

Half of each site's rows are training rows; results are means over seeds, which determine the split, the samples and
everything else. Every part of every seed is written to ``results.csv`` when it is done and not run again; remove the
file to start over. Missing data sets are left out with a notice.
"""

import argparse
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
from experiments import tables_by_name as datasets
from experiments.audit.backdoors import KINDS
from sklearn.base import clone

import silvan as sv
from silvan.auditing import rebuild_from_boxes, rebuild_from_counts
from silvan.auditing.attribute import guess_attributes
from silvan.auditing.backdoor import backdoor_trees
from silvan.auditing.differencing import difference_sums
from silvan.auditing.drill import BOX_COLUMNS, BOX_ROWS, few_rows, release_of
from silvan.auditing.findings import ATTACKS, Finding
from silvan.auditing.labels_from_leaves import labels_from_leaves
from silvan.auditing.membership import membership_by_confidence, membership_by_support
from silvan.auditing.release import Case, Release, case_of, undefended_release
from silvan.auditing.run_audit import seen_by_trees
from silvan.auditing.single_row_leaves import single_row_leaves
from silvan.auditing.site_assignment import assign_patients
from silvan.auditing.thresholds import exact_thresholds
from silvan.auditing.vertical_labels import labels_from_partitions
from silvan.errors import InputError
from silvan.metrics import classification
from silvan.tree.fit import Settings

HERE = Path(__file__).parent
SETS = ("breast_cancer", "pima", "ilpd")
SITES = 4
TREES = 50
MOST_ROWS = 1500
LEAVES = (2, 5, 20)

Line = tuple[str, str, str, int, float | None, str]


def tables(name: str, seed: int) -> tuple[dict[str, pl.DataFrame], sv.Schema]:
    """Distribute a set's rows to sites, with a schema whose bounds count as public."""
    data = datasets.load(name)
    frame = pl.DataFrame(data.frame.to_native()).rename({data.label: "label"})
    frame = frame.sample(min(len(frame), MOST_ROWS), shuffle=True, seed=seed)
    numbers = [c for c in frame.columns if c != "label" and frame[c].dtype.is_numeric()]
    frame = frame.select([*numbers, "label"])
    ends = {c: (float(frame[c].min()), float(frame[c].max())) for c in numbers}  # type: ignore[arg-type]
    features = [sv.Feature(c, bounds=(low, high if high > low else low + 1)) for c, (low, high) in ends.items()]
    classes = tuple(sorted(frame["label"].unique().to_list()))
    schema = sv.Schema(tuple(features), sv.Label("label", classes))
    return {f"site {i}": frame[i::SITES] for i in range(SITES)}, schema


def releases(name: str, seed: int) -> Iterator[tuple[str, Release, Case, np.ndarray | None, np.ndarray | None]]:
    """Make forests: undefended, of growing leaf sizes, and with differential privacy.

    Also yield the rows to attack, the training rows of each tree, and the rows that the attacker considers possible.
    """
    parts, schema = tables(name, seed)
    plain = sv.federate_rows(parts, test=0.5, schema=schema, random_state=seed, n_jobs=1)
    case = case_of(plain, schema, seed)
    open_ = undefended_release(case.members, schema.n_classes, TREES, seed)
    yield "off", open_, case, None, None
    yield "off, without counts", Release(open_.forest), case, None, None
    for leaf in LEAVES:
        model = sv.MergedForest(n_estimators=TREES, min_samples_leaf=leaf, random_state=seed).fit(plain)
        seen = seen_by_trees(model, plain, model.forest_)
        yield f"leaf {leaf}", Release(model.forest_.bare()), case, model.sampled_rows(plain), seen
    try:
        singly = sv.federate_rows(parts, test=0.5, test_by="row", schema=schema, random_state=seed, n_jobs=1)
        private = sv.HistogramForest(epsilon=1.0, random_state=seed).fit(singly)
        yield "epsilon 1", Release(private.forest_.bare()), case_of(singly, schema, seed), None, None
    except (ImportError, InputError) as error:
        print(f"{name}: no private tables ({error})", file=sys.stderr)


def on_rows(name: str, seed: int) -> Iterator[Line]:
    """Attack forests."""
    for label, release, case, drawn, _ in releases(name, seed):
        proba = release.forest.scores(case.outsiders.X, 1)
        yield name, "(AUC of the forest itself)", label, seed, classification(proba, case.outsiders.y)["auc"], ""
        for attack in (membership_by_confidence, membership_by_support, guess_attributes, exact_thresholds):
            yield line(name, label, seed, attack(release, case))
        yield line(name, label, seed, single_row_leaves(release, case, drawn))


def leaf_labels(name: str, seed: int) -> Iterator[Line]:
    """Solve for labels."""
    for label, release, case, _, seen in releases(name, seed):
        yield line(name, label, seed, labels_from_leaves(release, case, seen))


def boxes(name: str, seed: int) -> Iterator[Line]:
    """Rebuild small tables from boxes."""
    yield from _small(name, seed, rebuild_from_boxes.reconstruct_from_boxes, rebuild_from_boxes.TREES)


def small(name: str, seed: int) -> Iterator[Line]:
    """Rebuild small tables of yes/no columns."""
    yield from _small(name, seed, rebuild_from_counts.reconstruct_from_counts, rebuild_from_counts.TREES)


def _small(name: str, seed: int, attack: Callable[[Release, Case], Finding], n_trees: int) -> Iterator[Line]:
    parts, schema = tables(name, seed)
    fed = sv.federate_rows(parts, test=0.5, schema=schema, random_state=seed, n_jobs=1)
    yes_no = attack is rebuild_from_counts.reconstruct_from_counts
    n, columns = (rebuild_from_counts.ROWS, rebuild_from_counts.COLUMNS) if yes_no else (BOX_ROWS, BOX_COLUMNS)
    few = few_rows(case_of(fed, schema, seed), list(range(len(schema.features))), n, columns, yes_no)
    yield line(name, "off", seed, attack(undefended_release(few.members, 2, n_trees, seed, bootstrap=False), few))
    yield line(name, "off, drawn rows", seed, attack(undefended_release(few.members, 2, n_trees, seed), few))
    for leaf, draws in itertools.product(LEAVES, (False, True)):
        settings = Settings(n_estimators=n_trees, min_samples_leaf=leaf, bootstrap=draws)
        label = f"leaf {leaf}{'' if draws else ', all rows'}"
        yield line(name, label, seed, attack(release_of(few.members, settings, seed), few))


def together(name: str, seed: int) -> Iterator[Line]:
    """Attack the protocol between sites."""
    parts, schema = tables(name, seed)
    for sums in ("trusted", "ring", "masked"):
        fed = sv.federate_rows(parts, test=0.5, schema=schema, random_state=seed, sums=sums, n_jobs=1)
        yield line(name, sums, seed, assign_patients(fed, seed))
    fed = sv.federate_rows(parts, test=0.5, schema=schema, random_state=seed, n_jobs=1)
    found = difference_sums(fed)
    yield name, found.attack, "sites remember nothing", seed, found.undefended, ""
    for sums in ("trusted", "ring", "masked"):
        fed = sv.federate_rows(parts, test=0.5, schema=schema, random_state=seed, sums=sums, n_jobs=1)
        yield line(name, f"sites remember, {sums} sums", seed, difference_sums(fed))


def backdoors(name: str, seed: int) -> Iterator[Line]:
    """Let one site send backdoored trees; also evaluate the forest without an attacker, for the cost of defences."""
    parts, schema = tables(name, seed)
    fed = sv.federate_rows(parts, test=0.5, schema=schema, random_state=seed, n_jobs=1)
    others = case_of(fed, schema, seed).outsiders
    merged, weighed = {"n_estimators": 48, "max_depth": 6}, {"n_estimators": 12, "max_depth": 6}
    learners = {
        "merged by claimed rows": sv.MergedForest(**merged, weights="trees"),
        "merged, equal": sv.MergedForest(**merged, equal=True),
        "merged, equal, recount": sv.MergedForest(**merged, equal=True, refit_leaves=True),
        "BOFRF": sv.BOFRF(**weighed),
        "BOFRF, recount": sv.BOFRF(**weighed, refit_leaves=True),
    }
    for label, model in learners.items():
        proba = clone(model).fit(fed).forest_.scores(others.X, 1)
        yield name, "(AUC of the forest itself)", label, seed, classification(proba, others.y)["auc"], ""
        for kind, how in KINDS.items():
            yield line(name, f"{label}: {kind} trees", seed, backdoor_trees(model, fed, others, **how))


def by_columns(name: str, seed: int) -> Iterator[Line]:
    """Attack labels in a vertical forest; the other party has every second column."""
    parts, schema = tables(name, seed)
    frame = pl.concat(parts.values())[:400].with_row_index("id")
    classes = list(schema.label.classes or ())
    frame = frame.with_columns(label=pl.col("label").replace_strict({c: i for i, c in enumerate(classes)}))
    held = {"holder": ["id", *schema.names[::2], "label"], "curious": ["id", *schema.names[1::2]]}
    fed = sv.federate_columns(
        {party: frame.select(columns) for party, columns in held.items()},
        id="id",
        label="label",
        policy=sv.Policy(min_leaf=1),
        n_jobs=1,
    )
    for leaf in (1, *LEAVES):
        model = sv.VerticalForest(n_estimators=20, max_depth=12, min_samples_leaf=leaf)
        yield line(name, f"leaf {leaf}", seed, labels_from_partitions(model, fed, seed))


def line(name: str, release: str, seed: int, found: Finding) -> Line:
    """Make a line of the results."""
    return name, found.attack, release, seed, found.value, found.note


def table(results: pl.DataFrame, attack: str) -> str:
    """Write one attack as a Markdown table: one line per release, one column per data set."""
    here = results.filter(pl.col("attack") == attack)
    names = here["set"].unique(maintain_order=True).to_list()
    lines = ["| release | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for release in here["release"].unique(maintain_order=True).to_list():
        cells = []
        for name in names:
            values = here.filter((pl.col("release") == release) & (pl.col("set") == name))["value"].drop_nulls()
            cells.append(f"{values.mean():.3f}" if len(values) else "–")
        lines.append(f"| {release} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


PARTS = (on_rows, leaf_labels, boxes, small, together, backdoors, by_columns)
COLUMNS = {"set": pl.String, "part": pl.String, "attack": pl.String, "release": pl.String, "seed": pl.Int64}
RESULTS = HERE / "results.csv"


def known() -> pl.DataFrame:
    """Read what there is."""
    schema = {**COLUMNS, "value": pl.Float64, "note": pl.String}
    return pl.read_csv(RESULTS, schema=schema) if RESULTS.exists() else pl.DataFrame(schema=schema)


def run(sets: list[str], seeds: int) -> None:
    """Run all attacks on all sets, except parts that are done."""
    for seed, name in itertools.product(range(seeds), sets):
        if name not in datasets.names():
            print(f"{name}: not there, left out; set SILVAN_DATA", file=sys.stderr)
            continue
        for part in PARTS:
            results = known()
            here = (pl.col("set") == name) & (pl.col("part") == part.__name__) & (pl.col("seed") == seed)
            if len(results.filter(here)):
                continue
            lines = [(one[0], part.__name__, *one[1:]) for one in part(name, seed)]
            new = pl.DataFrame(lines, schema=results.schema, orient="row")
            pl.concat([results, new]).write_csv(RESULTS, float_precision=4)
            print(f"{name}, seed {seed}, {part.__name__}: done", file=sys.stderr, flush=True)


CHANCE = {"membership": 0.5, "support": 0.5, "labels": 0.5}
MARK = "<!-- tables: made by run.py --tables -->"


def tables_of(results: pl.DataFrame) -> str:
    """Write all tables of the README."""
    seeds = results.group_by("set", maintain_order=True).agg(pl.col("seed").n_unique())
    listed = ", ".join(f"{name} {n}" for name, n in seeds.iter_rows())
    found = [f"Means over seeds ({listed}).", ""]
    for attack in results["attack"].unique(maintain_order=True).to_list():
        title = ATTACKS[attack].title if attack in ATTACKS else attack
        about = f": {ATTACKS[attack].measure}; chance {CHANCE.get(attack, 0):g}" if attack in ATTACKS else ""
        found += [f"**{title}**{about}" if about else "**AUC of the forest itself**", "", table(results, attack), ""]
    return "\n".join(found)


def main() -> None:
    """Run, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--tables", action="store_true")
    given = parser.parse_args()
    if not given.tables:
        warnings.simplefilter("ignore")
        run(given.sets, given.seeds)
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(MARK)
    _, _, after = rest.partition(MARK)
    page.write_text(f"{before}{MARK}\n\n{tables_of(known())}\n{MARK}{after}")


if __name__ == "__main__":
    main()
