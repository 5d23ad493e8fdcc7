"""Run the tutorials as a reader would, and write the output below each block.

    python tools/run_tutorials.py [PAGE...]     # all pages of docs/tutorials

A page is run from top to bottom in an empty folder. Python blocks share their names; the output of one is in a
``text`` block right below it. In ``console`` blocks every line that begins with ``$`` is a command, and its output
follows. A ``toml`` block that begins with a comment of a file name is written to that file. A test compares every
page with what this would write.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
BLOCK = re.compile(r"```(python|console|toml)\n(.*?)```\n(?:\n```text\n.*?```\n)?", re.S)
ENVIRONMENT = {"COLUMNS": "80", "POLARS_FMT_MAX_COLS": "12"}


def run_page(text: str, folder: Path) -> str:
    """Return a page with the outputs of its blocks, run in a folder."""
    names: dict[str, object] = {}

    def run(match: re.Match[str]) -> str:
        kind, code = match[1], match[2]
        if kind == "toml":
            named = re.match(r"# (\S+\.toml)\n", code)
            if named:
                (folder / named[1]).write_text(code, encoding="utf-8")
            return match[0]
        if kind == "console":
            return f"```console\n{_commands(code)}```\n"
        printed = _python(code, names)
        return f"```python\n{code}```\n" + (f"\n```text\n{printed}```\n" if printed else "")

    with _inside(folder):
        return BLOCK.sub(run, text).replace(str(folder.resolve()), "~")


def _python(code: str, names: dict[str, object]) -> str:
    found = io.StringIO()
    with contextlib.redirect_stdout(found), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, "tutorial", "exec"), names)  # noqa: S102, the page's own code
    return _trimmed(found.getvalue())


def _commands(code: str) -> str:
    from silvan.cli.main import app

    lines: list[str] = []
    for command in re.findall(r"^\$ (.*)$", code, re.M):
        program, *words = shlex.split(command, comments=True)
        if program != "silvan":
            raise ValueError(f"a tutorial runs silvan only, not {command!r}")
        with patch("typer.launch"):  # no browser
            result = CliRunner().invoke(app, words)
        if result.exit_code:
            raise RuntimeError(f"{command}: {result.output}{result.stderr}")
        lines += [f"$ {command}\n", _trimmed(result.stdout)]
    return "".join(lines)


def _trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def masked(text: str) -> str:
    """Return a page without what differs between runs: sizes, times, keys in words, ports, and metrics with noise."""
    text = BLOCK.sub(lambda block: re.sub(r"\d", "0", block[0]) if "(fed, epsilon" in block[0] else block[0], text)
    text = re.sub(r"^ +\d+\.\d s .*\n|^.*(?:discarded: |look at ).*\n", "", text, flags=re.M)  # progress
    text = re.sub(r"\d[\d.,]* (?:bytes?|KB|MB)\b", "SIZE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d)?", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
    text = re.sub(r"localhost:\d+", "ADDRESS", text)
    text = re.sub(r"(?<=yes) +[a-z]+(?: [a-z]+){7}\b", " WORDS", text)
    return re.sub(r"[\s─]+", " ", text)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def main() -> None:
    """Run the named pages, or all."""
    for page in [Path(word) for word in sys.argv[1:]] or sorted(FOLDER.glob("*.md")):
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(run_page(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
