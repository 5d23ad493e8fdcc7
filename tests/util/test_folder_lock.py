"""One job of a study at a time."""

import subprocess
import sys

import pytest

from silvan.errors import FederationError
from silvan.util.folder_lock import is_locked, lock_folder


def test_a_lock_has_one_holder(tmp_path):
    assert not is_locked(tmp_path)
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(FederationError, match="another job"), lock_folder(tmp_path, wait=0.05):
            pass
    assert not is_locked(tmp_path)


def test_a_killed_process_releases_the_lock(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from silvan.util.folder_lock import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    assert is_locked(tmp_path)
    process.kill()
    process.wait()
    process.stdout.close()
    assert not is_locked(tmp_path)
