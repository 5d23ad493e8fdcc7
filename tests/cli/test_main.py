"""The command line: fast help, and clear messages when something is wrong."""

import sqlite3
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import typer
from helpers.runs import silvan

import silvan as sv
from silvan.cli.main import app
from silvan.cli.plain_text import clean
from silvan.study.listener import TimedStep
from silvan.study.steps import corners

HEAVY = {"numpy", "numba", "sklearn", "polars", "narwhals", "jinja2"}


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from silvan.cli.main import app;"
        "r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0 and 'demo' in r.output;"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_package_is_lazy_and_complete():
    assert set(sv.__all__) <= set(dir(sv))
    assert sv.HistogramForest.__name__ == "HistogramForest"
    with pytest.raises(AttributeError, match="no attribute 'Foresst'"):
        sv.Foresst  # noqa: B018


def test_help_shows_all_that_it_says(monkeypatch):
    """Square brackets are markup in a terminal, and words in them would vanish: `the section [reading]`."""
    monkeypatch.setenv("COLUMNS", "200")

    def check(command, words):
        shown = " ".join(silvan(*words, "--help").output.replace("│", " ").split())
        for text in (command.help, *(parameter.help for parameter in command.params if not parameter.hidden)):
            first = (text or "").split("\n\n")[0].replace("\\", "").replace("`", "")
            assert " ".join(first.split()) in shown.replace("`", ""), words
        for name, inner in getattr(command, "commands", {}).items():
            check(inner, [*words, name])

    check(typer.main.get_command(app), [])


def test_version():
    assert silvan("--version").output.strip() == f"silvan {version('silvan')}" == f"silvan {sv.__version__}"


@pytest.mark.parametrize("words", [["fit"], ["nonsense"], ["fit", "a", "b"], ["demo", "--sites", "1"]])
def test_usage_errors(words):
    assert silvan(*words, ok=False).exit_code == 2


def test_internal_errors_are_identified_as_such(monkeypatch):
    monkeypatch.setattr("silvan.study.study_file.read_study", lambda path: 1 // 0)
    result = silvan("fit", "any.toml", ok=False)
    assert result.exit_code == 1
    assert "a bug in silvan: ZeroDivisionError" in result.stderr
    assert "--debug" in result.stderr


def test_names_cannot_control_the_terminal():
    assert clean("a\x1b[2Jb\nc") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c"
    assert clean("[red]Köln 東京[/red]") == "[red]Köln 東京[/red]"


def test_thinning_keeps_the_curve():
    assert corners(sv_array([0, 0, 0, 0.5, 1, 1]), sv_array([0, 0.25, 0.5, 0.75, 1, 1])) == [
        (0.0, 0.0),
        (0.0, 0.5),
        (1.0, 1.0),
    ]


def sv_array(values):
    import numpy as np

    return np.array(values, float)


def test_remaining_time_is_shown_only_when_known():
    step = TimedStep("counting")
    assert "so far" in str(step)
    step.advance(1, 4)
    assert step.left is None
    step.advance(2, 4)
    assert step.left is not None
    assert step.left >= 0
    assert "left" in str(step)


# -- everyday failures


def shell(line, cwd=None):
    code = f"{sys.executable} -m silvan.cli.main"
    return subprocess.run(["bash", "-c", line.replace("SILVAN", code)], capture_output=True, text=True, cwd=cwd)


def test_a_reader_that_has_gone_is_no_error():
    done = shell("SILVAN fit --help | head -1; exit ${PIPESTATUS[1]}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_during_output_is_no_error(tmp_path):
    """The content of a failed write is discarded, so no flush can fail a second time."""
    # more than a pipe holds: the command still writes after its reader has gone
    code = "import sys; from silvan.cli import main, plain_text; from silvan.cli.site_command import app\n"
    code += "app.command('much')(lambda: plain_text.print_lines(*['x' * 9000] * 100))\nmain.main()"
    (tmp_path / "much.py").write_text(code)
    line = f"{sys.executable} {tmp_path}/much.py site much | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_broken_connection_is_still_an_error(monkeypatch):
    def broken(path):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("silvan.study.study_file.read_study", broken)
    assert "Broken pipe" in silvan("fit", "any.toml", ok=False).stderr


def test_a_folder_that_was_removed(tmp_path):
    (tmp_path / "gone").mkdir()
    done = shell(f"rmdir {tmp_path}/gone; SILVAN study status", cwd=tmp_path / "gone")
    assert done.returncode == 1
    assert done.stderr == "silvan: the current folder was removed; change to another one\n"


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_full_disk(monkeypatch, kind):
    def full(path):
        if kind == "file":
            raise OSError(28, "No space left on device", "runs/heart")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("silvan.study.study_file.read_study", full)
    said = silvan("fit", "any.toml", ok=False).stderr
    where = " (runs/heart)" if kind == "file" else ""
    assert said == f"silvan: the disk is full{where}; free some space, then run the command again\n"


@pytest.mark.parametrize("words", [["site", "status", "north"], ["study", "status"], ["doctor"]])
def test_on_windows_missing_features_are_named(monkeypatch, words):
    monkeypatch.setattr("silvan.deploy.service.process.os", SimpleNamespace(name="nt"))
    said = silvan(*words, ok=False)
    assert said.exit_code == 1
    assert "do not run on Windows itself; install silvan in WSL2" in said.stderr
