"""Keys that others can read are refused wherever they are used, and logs do not grow for ever."""

import logging.handlers
import shutil

import pytest
from helpers.joining import make_hub, serving, write_table

from silvan.deploy import enrol, process
from silvan.deploy.hub import Hub
from silvan.deploy.member import Member
from silvan.deploy.process import Background, rotate
from silvan.deploy.services import start_hub, start_site
from silvan.errors import InputError

pytest.importorskip("nvflare", reason="nvflare is not installed; to test real sites: pip install '.[flare]'")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    hub = make_hub(folder)
    with serving(hub):
        return hub, Member.join(folder / "north", hub.invite("north"), write_table(folder), None, {})


@pytest.mark.parametrize("which", range(4))
def test_a_coordinator_does_not_start_with_a_key_that_others_can_read(made, tmp_path, which):
    shutil.copytree(made[0].path, tmp_path / "hub")
    hub = Hub(tmp_path / "hub")
    key = hub.private_files()[which]
    key.chmod(0o640)
    with pytest.raises(InputError, match=rf"{key.name}: others on this machine can read or change this key"):
        start_hub(hub)


def test_an_authority_does_not_sign_with_a_key_that_others_can_read(made, tmp_path):
    shutil.copytree(made[0].path, tmp_path / "hub")
    hub = Hub(tmp_path / "hub")
    (hub.path / "authority" / "root.key").chmod(0o604)
    with pytest.raises(InputError, match="others on this machine can read or change this key"):
        hub.invite("north")


@pytest.mark.parametrize("name", ["site.key", "kit/startup/client.key"])
def test_a_site_does_not_start_with_a_key_that_others_can_read(made, tmp_path, name):
    shutil.copytree(made[1].path, tmp_path / "north")
    (tmp_path / "north" / name).chmod(0o644)
    with pytest.raises(InputError, match="others on this machine can read or change this key"):
        start_site(Member(tmp_path / "north"))


# -- logs


def test_long_logs_are_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "MAX_LOG", 10)
    log = tmp_path / "site.log"
    for i in range(6):
        log.write_text(f"{i} is long enough")
        rotate(log)
        assert not log.exists()
    names = [f"site.log.{i}" for i in (1, 2, 3)]
    assert [(tmp_path / name).read_text()[0] for name in names] == ["5", "4", "3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    log.write_text("short")
    rotate(log)
    assert log.read_text() == "short"


def test_the_service_for_joining_rotates_its_log(made, monkeypatch):
    found = {}
    monkeypatch.setattr(logging, "basicConfig", lambda **given: found.update(given))
    monkeypatch.setattr(enrol, "make_server", lambda hub: hub)
    monkeypatch.setattr(Hub, "serve_forever", lambda hub: None, raising=False)
    monkeypatch.setattr("sys.argv", ["enrol", str(made[0].path)])
    enrol.main()
    [handler] = found["handlers"]
    assert isinstance(handler, logging.handlers.RotatingFileHandler)
    assert (handler.maxBytes, handler.backupCount) == (process.MAX_LOG, process.OLD_LOGS)
    assert handler.baseFilename == str(Background(made[0].path, "enrol").log)
    handler.close()
