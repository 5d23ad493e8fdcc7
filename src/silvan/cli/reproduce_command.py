"""``silvan reproduce``: reproduces the tables and figures of publications; needs a clone of the repository."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from silvan.cli.plain_text import print_lines
from silvan.errors import InputError

INTERRUPTED = 130


def reproduce(
    paper: Annotated[
        str, Argument(metavar="PAPER", help="bofrf, thesis, federated-forest, histogram, frf-health, autoforest, all.")
    ],
    quick: Annotated[bool, Option("--quick", help="Few seeds, small samples: rough results in minutes.")] = False,
    table: Annotated[str | None, Option("--table", metavar="N", help="Only this table.")] = None,
    figure: Annotated[str | None, Option("--figure", metavar="N", help="Only this figure.")] = None,
    jobs: Annotated[int, Option("--jobs", min=1, help="Cases to run in parallel.")] = 2,
    out: Annotated[Path, Option("--out", metavar="FOLDER", help="Folder for pages and results.")] = Path("reproduced"),
    download: Annotated[bool, Option("--download", help="Download missing tables from OpenML.")] = False,
) -> None:
    """Reproduce a publication's tables and figures: the published value, ours, and the difference.

    Finished cases are kept in the folder, so an interrupted run resumes. Data comes from scikit-learn and from the
    folder that SILVAN_DATA names; missing tables are listed, and the rest is run.
    """
    root = _clone()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    only = [f"{kind} {n}" for kind, n in (("table", table), ("figure", figure)) if n is not None]
    try:
        lines, whole = import_module("experiments.reproduce.command").reproduce(
            paper, quick=quick, only=only, jobs=jobs, out=out, download=download
        )
    except KeyboardInterrupt:
        typer.echo("interrupted; finished cases are kept, and the same command resumes from there", err=True)
        raise typer.Exit(INTERRUPTED) from None
    print_lines(*lines)
    if not whole:
        raise typer.Exit(1)


def _clone() -> Path:
    """Return the repository's folder: the one that the package is installed from, or the current one."""
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (root / "experiments" / "reproduce" / "command.py").exists():
            return root
    raise InputError("the installed package does not contain the experiments: run this in a clone of the repository")
