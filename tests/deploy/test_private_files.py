"""Keys that others can read are refused everywhere, and logs do not grow without limit."""

import logging.handlers
import shutil

import pytest
from helpers.joining import make_hub, serving, write_table

from silvan.deploy.membership import enrol
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service import process
from silvan.deploy.service.process import Background, rotate
from silvan.deploy.service.start_stop import start_coordinator, start_site
from silvan.errors import InputError

pytest.importorskip("nvflare", reason="nvflare is not installed; to test real sites: pip install 'silvan[flare]'")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    hub = make_hub(folder)
    with serving(hub):
        return hub, JoinedSite.join(folder / "north", hub.invite("north"), write_table(folder), None, {})


def started(made, folder, which):
    shutil.copytree(made[0].path, folder / "hub")
    hub = CoordinatorFiles(folder / "hub")
    return hub.private_files()[which], lambda: start_coordinator(hub)


def signing(made, folder):
    shutil.copytree(made[0].path, folder / "hub")
    hub = CoordinatorFiles(folder / "hub")
    return hub.path / "authority" / "root.key", lambda: hub.invite("north")


def started_site(made, folder, name):
    shutil.copytree(made[1].path, folder / "north")
    return folder / "north" / name, lambda: start_site(JoinedSite(folder / "north"))


@pytest.mark.parametrize("mode", [0o640, 0o604])
@pytest.mark.parametrize(
    ("make", "which"),
    [
        *((started, [which]) for which in range(4)),
        (signing, []),
        *((started_site, [name]) for name in ("site.key", "kit/startup/client.key")),
    ],
)
def test_nothing_starts_or_signs_with_a_key_that_others_can_read(made, tmp_path, make, which, mode):
    key, use = make(made, tmp_path, *which)
    key.chmod(mode)
    with pytest.raises(InputError, match=rf"{key.name}: others on this machine can read or change this key"):
        use()


# -- logs


def test_long_logs_are_rotated(tmp_path, monkeypatch):
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


def test_the_service_for_joining_rotates_its_log(made):
    logger = logging.getLogger("silvan.enrol")
    before = list(logger.handlers)
    enrol.write_log(made[0])
    [handler] = [one for one in logger.handlers if one not in before]
    assert isinstance(handler, logging.handlers.RotatingFileHandler)
    assert (handler.maxBytes, handler.backupCount) == (process.MAX_LOG, process.OLD_LOGS)
    assert handler.baseFilename == str(Background(made[0].path, "enrol").log)
    for name in ("silvan.enrol", "silvan.port"):
        logging.getLogger(name).removeHandler(handler)
    handler.close()
