"""The README's code runs, links lead somewhere, and the public names are documented with examples that hold."""

import doctest
import importlib.util
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


def writer():
    """The script that lists all modules in the architecture page."""
    spec = importlib.util.spec_from_file_location("write_architecture", ROOT / "tools" / "write_architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_map_is_true():
    tool = writer()
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.render(page), "run make docs"
    everything = set(tool.SOURCES.rglob("*.py")) - {tool.SOURCES / "__init__.py"}
    assert everything <= tool.placed(), "say in LAYERS of tools/write_architecture.py where a new package belongs"


def test_the_map_names_files_that_are_there():
    by_hand = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## All modules")[0]
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`", by_hand)
    assert len(named) > 50
    roots = (ROOT, ROOT / "src" / "silvan")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []
