"""``silvan doctor``: checks an installation and a folder."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from silvan.cli.plain_text import clean, posix_only, print_json

_STYLES = {"good": "green", "look": "yellow", "bad": "red"}


def doctor(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A coordinator's, a site's or FLARE's folder.")] = Path(),
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check versions, clock, certificates, permissions, port, roster and disk, and suggest fixes."""
    from rich.console import Console
    from rich.text import Text

    posix_only()
    from silvan.deploy.service.doctor import examine

    console, checks = Console(soft_wrap=True), examine(folder)
    bad = any(check.state == "bad" for check in checks)
    if json:
        print_json({"passed": not bad, "checks": [check._asdict() for check in checks]})
    for check in [] if json else checks:
        console.print(Text(f"{check.state:5}", style=_STYLES[check.state]), Text(f"{check.what}: {clean(check.text)}"))
    if bad:
        raise typer.Exit(1)
