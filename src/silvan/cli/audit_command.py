"""``silvan audit``: attacks a run's models and compares the findings with the site's limits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from silvan.cli.plain_text import clean, print_json
from silvan.cli.predict_command import Reading, open_forest, table_as_written
from silvan.errors import InputError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from silvan.auditing.audit_report import Report

EXCEEDED = 1


def audit(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder; with --table also a .silvan file.")],
    table: Annotated[Path | None, Option("--table", "-t", metavar="FILE", help="Training rows with the label.")] = None,
    others: Annotated[Path | None, Option("--others", metavar="FILE", help="Similar rows, not trained on.")] = None,
    site: Annotated[str | None, Option("--site", "-s", help="Audit the forest of this site.")] = None,
    thresholds: Annotated[Path | None, Option(metavar="TOML", help="The site's limits; see docs/audit.md.")] = None,
    limit: Annotated[list[str] | None, Option("--limit", metavar="ATTACK=X", help="Set one limit; repeatable.")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FOLDER", help="For the report (default: RUN).")
    ] = None,
    seed: Annotated[int, Option(help="Seed of all random choices.")] = 0,
    reading: Reading = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack a run's models as a curious recipient would, and compare the findings with limits.

    Rows come from the study's own tables if they are unchanged, otherwise from --table and --others.
    The exit code is 1 if a limit is exceeded.
    """
    from silvan.auditing.audit_report import write
    from silvan.auditing.findings import make_limits, read_limits
    from silvan.auditing.run_audit import audit as attack
    from silvan.cli import terminal
    from silvan.report.html import write_report
    from silvan.study.progress_bars import ProgressBars
    from silvan.study.run_folder import RUN, Run

    limits = make_limits() if thresholds is None else read_limits(thresholds)
    limits = make_limits({**limits, **_read_limits(limit or [])})
    if others is not None and table is None:
        raise InputError("--others needs --table: name the training rows too")
    if reading and table is None:
        raise InputError("--reading describes the files of --table and --others; name them too")
    progress = ProgressBars()
    with progress.step("Attacking"):
        if table is None:
            reports = _on_study(run, site, limits, seed)
        else:
            record = Run(run).read() if run.is_dir() else None
            members, rest = (path and table_as_written(path, record, reading) for path in (table, others))
            named: dict[str, Any] = {"limits": limits, "name": site or run.name, "seed": seed}
            reports = [attack(open_forest(run, site), members=members, others=rest, **named)]
    passed = all(report.passed for report in reports)
    if json:
        print_json({"passed": passed, "reports": [report.as_dict() for report in reports]})
    for report in [] if json else reports:
        terminal.print_parts(table_of(report))
    folder = output or (run if run.is_dir() else None)
    if folder is not None:
        for path in write(reports, folder):
            typer.echo(clean(path), err=json)
        if folder == run and Run(run).file(RUN).is_file():
            write_report(Run(run))  # it names the audited model
    if not passed:
        raise typer.Exit(EXCEEDED)


def _read_limits(words: list[str]) -> dict[str, Any]:
    """Parse limits given as ATTACK=NUMBER."""
    found: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            found[name.strip()] = float(text)
        except ValueError:
            raise InputError(f"--limit takes ATTACK=NUMBER, as in --limit membership=0.55; got {word!r}") from None
    return found


def _on_study(path: Path, site: str | None, limits: dict[str, float], seed: int) -> list["Report"]:
    """Audit against the rows of the study's own tables."""
    from silvan.auditing.run_audit import audit as attack
    from silvan.cli.evaluate_command import read_unchanged_study, restore_run
    from silvan.study.run_folder import Run

    run = Run(path)
    if not path.is_dir():
        raise InputError(f"{str(path)!r} is not a run folder; to audit a model file, name the rows with --table")
    record = run.read()
    if record.by == "columns":
        raise InputError(
            f"{str(path)!r} is a run of parties that hold columns; the audit is for forests of sites that hold rows\n"
            "docs/vertical.md measures what row partitions reveal"
        )
    study = read_unchanged_study(run, record)
    if study is None:
        raise InputError(
            f"the study {record.study_file!r} or its tables are missing or have changed, so the training rows are "
            "unknown\nname them with --table, and other rows with --others"
        )
    federation, model = restore_run(study, run, record)
    try:
        settings: dict[str, Any] = {"limits": limits, "seed": seed}
        if site is not None:
            return [attack(run.forest(site), federation, name=site, **settings)]
        if any(not kept.site for kept in record.models):
            return [attack(model, federation, name=record.name, **settings)]
        return [attack(run.forest(name), federation, name=name, **settings) for name in federation.sites]
    finally:
        federation.journal.close()


def table_of(report: "Report") -> "RenderableType":
    """Return the findings as a table, one line per attack, with an explanation of each attack below."""
    from rich.console import Group
    from rich.text import Text

    from silvan.auditing.audit_report import format_number
    from silvan.cli.terminal import shown
    from silvan.report.site_tables import ReportTable

    rows, notes = [], []
    for f in report.findings:
        interval = "" if f.low is None or f.high is None else f"{format_number(f.low)}–{format_number(f.high)}"
        numbers = (
            format_number(f.value),
            interval,
            format_number(f.chance),
            format_number(f.undefended),
            format_number(f.limit),
        )
        rows.append([f.title, *numbers, f.verdict])
        text = "; ".join(filter(None, [f.measure, f.note]))
        about = f"the attacker has {f.has}. {text[:1].upper()}{text[1:]}".strip(". ")
        notes.append(Text(f"{f.title}: {about}.", style="dim"))
    heads = ["Attack", "Value", "Interval", "Chance", "No def.", "Limit", "Verdict"]
    table = ReportTable(heads, rows, tones=[f.verdict for f in report.findings], toned=(len(heads) - 1,))
    head = Text(
        f"{clean(report.name)}: {count_of(report.trees, 'tree')}, {count_of(report.members, 'training row')}, "
        f"{report.outsiders:,} other rows"
    )
    return Group(head, Text(), shown(table), Text(), *notes, Text(), _sentence(report))


def _sentence(report: "Report") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from silvan.auditing.findings import what_helps

    not_run = sum(f.verdict == "not run" for f in report.findings)
    rest = f" {not_run} could not run." if not_run else ""
    if report.passed:
        ran = len(report.findings) - not_run
        return Text(
            f"None of {count_of(ran, 'attack')} exceeded its limit.{rest}",
            style="green" if ran else "dim",
        )
    names = ", ".join(f.attack for f in report.exceeded)
    head = Text(f"Limits exceeded: {names}.{rest}", style="red")
    helps = [Text(f"- {line}") for line in what_helps([f.attack for f in report.exceeded])]
    return Group(head, Text("Change this in the study file, then fit again (see docs/audit.md):"), *helps)
