"""Take the pictures of the documents: pages of a demo run in a browser, written as PNG to docs/images/.

python tools/take_screenshots.py      # runs the demo first; needs Chromium
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH, HEIGHT = 960, 760


def main() -> None:
    """Run the demo and photograph its report."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        run = Path(folder) / "demo"
        subprocess.run([sys.executable, "-m", "silvan.cli.main", "demo", "--output", str(run)], check=True)  # noqa: S603
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto((run / "report.html").as_uri())
        page.screenshot(path=IMAGES / "report.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})
        browser.close()


if __name__ == "__main__":
    main()
