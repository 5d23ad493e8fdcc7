"""The README's code runs, links work, and every public name is documented, with examples that pass."""

import doctest
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from markdown.extensions.toc import slugify

import silvan
from silvan.cli.main import app
from silvan.study.study_file import read_study

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page, language):
    """Code of one language in a page, block by block."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.parent.name != "tutorials"],  # see test_tutorials.py
    ids=lambda page: page.name,
)
def test_code_runs(page, tmp_path, monkeypatch, capsys):
    """As written: the blocks of a page one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)  # noqa: S102


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_work(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page):
    """Return the names of a page's headings, as links write them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.M)]
    return {slugify(title.replace("`", ""), "-") for title in titles} | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_name_existing_headings(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        other = (page.parent / target) if target else page
        assert anchor in anchors(other), f"{page.name} links to {target}#{anchor}"


def test_every_public_name_is_in_the_list_of_the_interface():
    assert sorted(re.findall(r"::: silvan\.(\w+)", (ROOT / "docs/api.md").read_text())) == silvan.__all__


def named_tests(text):
    """Files and functions of the tests that a page names."""
    return re.findall(r"(tests/[\w/]+\.py)::(\w+)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_named_in_pages_exist(page):
    for file, name in named_tests(page.read_text()):
        assert (ROOT / file).exists(), f"{page.name} names {file}"
        assert f"def {name}(" in (ROOT / file).read_text(), f"{page.name} names {file}::{name}"


# -- public names

public = pytest.mark.parametrize("name", silvan.__all__)


def entries(text, section):
    """The entries in a section of a numpy-style docstring."""
    found = re.search(rf"^{section}\n-+\n(.*?)(?=^[A-Z]\w*\n---|\Z)", inspect.cleandoc(text), re.S | re.M)
    lines = [line for line in (found[1].splitlines() if found else []) if line and line[0] != " "]
    return {name for line in lines for name in line.split(" : ")[0].split(", ")}


def keywords(thing):
    """Names of the parameters of a callable; an error's text has none."""
    if inspect.isclass(thing) and issubclass(thing, Exception) and "__init__" not in vars(thing):
        return set()
    parameters = inspect.signature(thing).parameters.values()
    return {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def test_public_names():
    assert silvan.__all__ == sorted(set(silvan.__all__))
    for name in silvan.__all__:
        thing = getattr(silvan, name)
        assert callable(thing), name
        assert thing.__name__ == name
        assert vars(thing)["__doc__"] if inspect.isclass(thing) else thing.__doc__, name


def test_what_completion_offers():
    """Public names; for a learner its methods, parameters and results, but no internals."""
    assert {name for name in dir(silvan) if not name.startswith("__")} == {*silvan.__all__, "datasets"}
    model = silvan.HistogramForest()
    offered = {name for name in dir(model) if not name.startswith("_")}
    assert {"fit", "predict", "evaluate", "n_estimators", "epsilon"} <= offered
    assert not {"train", "grow", "request_plan", "known_schema", "forest_"} & offered
    assert "sums" in inspect.signature(silvan.federate_rows).parameters
    assert "quorum" in inspect.signature(silvan.federate_columns).parameters


@public
def test_examples_in_docstrings(name):
    thing, runner = getattr(silvan, name), doctest.DocTestRunner()
    [test] = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    assert "Examples\n--------" in inspect.getdoc(thing)
    assert test.examples, f"{name} has no example"
    assert runner.run(test, clear_globs=False).failed == 0
    model = test.globs.get("model")
    if inspect.isclass(thing) and isinstance(model, thing):
        fitted = {known for known in vars(model) if known.endswith("_") and known[0] != "_"}
        assert fitted - entries(thing.__doc__, "Attributes") == set(), "list what fit sets under Attributes"


@public
def test_all_parameters_are_documented(name):
    thing = getattr(silvan, name)
    assert entries(thing.__doc__, "Parameters") == keywords(thing)


def test_the_tests_above_can_fail():
    text = """Do something.

    Parameters
    ----------
    first, second
        Two.
    third : int
        Three.

        With a second paragraph.

    Examples
    --------
    >>> 1
    1
    """
    assert entries(text, "Parameters") == {"first", "second", "third"}
    assert entries(text, "Attributes") == set()
    assert named_tests("held by `tests/a/test_b.py::test_c`") == [("tests/a/test_b.py", "test_c")]
    assert {"tables", "sums", "quorum"} < keywords(silvan.federate_columns)
    assert "options" not in keywords(silvan.federate_rows)
    assert keywords(silvan.SiteError) == {"site", "text", "code", "owner_hint"}


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


def test_the_map_is_current():
    tool = writer()
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.render(page), "run make docs"
    everything = set(tool.SOURCES.rglob("*.py")) - {tool.SOURCES / "__init__.py"}
    assert everything <= tool.placed(), "say in LAYERS of tools/write_architecture.py where a new package belongs"


def test_the_map_names_existing_files():
    by_hand = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## All modules")[0]
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`", by_hand)
    assert len(named) > 50
    roots = (ROOT, ROOT / "src" / "silvan")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


# -- study files and commands in pages


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.name)
def test_study_files_in_pages_are_valid(page, tmp_path):
    """Every key of every TOML block is one that silvan knows; named tables are invented for the test."""
    for k, block in enumerate(blocks(page, "toml")):
        data = tomllib.loads(block)
        if not data.keys() & {"sites", "parties", "table", "learner", "label", "schema", "kinds"}:
            continue  # a part of another file, such as a site's
        folder = tmp_path / str(k)
        folder.mkdir()
        named = (
            [data["table"]] if "table" in data else [*data.get("sites", {}).values(), *data.get("parties", {}).values()]
        )
        for table in named:
            name = table["table"] if isinstance(table, dict) else table
            path = folder / name
            if ":" not in str(path.name) and "://" not in name:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        text = block if named else f'table = "all.csv"\nsite = "hospital"\n{block}'
        (folder / "all.csv").touch()
        (folder / "study.toml").write_text(text)
        study = read_study(folder / "study.toml")
        assert study.tables


def command_lines(page):
    """Commands in indented blocks of a page, as a user would type them."""
    for line in re.findall(r"^(?: {4}|\$ )(silvan [^\n]+)", page.read_text(), re.M):
        yield shlex.split(re.split(r"\s{2,}|\s#", line)[0])


def find_command(words):
    """Return the command of the line, and the words after it."""
    command = typer.main.get_command(app)
    words = words[1:]
    while isinstance(command, typer.core.TyperGroup) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_pages_exist(page):
    for words in command_lines(page):
        if "|" in "".join(words[1:3]) or any(word in ("COMMAND", "...") for word in words):
            continue  # a list of commands
        command, rest = find_command(words)
        assert not isinstance(command, typer.core.TyperGroup), f"{page.name}: {' '.join(words)}"
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in rest:
            if word.startswith("-") and not word.startswith("--help"):
                assert word.split("=")[0] in known | {"--debug", "-h"}, f"{page.name}: {' '.join(words)}"


@pytest.mark.long
def test_the_pages_are_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert all((tmp_path / "site" / "api" / f"{name}.html").exists() for name in silvan.__all__)
    for html in (tmp_path / "site").rglob("*.html"):  # nothing is loaded from elsewhere
        assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)', html.read_text()), html.name
