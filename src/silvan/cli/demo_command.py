"""``silvan demo``: forests of uneven sites alone, federated and pooled, on data that comes with scikit-learn."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silvan.errors import InputError, SilvanError

if TYPE_CHECKING:
    from silvan.study.plan import Study
    from silvan.study.run_folder import Run

NAMES = (
    "Alder",
    "Birch",
    "Cedar",
    "Elm",
    "Hazel",
    "Juniper",
    "Larch",
    "Maple",
    "Oak",
    "Pine",
    "Rowan",
    "Spruce",
)

MIN_ROWS = 8
"""Rows of each class that every site has at least, so that all can train and be judged."""

INTRODUCTION = (
    "Breast cancer data ({rows} patients, {columns} measurements of cell nuclei), dealt out to {sites} sites "
    "of uneven size and share of malignant tumours. Three rows in ten are kept for judging. The very first "
    "time, kernels are compiled, which takes up to a minute."
)

STUDY = """\
# Made by `silvan demo`; `silvan fit` runs it again. All keys are in docs/study.md.
name = "Breast cancer at {n} sites"
label = "malignant"
test = 0.3
random_state = 0
output = "."

[sites]
{sites}

[learner]
kind = "HistogramForest"
n_estimators = 100
max_depth = 10
"""


def demo(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Where to write the tables, the study and the run."),
    ] = Path("runs/demo"),
    sites: Annotated[int, typer.Option("--sites", min=2, max=len(NAMES), help="How many sites.")] = 5,
) -> None:
    """See what joining is worth: breast cancer data at uneven, skewed sites; alone, together and pooled."""
    from rich.console import Console

    from silvan.cli import fit_command, terminal
    from silvan.learners import MergedForest
    from silvan.report.html import write_report
    from silvan.report.summary import summarise
    from silvan.study import steps
    from silvan.study.progress_bars import Progress
    from silvan.study.run_folder import EVALUATION, MODEL, REPORT, RUN, Run
    from silvan.study.study_file import make_federation, make_learner, read_study

    console, progress = Console(), Progress()
    n_rows, n_columns = write_sites(output, sites)
    terminal.print_parts(console, INTRODUCTION.format(rows=n_rows, columns=n_columns, sites=sites))
    study, run = read_study(output / "study.toml"), Run(output)
    record = fit_command.start_run(study, run, resume=is_same(study, run))
    with progress.step("Reading tables and agreeing on columns"):
        federation = make_federation(study)
        steps.note_agreement(record, federation)
    model = make_learner(study, federation.schema)
    seconds = steps.train(federation, model, progress)
    steps.note_training(record, run, federation, model, seconds)
    run.write(record)
    merged = MergedForest(n_estimators=model.n_estimators, max_depth=model.max_depth, random_state=model.random_state)
    steps.train(federation, merged, progress, "Merging sites' own trees")
    steps.judge(record, federation, model, progress, {"merged": merged})
    run.write_evaluation(record.evaluation)
    run.write(record)
    federation.journal.close()
    write_report(run)
    summary = summarise(record)
    terminal.print_parts(console, terminal.results(summary), terminal.sentences(summary))
    terminal.print_parts(console, terminal.files(output, ["sites", "study.toml", MODEL, EVALUATION, RUN, REPORT]))


def is_same(study: "Study", run: "Run") -> bool:
    """Whether the folder holds a run of the same demo, which may be written over."""
    from silvan.study.steps import versions

    try:
        return run.read().fingerprint == study.fingerprint(versions()["silvan"])
    except SilvanError:
        return False


def write_sites(folder: Path, n: int) -> tuple[int, int]:
    """Write a table for each site and the study file; return the numbers of rows and columns in all."""
    import numpy as np
    import polars as pl
    from sklearn.datasets import load_breast_cancer

    from silvan.util.files import write_whole

    file = folder / "study.toml"
    if file.exists() and not file.read_text().startswith(STUDY[:20]):
        raise InputError(f"{str(file)!r} is not of a demo, and would be lost; name another folder with --output")
    bunch = load_breast_cancer()
    malignant = 1 - bunch.target  # scikit-learn has benign as 1
    columns = {str(name): bunch.data[:, i] for i, name in enumerate(bunch.feature_names)}
    frame = pl.DataFrame({**columns, "malignant": np.where(malignant == 1, "yes", "no")})
    (folder / "sites").mkdir(parents=True, exist_ok=True)
    for stale in (folder / "sites").glob("*.csv"):
        if stale.stem in {name.lower() for name in NAMES}:
            stale.unlink()
    lines = []
    for name, rows in zip(NAMES, split_unevenly(malignant, n), strict=False):
        path = f"sites/{name.lower()}.csv"
        write_whole(folder / path, frame[rows].write_csv().encode())
        lines.append(f'{name} = "{path}"')
    write_whole(file, STUDY.format(n=n, sites="\n".join(lines)).encode())
    return len(frame), len(columns)


def split_unevenly(y: Any, n: int, seed: int = 0) -> list[Any]:
    """Return the rows of each site: sizes from a Dirichlet draw, shares of each class from another."""
    import numpy as np

    rng = np.random.default_rng(seed)
    sizes = rng.dirichlet(np.full(n, 2.0))
    skew = rng.dirichlet(np.ones(2), size=n)
    parts: list[list[int]] = [[] for _ in range(n)]
    for c in range(2):
        rows = rng.permutation(np.flatnonzero(y == c))
        weights = sizes * skew[:, c]
        spare = len(rows) - MIN_ROWS * n
        counts = MIN_ROWS + np.diff(np.round(np.cumsum([0.0, *weights]) / weights.sum() * spare)).astype(int)
        for part, more in zip(parts, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
            part.extend(more.tolist())
    return [np.sort(part) for part in parts]
