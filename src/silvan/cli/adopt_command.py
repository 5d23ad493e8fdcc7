"""``silvan adopt``: what a site that joins after training makes of a shared forest, and whether that helps."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from silvan.cli.evaluate_command import check_columns
from silvan.cli.plain_text import clean
from silvan.cli.predict_command import Reading, open_forest, table_as_written

if TYPE_CHECKING:
    from silvan.algorithms.evaluation.evaluation import Row
    from silvan.report.site_tables import ReportTable

_MODELS = {
    "local": "local forest, trained on this table alone",
    "shared": "shared forest as it is",
    "federated": "adopted forest",
}


def adopt(
    model: Annotated[Path, Argument(metavar="MODEL", help="The shared forest: a .silvan file, or a run folder.")],
    table: Annotated[Path, Argument(metavar="TABLE", help="The new site's table, with the label.")],
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write the adopted forest here (.silvan).")
    ] = None,
    test: Annotated[float, Option("--test", help="Share of rows held out to measure whether it helps.")] = 0.3,
    trees: Annotated[int, Option("--trees", help="Number of local trees.")] = 100,
    depth: Annotated[int | None, Option("--depth", help="Maximum depth of local trees; default: no limit.")] = None,
    seed: Annotated[int, Option("--seed", help="Decides the test rows and the local trees.")] = 0,
    fill: Annotated[bool, Option("--fill", help="Count columns that the table lacks as missing.")] = False,
    reading: Reading = None,
) -> None:
    """Adapt a shared forest to a site that joins after training; nothing leaves this machine.

    The site's training rows choose how much leaf values from its own rows and its own trees count, and adjust the
    calibration. Test rows show whether that helps.
    """
    from silvan.algorithms.evaluation.evaluation import CERTAINTY, FEDERATED, certainty
    from silvan.cli import terminal
    from silvan.federate.by_rows import federate_rows
    from silvan.learners.auto_forest import AutoForest
    from silvan.study.progress_bars import ProgressBars
    from silvan.util.files import write_whole

    forest, source, site = open_forest(model), table_as_written(table, None, reading), table.stem
    check_columns(model, None, table, source, fill)
    progress = ProgressBars()
    with progress.step("Reading the table"):
        label = forest.schema.label.name
        federation = federate_rows({site: source}, label=label, schema=forest.schema, test=test, random_state=seed)
    with progress.step("Adopting the forest"):
        learner = AutoForest(n_estimators=trees, max_depth=depth, random_state=seed).adopt(forest, federation)
        rows = [row for row in learner.evaluation(federation).rows if row.site == site and row.model in _MODELS]
    gain = next(row for row in rows if row.model == FEDERATED)
    verdict = CERTAINTY[certainty(gain.gain, gain.low, gain.high)]
    terminal.print_parts(
        clean(f"{site} uses {learner.choices_[site]}"),
        terminal.shown(_compared(rows)),
        f"Adopted against local: {verdict}.",
    )
    if output is not None:
        write_whole(output, learner.forests_[site].to_bytes())
        typer.echo(f"the adopted forest was written to {clean(str(output))}", err=True)


def _compared(rows: "list[Row]") -> "ReportTable":
    """Return the metrics of the three models on the site's test rows."""
    from silvan import metrics
    from silvan.report.site_tables import ReportTable
    from silvan.util.readable import format_interval, format_number, signed

    keys = [key for key in ("auc", "accuracy", "log_loss", "rmse", "r2") if key in {**rows[0].metrics, **rows[0].more}]
    heads = ["Model", *(metrics.BY_KEY[key].title for key in keys), "Gain", "95% CI"]
    lines = []
    for row in rows:
        values = {**row.metrics, **row.more}
        cells = ["undefined" if values[key] != values[key] else format_number(values[key]) for key in keys]
        gain = "" if row.gain is None else signed(row.gain, 3)
        lines.append([_MODELS[row.model], *cells, gain, format_interval(row.low, row.high, 3)])
    return ReportTable(heads, lines, note=f"on {rows[0].rows} test rows, which took no part in training")
