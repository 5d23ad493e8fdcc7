"""``silvan fit``: trains and evaluates the model of a study file, and writes the run folder."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def fit(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="DIR", help="Run folder (default: the study's).")
    ] = None,
    resume: Annotated[bool, Option("--resume/--fresh", help="Resume an interrupted run, or set it aside.")] = True,
) -> None:
    """Train and evaluate a study's model, and write the run folder."""
    from silvan.study.run_folder import Run
    from silvan.study.study_file import read_study

    plan = read_study(study)
    from silvan.cli.local_run import carry_out, start_run

    run = Run(plan.run_folder if output is None else output)
    carry_out(plan, run, start_run(plan, run, resume=resume))
