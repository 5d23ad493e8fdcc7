"""``silvan site``: registers the commands for a site's owner, on the site's folder."""

import typer

from silvan.cli import site_membership, site_records, site_studies
from silvan.cli.plain_text import PlainGroup

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    help="A site's own side: its ledger, and the studies its owner approves.",
)


@app.callback()
def system() -> None:
    """Refuse systems on which no site can run."""
    from silvan.deploy.service.process import require_posix

    require_posix()


for command in (
    site_records.ledger,
    site_studies.approve,
    site_studies.decline,
    site_studies.freeze,
    site_records.model,
    site_records.report,
    site_membership.join,
    site_membership.start,
    site_membership.renew,
    site_membership.roster,
    site_membership.stop,
    site_records.backup,
    site_records.restored,
    site_records.status,
    site_records.metrics,
):
    app.command()(command)
