"""``silvan evaluate``: a run judged again, at its sites or on a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silvan.errors import InputError

if TYPE_CHECKING:
    from silvan.cli.progress import Progress
    from silvan.cli.study import Study
    from silvan.report.run import Figures, Record, Run


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; with a table also a .silvan file.")],
    table: Annotated[
        Path | None, typer.Argument(metavar="[TABLE]", help="Judge on this table, which has the label.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="CSV", help="Also write the figures here.")
    ] = None,
) -> None:
    """Judge a model again: on its sites' test rows, or on a table.

    On a table, what sites have alone and the pooled forest are shown beside it if the study's own tables are
    still as they were.
    """
    from rich.console import Console

    from silvan.cli import show
    from silvan.cli.progress import Progress
    from silvan.report.run import Run
    from silvan.report.summary import summary

    console, progress, folder = Console(), Progress(), Run(run)
    record = folder.read() if run.is_dir() else None
    if table is not None:
        rows = on_table(run, folder, record, table, progress)
        show.say(console, show.on_table(rows, str(table)))
    elif record is None:
        raise InputError(f"{str(run)!r} is not a run folder; to judge a model file, name a table too")
    else:
        rows = at_sites(folder, record, progress)
        summed = summary(record)
        show.say(console, show.results(summed), show.sentences(summed))
    if output is not None:
        Run(output.parent).write_evaluation(rows, output.name)


def at_sites(run: "Run", record: "Record", progress: "Progress") -> list["Figures"]:
    """Judge at the study's sites; a run that had no figures yet gets them."""
    from silvan.cli import steps
    from silvan.report.html import write_report

    study = unchanged(run, record)
    if study is None:
        raise InputError(
            f"the study {record.study_file!r} or its tables are gone or have changed since, so test rows may "
            "be rows the forest has learned from\nfit again, or name a table to judge on"
        )
    first = not record.evaluation
    with progress.step("Reading tables"):
        federation, model = restored(study, run, record)
    traffic, kinds = record.traffic, record.kinds
    steps.judge(record, federation, model, progress)
    federation.journal.close()
    if traffic:
        record.traffic, record.kinds = traffic, kinds  # what left the sites when the model was made
    if first:
        run.write_evaluation(record.evaluation)
        run.write(record)
        write_report(run)
    return record.evaluation


def unchanged(run: "Run", record: "Record") -> "Study | None":
    """Read the study of a run, if it and its tables are what they were."""
    from silvan.cli.study import read_study

    try:
        study = read_study(run.folder / record.study_file)
    except InputError:
        return None
    same = study.fingerprint(record.versions.get("silvan", "")) == record.fingerprint
    return study if same else None


def restored(study: "Study", run: "Run", record: "Record") -> tuple[Any, Any]:
    """Make the federation and the fitted learner of a run again."""
    by_site = {model.site: run.forest(model.site or None) for model in record.models}
    if not by_site:
        raise InputError(f"{str(run.folder)!r} has no model yet; run `silvan fit` again to finish it")
    schema = next(iter(by_site.values())).schema
    federation = study.federation(schema=schema)
    model = study.learner(schema)
    model.schema_, model.forest_ = schema, by_site.get("")
    model.forests_ = dict.fromkeys(federation.sites, by_site[""]) if "" in by_site else by_site
    return federation, model


def on_table(path: Path, run: "Run", record: "Record | None", table: Path, progress: "Progress") -> list["Figures"]:
    """Judge on a table, beside what sites have alone if their tables are still there."""
    study = None if record is None else unchanged(run, record)
    with progress.step("Judging on the table", expected=None if record is None else record.seconds):
        if record is not None and study is not None:
            federation, model = restored(study, run, record)
            frame = model.evaluate(federation, table=str(table))
            federation.journal.close()
            return [_figures(row) for row in frame.to_dicts()]
        return _forests_on_table(path, record, table)


def _figures(row: dict[str, Any]) -> "Figures":
    from silvan.cli.steps import figures

    return figures(row.pop("site"), row.pop("model"), row.pop("rows"), row)


def _forests_on_table(path: Path, record: "Record | None", table: Path) -> list["Figures"]:
    from silvan import metrics
    from silvan.cli.predict import open_forest
    from silvan.cli.steps import figures
    from silvan.data.encode import encode_features, encode_label
    from silvan.data.table import read_table
    from silvan.tree.predict import scores

    names = [""] if record is None else [model.site for model in record.models]
    rows = []
    for name in names:
        forest = open_forest(path, name or None)
        frame = read_table(str(table), forest.schema.label.name)
        answer, y = (
            scores(forest, encode_features(frame, forest.schema, fill_absent=True)),
            encode_label(frame, forest.schema),
        )
        judged = metrics.classification(answer, y) if forest.schema.n_classes else metrics.regression(answer[:, 0], y)
        rows.append(figures(name or "all", "federated", len(y), judged))
    return rows
