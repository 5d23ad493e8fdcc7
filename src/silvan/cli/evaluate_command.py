"""``silvan evaluate``: evaluates a run's model again, at its sites or on a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from silvan.cli.plain_text import clean, print_json
from silvan.cli.predict_command import Reading, table_as_written
from silvan.errors import InputError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    from silvan.federation.federation import Federation
    from silvan.learners.federated_estimator import FederatedEstimator
    from silvan.study.progress_bars import ProgressBars
    from silvan.study.run_folder import MetricsRow, Record, Run
    from silvan.study.study import Study


def evaluate(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder; with a table also a .silvan file.")],
    table: Annotated[Path | None, Argument(metavar="TABLE", help="Evaluate on this table, with the label.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", metavar="CSV", help="Also write metrics here.")] = None,
    everything: Annotated[bool, Option("--all", help="Show every metric of every model.")] = False,
    fill: Annotated[bool, Option("--fill", help="Treat absent columns as missing values.")] = False,
    reading: Reading = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a model again, on its sites' test rows or on a table.

    On a table, the local models and the pooled forest are shown for comparison if the study's own tables are
    unchanged.
    """
    from silvan.cli import terminal
    from silvan.study.progress_bars import ProgressBars
    from silvan.study.run_folder import Run

    progress, folder = ProgressBars(), Run(run)
    record, trained = folder.read() if run.is_dir() else None, None
    if reading and table is None:
        raise InputError("--reading describes how TABLE is written; name a table too")
    if table is not None:
        source = table_as_written(table, record, reading)
        if record is None or record.by != "columns":
            check_columns(run, record, table, source, fill)
        rows = on_table(run, folder, record, source, progress)
        if not json:
            shown = terminal.all_metrics(rows) if everything else terminal.on_table(rows, str(table))
            terminal.print_parts(shown)
        trained = note_training_rows(folder, record, source, str(table))
    elif record is None:
        raise InputError(f"{str(run)!r} is not a run folder; to evaluate a model file, name a table too")
    else:
        rows = at_sites(folder, record, progress)
        if not json:
            terminal.print_results(record, everything=everything)
    if json:
        groups = record.subgroups if record is not None and table is None else []
        by_group = {"subgroups": groups} if groups else {}
        named = {"run": str(run), "table": table and str(table), "learnt_from": trained}
        print_json({**named, "evaluation": rows, **by_group})
    if output is not None:
        Run(output.parent).write_evaluation(rows, output.name)


def note_training_rows(run: "Run", record: "Record | None", source: Any, table: str) -> int | None:
    """Print how many rows of a table the run's model was trained on, and return that; None if unknown."""
    from silvan.study.learnt_rows import count_learnt_rows

    if record is None or record.by == "columns" or not record.models:
        return None
    found = count_learnt_rows(run.folder, run.forest(record.models[0].site or None).schema, source)
    if found is None:
        return None
    trained, rows = found
    them = "it" if trained == 1 else "them"
    text = (
        f"the model was trained on {trained:,} of {count_of(rows, 'row')} of {table}: metrics are too good for {them}; "
    )
    text = f"{text}evaluate on other rows" if trained else f"The model was trained on no row of {table}."
    typer.echo(clean(text), err=True)
    return trained


def check_columns(path: Path, record: "Record | None", table: Path, source: Any, fill: bool) -> None:
    """Raise ``SchemaError`` if a table lacks columns of the model."""
    from silvan.cli.predict_command import (
        columns_of_some,
        lacking_columns,
        note_extrapolation,
        note_unknown_categories,
        open_forest,
    )
    from silvan.data.encode import encode_features
    from silvan.data.table import read_table

    sites = [""] if record is None else [model.site for model in record.models] or [""]
    forest = open_forest(path, None if "" in sites else sites[0])
    frame = read_table(source, forest.schema.label.name, forest.schema)
    note_unknown_categories(frame, forest.schema)
    lacking_columns(table, frame.columns, forest.schema, fill, columns_of_some(record, forest.schema))
    note_extrapolation(forest, encode_features(frame, forest.schema, fill_absent=True))


def at_sites(run: "Run", record: "Record", progress: "ProgressBars") -> list["MetricsRow"]:
    """Evaluate at the study's sites; write the metrics to the run if it had none yet."""
    from silvan.report.html import write_report
    from silvan.study.steps import evaluate_model

    study = read_unchanged_study(run, record)
    if study is None:
        raise InputError(
            f"the study {record.study_file!r} or its tables are missing or have changed, so test rows may be among the "
            "training rows\nfit again, or name a table to evaluate on"
        )
    first = not record.evaluation
    with progress.step("Reading tables"):
        federation, model = restore_run(study, run, record)
    traffic, kinds = record.traffic, record.kinds
    evaluate_model(record, federation, model, study, progress)
    record.status = "done"
    federation.journal.close()
    if traffic:
        record.traffic, record.kinds = traffic, kinds  # what left the sites in training
    if first:
        run.write_evaluation(record.evaluation)
        run.write(record)
        write_report(run)
    return record.evaluation


def read_unchanged_study(run: "Run", record: "Record") -> "Study | None":
    """Read the study of a run; None if the study or its tables have changed since."""
    from silvan.study.study_file import fingerprint_of, read_study

    try:
        study = read_study(run.folder / record.study_file)
    except InputError:
        return None
    return study if fingerprint_of(study, record.versions.get("silvan", "")) == record.fingerprint else None


def restore_run(study: "Study", run: "Run", record: "Record") -> "tuple[Federation, FederatedEstimator]":
    """Return the federation and the fitted learner of a run."""
    from silvan.study.column_steps import read_model
    from silvan.study.run_folder import JOURNAL
    from silvan.study.study_file import make_federation, make_learner

    if record.by == "columns":
        shared = read_model(run, record)
        return make_federation(study, schema=shared.named_columns), shared
    by_site = {model.site: run.forest(model.site or None) for model in record.models}
    if not by_site:
        raise InputError(f"{str(run.folder)!r} has no model yet; run `silvan fit` again to finish it")
    schema = next(iter(by_site.values())).schema
    model = make_learner(study, schema)
    if model.restore(by_site, [site.name for site in record.sites], record.threshold):
        return make_federation(study, schema=schema), model
    # this learner cannot be restored from its forests alone; the journal spares the sites from answering again
    journal = run.file(JOURNAL)
    federation = make_federation(study, journal if journal.is_file() else None)
    return federation, model.fit(federation)


def on_table(
    path: Path, run: "Run", record: "Record | None", table: Any, progress: "ProgressBars"
) -> list["MetricsRow"]:
    """Evaluate on a table, beside the local forests if the study's tables are unchanged."""
    from silvan.study import column_steps
    from silvan.study.steps import metrics_row

    study = None if record is None else read_unchanged_study(run, record)
    with progress.step("Evaluating on the table", expected=None if record is None else record.seconds):
        if record is not None and record.by == "columns":
            return [metrics_row(row) for row in column_steps.on_table(study, run, record, table)]
        if record is not None and study is not None:
            federation, model = restore_run(study, run, record)
            found = model.evaluation(federation, table)
            federation.journal.close()
            return [metrics_row(row) for row in found.rows]
        return _forests_on_table(path, record, table)


def _forests_on_table(path: Path, record: "Record | None", table: Any) -> list["MetricsRow"]:
    from silvan.algorithms.evaluation.evaluation import FEDERATED, evaluate_forests, read_rows
    from silvan.cli.predict_command import open_forest
    from silvan.study.steps import metrics_row
    from silvan.tree.sampling import make_key

    names = [""] if record is None else [model.site for model in record.models]
    rows = []
    for name in names:
        forest = open_forest(path, name or None)
        model, sites = ({name: forest}, [name]) if name else (forest, [])
        given = read_rows(forest.schema, table)
        rows += evaluate_forests(forest.schema, [(FEDERATED, model)], sites, given, make_key(0, "gains"))
    return [metrics_row(row) for row in rows]
