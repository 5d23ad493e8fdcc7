"""``silvan web``: its output, and what it refuses before it listens."""

import stat
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname as url_to_path

import pytest
from helpers.runs import silvan, write_study


@pytest.fixture
def served(monkeypatch):
    """Records what would be served, instead of serving it."""
    found = []
    monkeypatch.setattr("silvan.web.app.serve", lambda app, listener: found.append(listener.getsockname()))
    return found


def test_one_address_with_a_token_on_loopback(tmp_path, served):
    write_study(tmp_path)
    first = silvan("web", tmp_path, "--port", 0).output
    again = silvan("web", tmp_path, "--port", 0).output
    (host, port), _ = served
    assert host == "127.0.0.1"
    assert f"http://127.0.0.1:{port}/?token=" in first
    assert "Warning" not in first
    tokens = {text.split("token=")[1].split()[0] for text in (first, again)}
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 43


def test_another_address_is_warned_of(tmp_path, served):
    write_study(tmp_path)
    said = silvan("web", tmp_path, "--port", 0, "--host", "127.0.0.2").output
    assert said.startswith("Warning: others can reach 127.0.0.2")
    assert served[0][0] == "127.0.0.2"
    refused = silvan("web", tmp_path, "--host", "0.0.0.0", ok=False)  # noqa: S104
    assert "host must be one address" in refused.stderr
    assert len(served) == 1


def test_the_token_is_in_no_command_line(tmp_path, served, monkeypatch):
    """Every user of the machine can read the command line of a browser."""
    shown = []

    def launch(url):
        page = Path(url_to_path(urlsplit(url).path))
        shown.append((url, page.read_text(), stat.S_IMODE(page.stat().st_mode)))

    monkeypatch.setattr("typer.launch", launch)
    write_study(tmp_path)
    said = silvan("web", tmp_path, "--port", 0, "--open").output
    token = said.split("token=")[1].split()[0]
    [(url, page, mode)] = shown
    assert token not in url
    assert "?token=" in page
    assert token not in page
    assert mode == 0o600


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("silvan.cli.web_command.find_spec", lambda name: None)
    refused = silvan("web", tmp_path, ok=False)
    assert refused.exit_code == 1
    assert "pip install 'silvan[web]'" in refused.stderr


def test_a_foreign_folder(tmp_path, served):
    refused = silvan("web", tmp_path, ok=False)
    assert "there is nothing to show" in refused.stderr
    (tmp_path / "hub.json").write_text("{")
    refused = silvan("web", tmp_path, ok=False)
    assert refused.exit_code == 1
    assert "damaged" in refused.stderr
    (tmp_path / "hub.json").unlink()
    (tmp_path / "member.json").write_text("{")
    assert "damaged" in silvan("web", tmp_path, ok=False).stderr
    assert served == []
