"""The pages of a site's folder: studies waiting for approval, the ledger, results, start and stop."""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from silvan.deploy.membership.flare_folder import open_site
from silvan.deploy.membership.joined_site import MEMBER, ROSTER, SETTINGS, JoinedSite
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.membership.site_log import LAST_ERROR
from silvan.deploy.service.start_stop import prepare_site, process_of, start_site
from silvan.deploy.service.status import site_status, study_state
from silvan.deploy.studies.explain import Explanation, approve_study, explain
from silvan.deploy.studies.send_results import read_results
from silvan.deploy.studies.study_table import remember_table
from silvan.errors import FederationError, InputError, SilvanError
from silvan.privacy.ledger import LEDGER, Line, read_lines, verify
from silvan.privacy.site_folder import APPROVALS
from silvan.study.run_folder import RUN
from silvan.study.study import Study
from silvan.util.readable import count_of
from silvan.web.pages import File, Page, stamp
from silvan.web.run_view import chart_of, report_of, sentences_of

_NEWEST, _MOST_LINES = 12, 300
"""Lines of the ledger shown on the first page, and on the others."""


class SiteFolderPages:
    """A site's folder as pages."""

    links = (("/", "Studies"), ("/ledger", "Ledger"))

    def __init__(self, path: Path) -> None:
        site = open_site(path)
        self.path, self.name = site.path, f"site {site.name}"
        self._folder, self._opened = path, object()
        self._site: SiteFiles | None = None
        self._lock = threading.Lock()
        self._explained: dict[object, Explanation] = {}
        self._explaining = threading.Lock()

    @property
    def site(self) -> SiteFiles:
        """The site's files, reopened after a change of settings."""
        with self._lock:
            now = stamp([self.path / MEMBER, self.path / SETTINGS])
            if self._site is None or now != self._opened:
                self._site, self._opened = open_site(self._folder), now
            return self._site

    def state(self) -> object:
        """Return a value that changes whenever a page may change."""
        names = (MEMBER, SETTINGS, ROSTER, LEDGER, APPROVALS, LAST_ERROR, "budget.sqlite-wal")
        asked = sorted((self.path / "asked").glob("*"))
        results = sorted((self.path / "results").glob(f"*/{RUN}"))
        site = self.site
        pid = process_of(site).pid if isinstance(site, JoinedSite) else None
        return stamp([*(self.path / name for name in names), *asked, *results]), pid

    # -- pages

    def page(self, path: str) -> Page | None:
        """Return a page."""
        if path == "":
            return Page("Studies", "site.html.jinja", self._overview())
        if path == "ledger":
            return Page("Ledger", "ledger.html.jinja", self._ledger())
        first, _, rest = path.partition("/")
        digest, _, last = rest.partition("/")
        study = self._find(digest) if first == "studies" else None
        if study is None or last not in ("", "explanation"):
            return None
        values = self._explanation(study) if last else self._study(study)
        return Page(study.name, "explanation.html.jinja" if last else "site_study.html.jinja", values)

    def file(self, path: str) -> File | None:
        """Return the report or the model of a study, after checking its signature."""
        parts = path.split("/")
        study = self._find(parts[1]) if len(parts) == 3 and parts[0] == "studies" else None
        if study is None or parts[2] not in ("report", "model"):
            return None
        kept = read_results(self.site, study)
        if parts[2] == "report":
            return File(report_of(kept.record, kept.run.folder), "text/html")
        if kept.model is None:
            raise InputError("the model of a vertical study is split into shares; this party's share is in its store")
        return File(kept.model, "application/octet-stream", f"{study.folder}.silvan")

    def _find(self, digest: str) -> Study | None:
        return next((study for study in self.site.studies() if study.digest == digest), None)

    def _lines(self) -> list[Line]:
        return read_lines(self.path) if (self.path / LEDGER).exists() else []

    def _overview(self) -> dict[str, Any]:
        site, lines = self.site, self._lines()
        status = site_status(site, ask=False)
        counts = Counter(line.study for line in lines if line.outcome == "answered")
        studies = []
        for study in reversed(site.studies()):
            state, there = status.studies.get(study.unique_name, ""), (site.results_folder(study) / RUN).is_file()
            studies.append((study, state, counts[study.unique_name], there))
        can_start = isinstance(site, JoinedSite)
        return {"status": status, "studies": studies, "can_start": can_start, **_newest(lines, _NEWEST)}

    def _ledger(self) -> dict[str, Any]:
        lines = self._lines()
        faults = verify(self.path, self.site.folder.public(), all_signatures=False).faults if lines else []
        counts, size = Counter(line.outcome for line in lines), sum(line.bytes for line in lines)
        return {"counts": counts, "size": size, "faults": faults[:5], **_newest(lines, _MOST_LINES)}

    def _study(self, study: Study) -> dict[str, Any]:
        site = self.site
        lines = [line for line in self._lines() if line.study == study.unique_name]
        sentences, problem, chart = [], "", ""
        if there := (site.results_folder(study) / RUN).is_file():
            try:
                record = read_results(site, study).record
                sentences, chart = sentences_of(record), chart_of(record)
            except (SilvanError, OSError) as error:
                problem = str(error)
        return {
            "study": study,
            "state": study_state(site, study),
            "why": site.declined(study),
            **_newest(lines, _MOST_LINES),
            "size": sum(line.bytes for line in lines),
            "round": max((line.round for line in lines), default=0),
            "refused": sum(line.outcome in ("refused", "failed") for line in lines),
            "there": there,
            "sentences": sentences,
            "chart": chart,
            "unsigned": problem,
            "columns": study.by_columns,
        }

    # -- approvals

    def _explanation(self, study: Study) -> dict[str, Any]:
        explained = self.explanation(study)
        site = self.site
        approval, why = site.folder.approvals.find(study.unique_name), site.declined(study)
        shown = _shown(study, explained)
        values = {"study": study, "explained": explained, "approval": approval, "why": why, "shown": shown}
        there = (site.results_folder(study) / RUN).is_file()
        return {**values, "needs": site.policy.approve, "there": there}

    def explanation(self, study: Study) -> Explanation:
        """Return what a study asks for; cached while nothing changes, since the trial run takes seconds."""
        files = [self.site.settings_file, self.path / ROSTER, self.path / "asked" / f"{study.digest}.sites"]
        key = (study.digest, str(stamp(files)))
        with self._explaining:
            found = self._explained.get(key)
            if found is None:
                if len(self._explained) > 50:
                    self._explained.clear()
                found = self._explained[key] = explain(self.site, study)
            return found

    # -- actions

    def actions(self) -> dict[str, Callable[[dict[str, str]], str]]:
        """Return the actions of forms."""
        of_study = {"approve": self._approve, "decline": self._decline, "withdraw": self._withdraw}
        return {"start": self._start, "stop": self._stop, **of_study}

    def _asked(self, form: dict[str, str]) -> Study:
        study = self._find(form.get("study", ""))
        if study is None:
            raise InputError("there is no such study")
        return study

    def _approve(self, form: dict[str, str]) -> str:
        """Approve exactly what the page showed."""
        study = self._asked(form)
        if form.get("shown") != _shown(study, self.explanation(study)):
            raise InputError("the study no longer asks for what this page showed; read it again, then decide")
        kinds = count_of(len(approve_study(self.site, study, by=form["by"]).messages or ()), "kind")
        return f"Approved: {kinds} of messages may leave. {remember_table(self.site, study, reasons=False)}"

    def _decline(self, form: dict[str, str]) -> str:
        self.site.decline(self._asked(form), form.get("why", ""), form["by"])
        return "Declined. The coordinator learns this with its next request."

    def _withdraw(self, form: dict[str, str]) -> str:
        self.site.withdraw(self._asked(form).unique_name, form["by"])
        return "Withdrawn: the site answers no more requests of this study."

    def _member(self) -> JoinedSite:
        site = self.site
        if not isinstance(site, JoinedSite):
            raise InputError("FLARE's own commands start and stop this site")
        return site

    def _start(self, form: dict[str, str]) -> str:
        member = self._member()
        try:
            lines = prepare_site(member, form["by"])
        except FederationError:
            raise
        except SilvanError:  # its message may quote a cell
            raise InputError(
                "the site's table, or its description in site.toml, has a problem; `silvan site start` in a terminal "
                "shows it"
            ) from None
        start_site(member)
        return " ".join(["The site is running.", *lines])

    def _stop(self, form: dict[str, str]) -> str:
        stopped = process_of(self._member()).stop()
        return "Stopped; studies pause and resume at the next start." if stopped else "It was not running."


def _newest(lines: list[Line], most: int) -> dict[str, Any]:
    return {"lines": lines[: -most - 1 : -1], "total": len(lines)}


def _shown(study: Study, found: Explanation) -> str:
    """Return a digest of what an approval would contain and of what the owner sees."""
    asked = None if found.asked is None else msgspec.structs.replace(found.asked, at="")
    return hashlib.sha256(msgspec.json.encode([asked, found.consent, found.lines, study.text])).hexdigest()
