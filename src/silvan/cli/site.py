"""``silvan site``: what a site's owner does with the site's folder."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="A site's own side: its ledger, and the studies its owner approves.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder, or the ledger in it.")]


@app.command()
def ledger(
    folder: Folder,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every line: find changes, gaps, missing ends and other keys.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The public key that the site is known by, if not its site.pub."),
    ] = None,
    noted: Annotated[
        str | None,
        typer.Option("--noted", metavar="DIGEST", help="The digest of a line that was noted before: is it there?"),
    ] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Show the last lines only.")] = None,
) -> None:
    """Show what left a site and what was refused, in plain words."""
    from rich.console import Console

    from silvan.cli.ledger import lines_table, verdict
    from silvan.cli.show import say
    from silvan.federation.keys import read_public
    from silvan.privacy.folder import folder_at
    from silvan.privacy.ledger import read_lines
    from silvan.privacy.ledger import verify as check

    console, site = Console(), folder_at(folder)
    if verify or key is not None or noted is not None:
        public = site.public() if key is None else read_public(key)
        found = check(site.path, public, noted)
        say(console, verdict(found, public.hex()))
        if found.faults:
            raise typer.Exit(1)
        return
    lines = read_lines(site.path)
    say(console, lines_table(lines if last is None else lines[-last:], len(lines)))


@app.command()
def approve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")],
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="The study's name; without one, all approved ones are shown.")
    ] = None,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--message", metavar="KIND", help="A kind of message that may be answered; all, if none is named."
        ),
    ] = None,
    sites: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="SITE", help="A site that may be in sums; any, if none is named."),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="How many models and judgements; any number, if not given.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Approve the study no longer.")] = False,
) -> None:
    """Approve a study, so that the site takes part in it; needed where the policy says approve = true."""
    from rich.console import Console

    from silvan.cli.ledger import approvals_table
    from silvan.cli.show import clean, say
    from silvan.errors import InputError
    from silvan.privacy.approval import Approval
    from silvan.privacy.folder import folder_at

    approvals = folder_at(folder).approvals
    if (folder / "member.json").exists():
        from silvan.cli.member import show_asked, whole_name

        if study is None:
            show_asked(folder)
            return
        study = whole_name(folder, study)
    if study is None:
        if withdraw:
            raise InputError("name the study to withdraw")
        say(Console(), approvals_table(approvals.listed()))
    elif withdraw:
        approvals.withdraw(study)
        say(Console(), f"Withdrawn: {clean(study)}")
    else:
        made = approvals.approve(Approval(study=study, messages=messages or None, sites=sites or None, tasks=tasks))
        say(Console(), approvals_table([made]))
