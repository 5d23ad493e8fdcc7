"""Runs on this machine as pages: progress, half-written or foreign folders, misleading names."""

import re
from pathlib import Path

import msgspec
import pytest
from helpers.browsing import act, open_page
from helpers.runs import fitted, write_study

from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.errors import InputError
from silvan.study.run_folder import Record, Run, SiteRows
from silvan.study.study_file import read_study
from silvan.util.files import try_json
from silvan.web import pages
from silvan.web.run_pages import RunsFolder

HOSTILE = '<script>alert(1)</script> "\u202ekcab\u202c" `<img src=x>` שלום'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished study, and others that are half written, foreign, or oddly named."""
    folder = tmp_path_factory.mktemp("runs")
    fitted(folder)
    for name in ("torn", "foreign", "newer"):
        (folder / name).mkdir()
    (folder / "torn" / "run.json").write_bytes((folder / "run" / "run.json").read_bytes()[:200])
    (folder / "torn" / PROGRESS).write_text('{"job": ')
    (folder / "foreign" / "run.json").write_text('{"format": "something else", "name": "<b>"}')
    (folder / "newer" / "run.json").write_text('{"format": "silvan run", "version": 99}')
    (folder / "bad.toml").write_text("name = '<i>bad</i>'\nlabel = 7\n")
    hostile = Record(name=HOSTILE, sites=[SiteRows(f"{HOSTILE} {i}", 10) for i in range(200)])
    Run(folder / "hostile").write(hostile)
    waiting = {hostile.sites[0].name: HOSTILE}
    progress = StudyProgress("", "training", 7, waiting, rounds=12, answered={site.name: 6 for site in hostile.sites})
    (folder / "hostile" / PROGRESS).write_bytes(msgspec.json.encode(progress))
    return folder


@pytest.fixture
def page(folder):
    (folder / "hostile" / PROGRESS).touch()  # it is running now
    return open_page(RunsFolder(folder))


def test_runs_and_study_files(folder, page):
    client, _ = page
    text = client.get("/").text
    assert text.count('class="card"') == 5 + 2
    assert text.count("cannot be read") == 3
    assert "is damaged, half written, or another kind of file" in text
    assert "label must be text" in text
    assert client.get("/studies/run").text.count("Open the report") == 1


@pytest.mark.parametrize("path", ["/", "/studies/hostile", "/studies/hostile/report", "/live"])
def test_names_are_text_without_effect_on_direction(folder, page, path):
    client, _ = page
    text = moving(folder, "studies/hostile") if path == "/live" else client.get(path).text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "<img src" not in text
    assert "שלום" in text
    if not path.endswith("report"):
        assert "\u202e" not in text


def test_two_hundred_sites(folder, page):
    client, _ = page
    text = client.get("/studies/hostile").text
    assert text.count('class="site ') == 200
    assert text.count("answered round 6") == 199
    assert "round 7 of at most 12" in text
    first = text.index('class="site ')
    assert text[first:].startswith('class="site is-waiting"'), "who is waited for comes first"
    assert "waiting:" in text
    assert client.get("/studies/hostile/report").status_code == 200


def test_reports_are_rendered_from_data_and_run_no_scripts(folder, page):
    """A file of that name in a folder from elsewhere is never sent."""
    client, _ = page
    file = folder / "run" / "report.html"
    before = file.read_text()
    file.write_text("<script>alert('mine')</script>")
    answer = client.get("/studies/run/report")
    file.write_text(before)
    assert answer.text == before
    assert "script-src" not in answer.headers["content-security-policy"]
    assert answer.headers["content-security-policy"].startswith("default-src 'none';")
    assert client.get("/studies/torn/report").status_code == 404


@pytest.mark.parametrize("path", ["%2e%2e", "../run", "run/..", ".hidden", "run%00", "%2fetc", "run/model.silvan"])
def test_paths_stay_within_the_folder(page, path):
    client, _ = page
    assert client.get(f"/studies/{path}").status_code == 404
    assert client.get(f"/studies/{path}/report").status_code == 404


def test_a_link_in_a_folder_is_not_followed(folder, page):
    client, _ = page
    (folder / "linked").symlink_to(folder / "run")
    try:
        assert client.get("/studies/linked").status_code == 404
    finally:
        (folder / "linked").unlink()


def moving(folder, path):
    return next(events(folder, path))


def events(folder, path):
    """Yields the events of a stream."""
    import asyncio

    from silvan.web.access import Access
    from silvan.web.app import Pages

    pages = Pages(RunsFolder(folder), Access(8100))
    loop = asyncio.new_event_loop()
    stream = pages.stream(path, pages.access.starter)
    try:
        while True:
            part = loop.run_until_complete(anext(stream))
            if part.startswith("data: "):
                yield "\n".join(line.removeprefix("data: ") for line in part.splitlines())
    finally:
        loop.run_until_complete(stream.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_events_begin_with_the_current_state(folder):
    path = folder / "hostile" / PROGRESS
    before = path.read_bytes()
    path.touch()
    stream = events(folder, "studies/hostile")
    assert "round 7 of at most 12" in next(stream)
    path.write_bytes(msgspec.json.encode(StudyProgress("", "training", 8, rounds=12)))
    assert "round 8 of at most 12" in next(stream)
    again = events(folder, "studies/hostile")  # a browser that reconnects starts with the current state
    assert "round 8 of at most 12" in next(again)
    (folder / "hostile" / "run.json").rename(folder / "kept")
    assert "This page no longer exists" in next(again)
    (folder / "kept").rename(folder / "hostile" / "run.json")
    path.write_bytes(before)
    assert "round 7 of at most 12" in next(again)
    stream.close()
    again.close()


def test_fit_records_its_progress(folder):
    found = try_json(folder / "run" / PROGRESS, StudyProgress)
    assert (found.stage, found.final) == ("done", True)
    assert set(found.answered) == {"north", "east", "south"}
    assert list(found.seconds) == ["agreeing on columns", "training", "evaluating", "done"]


def test_a_study_is_started_by_its_file_only(folder, page):
    client, access = page
    for file in ("../study.toml", "none.toml", "/etc/passwd", "0.csv", ""):
        assert "no such study file" in act(client, access, "run", file=file)
    assert "label must be text" in act(client, access, "run", file="bad.toml")
    assert "It was not running" in act(client, access, "cancel", run="run")


def test_starting_a_study_starts_the_command(folder, page, monkeypatch):
    client, access = page
    started = []
    monkeypatch.setattr("silvan.web.run_pages.Background.start", lambda self, words, cwd: started.append((words, cwd)))
    assert "Started: small" in act(client, access, "run", file="study.toml")
    assert started == [(["-u", "-m", "silvan.cli.main", "fit", "study.toml"], folder)]


def test_a_stopped_run_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("silvan.web.run_view._RECENT", 0.0)
    plan = read_study(write_study(tmp_path))
    Run(plan.run_folder).write(Record(name="small"))
    client, _ = open_page(RunsFolder(tmp_path))
    text = client.get("/studies/study").text
    assert 'class="state is-stopped"' in text
    assert 'name="file" value="study.toml"' in text
    assert "Run again" in text


def test_one_run_folder(folder):
    client, _ = open_page(RunsFolder(folder / "run"))
    assert "Open the report" in client.get("/").text
    assert client.get("/studies/run/report").status_code == 200


def test_a_folder_with_nothing_to_show(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="there is nothing to show"):
        RunsFolder(tmp_path)
    write_study(tmp_path)
    assert "Run" in open_page(RunsFolder(tmp_path))[0].get("/").text


def test_every_link_to_the_help_leads_to_one_of_its_sections(page):
    client, _ = page
    text = client.get("/help").text
    sections = set(re.findall(r'<h2 id="(\w+)">', text))
    templates = Path(pages.__file__).parent / "page"
    linked = {name for file in templates.glob("*.jinja") for name in re.findall(r"/help#(\w+)", file.read_text())}
    assert linked <= sections
    assert {"approval", "coordinator", "results"} <= linked
    assert 'href="/help"' in client.get("/").text
    assert 'aria-current="page">Help' in text
    assert "://" not in text.replace("http://testserver", "")
