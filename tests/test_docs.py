"""The README's code runs, links lead somewhere, and the public names are documented with examples that hold."""

import doctest
import re
from pathlib import Path

import pytest

import silvan

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_readme_code_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102
    assert capsys.readouterr().out.count("\n") > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", [n for n in silvan.__all__ if ">>>" in (getattr(silvan, n).__doc__ or "")])
def test_examples_in_docstrings(name):
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for example in finder.find(getattr(silvan, name), name, globs={}):
        runner.run(example)
    assert runner.summarize().failed == 0


def test_decisions_are_listed():
    index = (ROOT / "docs/decisions/README.md").read_text()
    pages = [p.name for p in (ROOT / "docs/decisions").glob("[0-9]*.md")]
    assert len(pages) >= 7
    assert all(f"({page})" in index for page in pages)
