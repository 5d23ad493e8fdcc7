"""The splits of a study that evaluates every row: for a site's gate each is a separate study, under one approval.

A secret of each site assigns its rows to splits. Otherwise sums over a hundred parts of a table would reveal rows to
anyone who knew the parts.
"""

from dataclasses import replace

from silvan.data.holdout import Fold, Split
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.studies.study_table import fold_key
from silvan.errors import FederationError, FormatError
from silvan.federation import wire
from silvan.federation.message import Verb
from silvan.federation.signed import SignedMessage
from silvan.federation.site import Site
from silvan.study.study import Study


class SiteWithSplits:
    """A site that serves a study and its splits; ``last_error`` is that of the last reply."""

    def __init__(self, site: Site, files: SiteFiles, study: Study) -> None:
        self.site, self._files, self._study = site, files, study
        self.last_error: Exception | None = None
        parts = study.parts_of_splits(files.sites_of(study))
        self._parts = {part.study(study.unique_name): part for part in parts if site.name in part.members([site.name])}
        self._split = "", site  # the last requested one, because they come one after the other

    def receive(self, data: bytes, verb: Verb) -> bytes:
        """Handle one message; if it belongs to no split of the study, as the site itself does."""
        site = self.site
        try:
            name = wire.decode(data, SignedMessage).study
        except FormatError:
            name = ""
        if name in self._parts:
            if self._split[0] != name:
                self._split = name, make_split(self.site, self._files, self._study, self._parts[name])
            site = self._split[1]
        answer = site.receive(data, verb)
        self.last_error = site.last_error
        return answer


def check_splits(files: SiteFiles, study: Study) -> None:
    """Raise ``FederationError`` if the site's rows are not all in memory."""
    beyond = [key for key in ("memory", "cluster") if key in files.settings]
    if study.on_splits and beyond:
        raise FederationError(
            f"its rows are not all in memory ({beyond[0]} in its settings), and evaluation on splits needs that"
        )


def make_split(site: Site, files: SiteFiles, study: Study, split: Split) -> Site:
    """Create a site with a split's test rows, the same table and the same keys."""
    fold = split if isinstance(split, Fold) else None
    settings = replace(site.settings, test=split.test, fold=fold, test_key=fold_key(files, study), results=None)
    made = site.rebuilt(settings, outbox=files.gate(study, split))
    made.take_table(site)
    return made
