"""Made the files in tests/data/version_0_1_0, which later versions must read; run by version 0.1.0, once.

::

    git worktree add /tmp/old b306b39
    PYTHONPATH=/tmp/old/src python tools/make_old_files.py FOLDER

All of it is made in /srv/silvan, so that no path of a developer's machine is in a file, and copied to FOLDER. Keys and
noise are drawn, so another run gives other files; ``expected.json`` says what is in these.
The federation of machines needs nvflare and the ports 8102 and 8103. The README in the folder describes each file.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import silvan as sv

WORK = Path("/srv/silvan")
SMALL = {"n_estimators": 3, "max_depth": 3}
ID = "person"

FIT = """\
name = "two clinics"
test = 0.3
exclude = ["cost"]
output = "run"

[sites]
north = "../tables/north.csv"
south = "../tables/south.csv"

[learner]
kind = "HistogramForest"
n_estimators = 3
max_depth = 3
"""

FAR = """\
name = "heart"
test = 0.3
exclude = ["cost"]
sums = "trusted"

[learner]
kind = "MergedForest"
n_estimators = 2
max_depth = 3
"""

SCHEMA = [
    sv.Feature("age", bounds=(0, 100)),
    sv.Feature("dose", bounds=(1, 5)),
    sv.Feature("sex", "categorical", categories=("f", "m")),
    sv.Feature("ward", "categorical", categories=("a", "b", "c"), other=True),
]


class Stop(Exception):  # noqa: N818
    """The coordinator stops here."""


def people(n: int, seed: int) -> pl.DataFrame:
    """Numbers and text with missing values, a class and a number to predict."""
    rng = np.random.default_rng(seed)
    age, dose = np.round(rng.normal(50, 12, n), 1), rng.integers(1, 6, n)
    sex, ward = rng.choice(["f", "m"], n), rng.choice(["a", "b", "c", "rare"], n, p=[0.5, 0.3, 0.15, 0.05])
    signal = age / 10 + dose * (ward == "a") + 2 * (sex == "f") + rng.normal(size=n)
    gaps = rng.random((2, n)) < 0.1
    return pl.DataFrame(
        {
            "age": [None if gap else float(x) for x, gap in zip(age, gaps[0], strict=True)],
            "dose": dose,
            "sex": sex,
            "ward": [None if gap else str(x) for x, gap in zip(ward, gaps[1], strict=True)],
            "label": np.where(signal > 8, "yes", "no"),
            "cost": np.round(1000 + 7 * signal, 1),
        }
    )


def write_tables(folder: Path) -> None:
    """Write the tables that everything else is made from."""
    folder.mkdir()
    for seed, (site, n) in enumerate({"north": 60, "east": 50, "south": 40}.items()):
        people(n, seed).write_csv(folder / f"{site}.csv")
    frame = people(60, 9).with_columns(pl.Series(ID, np.random.default_rng(9).permutation(500)[:60]))
    frame.select(ID, "age", "ward", "label")[:55].write_csv(folder / "bank.csv")
    frame.select(ID, "dose", "sex")[5:].reverse().write_csv(folder / "shop.csv")


def sites(*names: str) -> dict[str, str]:
    """Give the tables of sites, or parties."""
    return {name: f"tables/{name}.csv" for name in names}


# -- in one process


def make_models(folder: Path) -> dict[str, Any]:
    """Save models of every version of the file format, and of both kinds in shares."""
    folder.mkdir()
    table = pl.concat([pl.read_csv(path) for path in sites("north", "east", "south").values()])
    X = table.drop("label", "cost")
    three = sites("north", "east", "south")
    fed = sv.federate_rows(three, exclude=["cost"], test=0.2)
    public = sv.federate_rows(three, schema=sv.Schema.of(SCHEMA, sv.Label("label", ("no", "yes"))))
    forests = {
        "classifier": sv.ForestClassifier(**SMALL).fit(X, table["label"]).forest_,
        "regressor": sv.ForestRegressor(**SMALL).fit(X, table["cost"]).forest_,
        "bofrf": sv.BOFRF(**SMALL, tau=0.1).fit(fed).forest_,
        "adaboost": sv.AdaBoostPL(n_estimators=3).fit(fed).forest_,
        "private": sv.HistogramForest(epsilon=5.0, n_rows=150).fit(public).forest_,
    }
    expected = {}
    for name, forest in forests.items():
        forest.save(folder / f"{name}.silvan")
        expected[name] = {
            "hash": forest.hash,
            "combine": forest.combine,
            "trees": len(forest),
            "weights": forest.weights.tolist(),
            "predictions": forest.predict(pl.read_csv("tables/north.csv")).tolist()[:20],
        }
    fed = sv.federate_columns(sites("bank", "shop"), id=ID, label="label", test=0.2)
    vertical, linear = sv.VerticalForest(**SMALL).fit(fed), sv.VerticalLinear().fit(fed)
    for name, model in {"vertical": vertical, "linear": linear}.items():
        model.save(folder / name)
        expected[name] = {"predictions": model.predict(fed)["prediction"].to_list()[:20]}
    expected["vertical"]["hash"] = vertical.forest_.hash
    expected["linear"]["coefficients"] = linear.coefficients()["coefficient"].to_list()
    return expected


def interrupted_study(sums: str, journal: str | None = None, stop: int | None = None) -> dict[str, Any]:
    """Fit a learner or two and judge; stop when so many answers have come since the schema was there.

    With masked sums neither columns nor bins are agreed on, which takes much room.
    """
    schema = sv.Schema.of(SCHEMA, sv.Label("label", ("no", "yes")))
    settings = {"schema": schema} if sums == "masked" else {"exclude": ["cost"]}
    fed = sv.federate_rows(sites("north", "east", "south"), test=0.3, sums=sums, journal=journal, **settings)
    bofrf = sv.BOFRF(n_estimators=2, max_depth=3, personal=True)
    summed = sv.HistogramForest(n_estimators=2, max_depth=3)
    answers = []

    def watch(event: Any) -> None:
        answers.extend([event] if event.what == "answer" else [])
        if len(answers) == stop:
            raise Stop

    fed.watch(watch)
    try:
        models = [model.fit(fed) for model in ([bofrf] if sums == "masked" else [summed, bofrf])]
        return {
            "hashes": [model.forest_.hash for model in models],
            "auc": models[0].evaluate(fed)["auc"].to_list(),
            "answers": len(answers),
        }
    finally:
        fed.close()


def make_journals(folder: Path) -> dict[str, Any]:
    """Keep the journals of studies that were stopped half-way."""
    folder.mkdir()
    expected = {}
    for sums in ("trusted", "masked"):
        expected[sums] = interrupted_study(sums)
        with suppress(Stop):
            interrupted_study(sums, str(folder / f"{sums}.sqlite"), stop=expected[sums]["answers"] // 2)
    return expected


def make_ledgers(folder: Path) -> dict[str, Any]:
    """Keep the folders of sites whose owners approved a study, and its ledgers."""
    fed = sv.federate_rows(
        sites("north", "south"), exclude=["cost"], policy=sv.Policy(approve=True), ledgers=folder, signed=True
    )
    with suppress(sv.RefusedError):
        sv.MergedForest(**SMALL).fit(fed)  # not approved yet, which is in the ledger
    for site in fed.sites:
        silvan("site", "approve", folder / site, fed.study, "--tasks", 4)
    model = sv.MergedForest(**SMALL).fit(fed)
    lines = {site: fed.site(site).outbox.ledger.lines() for site in fed.sites}
    return {
        "study": fed.study,
        "hash": model.forest_.hash,
        "lines": {site: [line.said() for line in some] for site, some in lines.items()},
        "digests": {site: some[-1].hash for site, some in lines.items()},
    }


def make_budgets(folder: Path) -> dict[str, Any]:
    """Keep budgets of which something is spent, with the noisy answers that were given for it."""
    schema = sv.Schema.of(SCHEMA, sv.Label("label", ("no", "yes")))
    policy = sv.Policy(epsilon=3.0)
    fed = sv.federate_rows(sites("north", "south"), schema=schema, policy=policy, budgets=folder)
    model = sv.HistogramForest(epsilon=2.0, n_rows=100).fit(fed)
    budgets = {site: fed.site(site).outbox.budget for site in fed.sites}
    spent = {site: budget.spent for site, budget in budgets.items()}
    for budget in budgets.values():
        budget.close()
    return {"hash": model.forest_.hash, "spent": spent}


def make_run(folder: Path) -> dict[str, Any]:
    """Fit a study file."""
    folder.mkdir()
    (folder / "study.toml").write_text(FIT)
    silvan("fit", folder / "study.toml")
    record = json.loads((folder / "run" / "run.json").read_text())
    return {
        "hash": record["models"][0]["hash"],
        "predictions": silvan("predict", folder / "run", "tables/east.csv"),
    }


# -- over machines


def make_machines(folder: Path) -> dict[str, Any]:
    """Set up a coordinator and two sites, each a process of its own, run a study, and stop them."""
    folder.mkdir()
    os.chdir(folder)
    silvan("study", "init", "heart", "--site", "north", "--site", "south", "--columns", "age, label")
    silvan("study", "start", "--in", "heart")
    running: list[tuple[Any, ...]] = [("study", "stop", "--in", "heart")]
    try:
        for site in ("north", "south"):
            silvan("study", "invite", site, "--in", "heart")
            more = ["--no-approve"] if site == "south" else []
            silvan("site", "join", f"heart/{site}.invite", "--table", WORK / "tables" / f"{site}.csv", *more)
        for site in ("north", "south"):
            silvan("site", "start", site)
            running.insert(0, ("site", "stop", site))
        Path("heart.toml").write_text(FAR)
        words = [sys.executable, "-m", "silvan.cli.main", "study", "run", "heart.toml", "--in", "heart"]
        with subprocess.Popen(words) as run:  # noqa: S603
            while not list(Path("north/asked").glob("*.toml")):
                time.sleep(0.5)
            silvan("site", "approve", "north", "heart")
        if run.returncode:
            raise SystemExit("the study failed")
    finally:
        for stop in running:
            silvan(*stop)
    found = next(Path("heart/runs").iterdir())
    record = json.loads((found / "run.json").read_text())
    told = {"hash": record["models"][0]["hash"], "run": found.name, "fingerprint": record["fingerprint"]}
    status = {"north": silvan("site", "status", "north"), "coordinator": silvan("study", "status", "--in", "heart")}
    os.chdir(WORK)
    return {**told, "status": status}


LEFT_OUT = (
    "study/run/journal.sqlite",  # may be deleted when a run is done; ``journals`` has some
    "**/report.html",  # made again from run.json
    "machines/south",  # as north
    "machines/*/*.invite",  # used
    "machines/heart.toml",  # the run has it
    "machines/heart/runs/*/job*",  # from here on FLARE's own: jobs, logs
    "machines/heart/server/*-*-*-*",
    "machines/heart/server/kept",
    "machines/north/kit/*-*-*-*",
    "machines/**/*.log",
    "machines/**/*log.txt",
    "machines/**/.lock",
)


def make_small() -> None:
    """Leave out what is not worth its room, and have databases with small pages and all of it in one file."""
    for pattern in LEFT_OUT:
        for path in Path().glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in Path().rglob("*.sqlite"):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for word in ("journal_mode=DELETE", "page_size=512"):
                db.execute(f"PRAGMA {word}")
            db.execute("VACUUM")
            db.execute("PRAGMA journal_mode=WAL")


def silvan(*words: object) -> str:
    """Run a command, and give what it says."""
    listed = [sys.executable, "-m", "silvan.cli.main", *map(str, words)]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603
    return done.stdout


def main(target: Path) -> None:
    """Make all of it."""
    if WORK.exists() or (target / "expected.json").exists():
        raise SystemExit(f"{WORK} or what is made is there already")
    WORK.mkdir(parents=True)
    os.chdir(WORK)
    write_tables(Path("tables"))
    expected = {
        "models": make_models(Path("models")),
        "journals": make_journals(Path("journals")),
        "sites": make_ledgers(Path("sites")),
        "budgets": make_budgets(Path("budgets")),
        "study": make_run(Path("study")),
        "machines": make_machines(Path("machines").resolve()),
    }
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    make_small()
    shutil.copytree(WORK, target, dirs_exist_ok=True)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
