"""``silvan demo``: a whole study on bundled data, from tables to report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from silvan.errors import InputError, SilvanError

if TYPE_CHECKING:
    from silvan.study.run_folder import Run
    from silvan.study.study import Study

_MOST_SITES = 12
_FIRST_TIME = "The first run compiles kernels, which takes up to a minute."


def demo(
    output: Annotated[Path, Option("--output", "-o", metavar="DIR", help="Output folder.")] = Path("runs/demo"),
    data: Annotated[
        str, Option(metavar="NAME", help="income, heart, breast-cancer, diabetes, columns, omop or fhir.")
    ] = "income",
    sites: Annotated[
        int | None, Option(min=2, max=_MOST_SITES, help="Number of sites, for data without sites.")
    ] = None,
    repeats: Annotated[int | None, Option(min=1, max=100, help="How often each row is evaluated.")] = None,
) -> None:
    """See what joining is worth: predict income at six kinds of employers, alone and together."""
    from silvan.cli import local_run, terminal
    from silvan.study.demo_studies import DEMOS, write_demo
    from silvan.study.run_folder import Run
    from silvan.study.study_file import read_study

    if data not in DEMOS:
        raise InputError.wrong("--data", f"one of {', '.join(DEMOS)}", data)
    chosen = DEMOS[data](sites, repeats)
    study, run = read_study(write_demo(output, chosen)), Run(output)
    terminal.print_parts(f"{chosen.introduction} {_FIRST_TIME}")
    record = local_run.start_run(study, run, resume=is_same(study, run))
    local_run.carry_out(study, run, record, demo=True)


def is_same(study: "Study", run: "Run") -> bool:
    """Whether the folder holds a run of the same demo, which may be overwritten."""
    from silvan.study.steps import versions
    from silvan.study.study_file import fingerprint_of

    try:
        return run.read().fingerprint == fingerprint_of(study, versions()["silvan"])
    except SilvanError:
        return False
