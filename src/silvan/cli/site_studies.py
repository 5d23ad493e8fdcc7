"""What a site's owner decides of studies: which are approved or declined, and on which rows."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silvan.cli.plain_text import clean, print_lines
from silvan.errors import InputError

if TYPE_CHECKING:
    from silvan.deploy.membership.site_files import SiteFiles
    from silvan.study.study import Study

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")]
"""What every command of a site's owner begins with."""


def approve(
    folder: Folder,
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="The study's name; without one, all approved ones are shown.")
    ] = None,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--message",
            metavar="KIND",
            help="A kind of message that may be answered, '*' for all that the policy allows; those shown, if none is "
            "named.",
        ),
    ] = None,
    sites: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="SITE", help="A site that may be in sums; those shown, if none is named."),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="How many models and judgements; as shown, if not given.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Approve the study no longer.")] = False,
) -> None:
    """Approve a study, so that the site takes part in it; needed where the policy says approve = true."""
    from rich.console import Console

    from silvan.cli.ledger_tables import approvals_list
    from silvan.cli.terminal import print_parts
    from silvan.deploy.membership.flare_folder import is_site, open_site
    from silvan.privacy.site_folder import Approval, folder_at

    approvals = folder_at(folder).approvals
    if is_site(folder):  # a site of a federation of machines knows which studies came in
        member = open_site(folder)
        approvals = member.folder.approvals
        if study is None:
            _show_studies(member, folder)
            return
        study = _complete_name(member, study)
        coming = next((one for one in member.studies() if one.unique_name == study), None)
        if coming is not None and not withdraw:
            from silvan.deploy.studies.explain import approve_study
            from silvan.deploy.studies.study_table import remember_table

            made = approve_study(member, coming, messages, sites, tasks)
            print_parts(Console(), approvals_list([made]))
            print_lines(remember_table(member, coming))
            return
    if study is None:
        if withdraw:
            raise InputError("name the study to withdraw")
        print_parts(Console(), approvals_list(approvals.listed()))
    elif withdraw:
        approvals.withdraw(study)
        print_parts(Console(), f"Withdrawn: {clean(study)}")
    else:
        made = approvals.approve(Approval(study=study, messages=messages or [], sites=sites or None, tasks=tasks))
        print_parts(Console(), approvals_list([made]))


def _show_studies(member: "SiteFiles", folder: Path) -> None:
    """Show the studies that came in: what each learns, what would leave, what it costs."""
    from rich.console import Console
    from rich.text import Text

    from silvan.cli.ledger_tables import kinds_table
    from silvan.cli.terminal import print_parts
    from silvan.deploy.studies.explain import explain

    console, studies = Console(), member.studies()
    if not studies:
        print_lines("No study has come in yet.")
    for study in studies:
        explained = explain(member, study)
        approved = member.folder.approvals.find(study.unique_name)
        state = f"approved on {approved.at[:10]}" if approved else "waits for your approval"
        declined = member.declined(study)
        if declined is not None:
            state = f"declined: {declined}"
        elif not member.policy.approve:
            state = f"answered without approval, as {member.settings_file.name} says"
        title = Text(clean(f"{study.unique_name}: {state}"), style="bold")
        print_parts(console, title, Text("\n".join(map(clean, explained.lines))))
        if explained.leaves:
            print_parts(console, kinds_table(explained.leaves))
        if member.policy.approve and not approved:
            # by the digest: what a coordinator calls a study is no part of a command
            print_lines(f"To approve: silvan site approve {shlex.quote(str(folder))} {study.digest}")
            if declined is None:
                print_lines(f'To decline: silvan site decline {shlex.quote(str(folder))} {study.digest} --why "..."')


def _complete_name(member: "SiteFiles", study: str) -> str:
    """Return the one name, of studies that came in or are approved, that begins with the text, or whose digest does."""
    names = {one.unique_name: one.digest for one in member.studies()}
    known = {**{approval.study: "" for approval in member.folder.approvals.listed()}, **names}
    matching = sorted(name for name, digest in known.items() if name.startswith(study) or digest.startswith(study))
    if len(matching) != 1:
        raise InputError.about(
            "study", f"must be one of those that came in: {', '.join(map(repr, known)) or 'none did'}"
        )
    return matching[0]


def study_of(member: "SiteFiles", study: str) -> "Study":
    """Return the one study that came in whose name, or whose digest, begins with the text."""
    name = _complete_name(member, study)
    return next(one for one in member.studies() if one.unique_name == name)


def decline(
    folder: Folder,
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study's name, or how it begins.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What the coordinator is told, in a line.")],
) -> None:
    """Take no part in a study: the coordinator is told why. Approving it later takes that back."""
    from silvan.deploy.membership.flare_folder import open_site

    member = open_site(folder)
    member.decline(study_of(member, study), why)
    print_lines("Declined. The coordinator is told when it asks, or asks at once if the study waits for you.")


def freeze(
    folder: Folder,
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study's name, or how it begins.")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the copy: the study is over.")] = False,
) -> None:
    """Keep a copy of the table in the site's folder for one study, which then goes on though the table changes."""
    from silvan.deploy.membership.flare_folder import open_site
    from silvan.deploy.studies.study_table import freeze as freeze_table
    from silvan.deploy.studies.study_table import thaw

    member = open_site(folder)
    plan = study_of(member, study)
    if remove:
        print_lines("Removed." if thaw(member, plan) else "The rows of this study are not frozen.")
    else:
        print_lines(f"Frozen: {freeze_table(member, plan)}")
