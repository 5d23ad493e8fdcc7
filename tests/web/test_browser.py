"""The live page in a browser, over a real study of two sites: from its start, through an approval, to the report.

All checks share one study: progress that moves, a stream that breaks and resumes, console messages, requests to other
machines, and what a screen reader needs, on a wide screen and a phone, light and dark.
"""

import contextlib
import subprocess
import sys
import time

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from axe_playwright_python.sync_playwright import Axe
from helpers.hasty_sites import hasty_sites
from helpers.needs import CHROMIUM
from helpers.studies import table
from playwright.sync_api import expect, sync_playwright

from silvan.deploy.service import start_stop
from silvan.deploy.service.start_stop import process_of, processes_of, stop_all
from silvan.web.run_view import process_of_run

pytestmark = pytest.mark.needs("chromium")

PATIENCE = 60_000
"""Milliseconds after which something that is waited for will never come, also on a machine that is very busy."""

STUDY = """\
name = "Heart <b>שלום</b>"
test = 0.25

[learner]
kind = "HistogramForest"
n_estimators = 40
max_depth = 8
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A coordinator and two sites; north does not reply without its owner's approval."""
    folder = tmp_path_factory.mktemp("web")
    everything, sources = table("binary", n=300), {}
    for i, site in enumerate(("north", "south")):
        everything[i::2].write_csv(folder / f"{site}.csv")
        sources[site] = str(folder / f"{site}.csv")
    with hasty_sites():
        hub, members = start_stop.make_local(folder, sources)
    try:
        settings = members[0].path / "site.toml"  # which is read when a study arrives
        settings.write_text(f"{settings.read_text()}approve = true\n")
        (hub.path / "heart.toml").write_text(STUDY)
        yield hub, members[0]
    finally:
        runs = [path.parent for path in (hub.path / "runs").glob("*/run.pid")]
        stop_all([*map(process_of_run, runs), *map(process_of, members), *processes_of(hub)])


@contextlib.contextmanager
def served(folder):
    """Runs ``silvan web`` as a command; returns the address that it prints."""
    words = [sys.executable, "-u", "-m", "silvan.cli.main", "web", str(folder), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield next(line for line in process.stdout if "http://" in line).split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


class Watched:
    """A browser window that records errors and requests to other machines."""

    def __init__(self, browser, address, **settings):
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.wrong, self.away = [], []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.context.on("request", self._note)
        self.context.route("**/hx-sse.min.js", self._late)
        self.page.goto(address)

    @staticmethod
    def _late(route):
        """Loads the script that updates a page last, as may happen on a busy machine."""
        time.sleep(0.3)
        route.continue_()

    def _note(self, request):
        if not request.url.startswith(("http://127.0.0.1:", "data:")):
            self.away.append(request.url)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def check_for_all(page):
    """Checks the page in other modes: wide and narrow, light and dark."""
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = Axe().run(page).response["violations"]
            serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
            assert serious == [], [(rule["id"], rule["nodes"][0]["html"]) for rule in serious]
        assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_study_from_its_start_to_its_report(federation, browser):
    hub, north = federation
    with served(hub.path) as hub_address, served(north.path) as site_address:
        coordinator, site = Watched(browser, hub_address), Watched(browser, site_address)
        for window in (coordinator, site):
            assert "token" not in window.page.url
        check_for_all(coordinator.page)
        at_hub, at_site = coordinator.page, site.page

        # start a study with the keyboard
        at_hub.get_by_role("button", name="Run").focus()
        at_hub.keyboard.press("Enter")
        expect(at_hub.get_by_role("status").filter(has_text="Submitted")).to_be_visible(timeout=PATIENCE)
        at_hub.get_by_role("link", name="Heart").first.click()

        # it appears at the site without a reload, with an explanation
        at_site.get_by_role("link", name="Heart").click()
        approve = at_site.get_by_role("button", name="Approve exactly this")
        expect(approve).to_be_visible(timeout=PATIENCE)
        expect(at_site.locator(".leaves li")).not_to_have_count(0)
        expect(at_hub.get_by_text("has not approved the study yet")).to_be_visible(timeout=PATIENCE)
        check_for_all(at_hub)
        check_for_all(at_site)

        # the stream breaks, and the page resumes with the current state
        stages = [at_hub.locator(".stage").inner_text()]
        at_hub.expose_function("noteStage", lambda stage: stages.append(stage))
        at_hub.evaluate(
            "new MutationObserver(() => { const stage = document.querySelector('.stage');"
            " if (stage) noteStage(stage.innerText); })"
            ".observe(document.getElementById('live'), {subtree: true, childList: true, characterData: true})"
        )
        with at_hub.expect_request(lambda request: "/live/" in request.url):
            at_hub.evaluate("document.getElementById('live')._htmx.sse.reader.cancel()")

        # approved, it moves, and the result appears on both pages
        approve.click()
        expect(at_site.get_by_role("status").filter(has_text="Approved: ")).to_be_visible(timeout=PATIENCE)
        for page in (at_hub, at_site):
            expect(page.get_by_role("link", name="Open the report")).to_be_visible(timeout=PATIENCE)
        expect(at_hub.locator(".state").first).to_have_text("done", timeout=PATIENCE)
        assert len(set(stages)) > 1, stages  # which of them are seen depends on how fast the study is
        expect(at_site.locator(".ledger li")).not_to_have_count(0)
        check_for_all(at_site)

        # charts are there
        for page in (at_hub, at_site):
            page.get_by_role("link", name="Open the report").click()
            expect(page.locator("svg.track").first).to_be_visible()
        check_for_all(at_hub)

        # and the site stops
        at_site.go_back()
        at_site.get_by_role("link", name="Studies").click()
        at_site.get_by_role("button", name="Stop").click()
        expect(at_site.get_by_role("status").filter(has_text="Stopped")).to_be_visible(timeout=PATIENCE)
        assert process_of(north).pid is None
        for window in (coordinator, site):
            assert window.away == []
            assert window.wrong == []
