"""``silvan advise``: compares a study's sites before anything is trained."""

from pathlib import Path
from typing import Annotated, cast

import typer
from typer import Argument, Option

from silvan.cli.plain_text import clean
from silvan.errors import InputError
from silvan.util.readable import count_of


def advise(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    clusters: Annotated[int | None, Option("--clusters", "-k", help="Number of clusters; chosen if omitted.")] = None,
    metric: Annotated[str | None, Option("--metric", help="manhattan (default), euclidean or minkowski.")] = None,
    first: Annotated[str | None, Option("--first", help="Site to take as first centroid.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", metavar="CSV", help="Also write distances here.")] = None,
) -> None:
    """Compare a study's sites before training: distances, clusters, and what sets each site apart.

    Omitted options are taken from the study's learner if it has them.
    """
    from silvan.algorithms.bofrf import advice
    from silvan.algorithms.bofrf.clusters import Metric
    from silvan.cli import terminal
    from silvan.study.progress_bars import ProgressBars
    from silvan.study.study_file import make_federation, read_study, with_lines
    from silvan.util.csv_text import csv_text
    from silvan.util.files import write_whole

    plan, progress = read_study(study), ProgressBars()
    if plan.id is not None:
        raise InputError(f"{study}: advise compares sites that hold the same columns; [parties] hold different ones")
    with progress.step("Reading tables and agreeing on columns"):
        federation = make_federation(plan)
    wanted, n = plan.parameters.get("clusters") if clusters is None else clusters, len(federation.sites)
    if clusters is not None and not 1 <= clusters <= n:
        raise InputError.wrong("--clusters", f"a whole number from 1 to {n}, the number of sites", clusters)
    with with_lines(plan), progress.step("Comparing the sites") as step:
        step.follow(federation, 2)
        advised = advice.advise(
            federation,
            k=wanted,
            metric=cast(Metric, metric or plan.parameters.get("metric") or "manhattan"),  # checked by advise
            first=plan.parameters.get("first") if first is None else first,
        )
    title = clean(f"{plan.name}: {count_of(len(advised.sites), 'site')}")
    terminal.print_parts(title, terminal.advice(advised, advice.WIDE))
    if output is not None:
        distances = advised.frame()
        write_whole(output, csv_text([distances.columns, *distances.iter_rows()]).encode())
        typer.echo(f"distances written to {output}", err=True)
