"""Notifies a site's owner of a study that waits for approval, by a command that the owner sets."""

import logging
import os
import shlex
import subprocess
import threading

from silvan.deploy.membership.site_files import SiteFiles
from silvan.study.study import Study

log = logging.getLogger("silvan.notice")


def notify(member: SiteFiles, study: Study) -> bool:
    """Run the command that ``notify`` in site.toml names, once a study; return whether it was started.

    It is run without a shell, in the background; the study's name, which the coordinator chose, is in its environment.
    """
    command = member.settings.get("notify")
    noted = member.path / "asked" / f"{study.digest}.notified"
    if not command or noted.exists():
        return False
    names = {"SILVAN_SITE": member.name, "SILVAN_STUDY": study.unique_name, "SILVAN_FOLDER": str(member.path)}
    try:
        started = subprocess.Popen(  # noqa: S603  the owner's own command
            shlex.split(command),
            env={**os.environ, **names},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        log.error("the command %r could not be started: %s", command, error.strerror)
        return False
    threading.Thread(target=started.wait, daemon=True).start()  # so that it leaves nothing behind when it ends
    noted.touch()
    return True
