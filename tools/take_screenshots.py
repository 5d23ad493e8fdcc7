"""Take the pictures of the documents: pages of a demo run in a browser, written as PNG to docs/images/.

    python tools/take_screenshots.py          # runs the demos first; needs Chromium

The demo's tables and seeds are fixed, and the report is photographed at a fixed size in light colours: the pictures
change only when the report does.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH, HEIGHT = 1000, 760
_AROUND = 12  # pixels of the page around an element


def main() -> None:
    """Photograph reports of demo runs: of the demo its top, its gains, and its curves with column effects."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        top = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
        for data, name in (("income", "report.png"), ("omop", "omop.png"), ("fhir", "fhir.png")):
            run = Path(folder) / data
            words = [sys.executable, "-m", "silvan.cli.main", "demo", "--data", data, "--output", str(run)]
            subprocess.run(words, check=True)  # noqa: S603  our own command
            page.goto((run / "report.html").as_uri())
            if data == "fhir":
                photograph(page, name, page.locator("#sites"))
                continue
            page.screenshot(path=IMAGES / name, clip=top)
            if data == "income":
                photograph(page, "gains.png", page.locator("#sites"))
                photograph(page, "curves.png", page.locator("#curves"), page.locator("#importances"))
        browser.close()


def photograph(page: Page, name: str, first: Locator, last: Locator | None = None) -> None:
    """Photograph the page from the top of one element to the bottom of another."""
    boxes = [box for one in (first, last or first) if (box := one.bounding_box()) is not None]
    top, bottom = boxes[0]["y"] - _AROUND, boxes[-1]["y"] + boxes[-1]["height"] + _AROUND
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
    page.screenshot(path=IMAGES / name, clip=clip, full_page=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
