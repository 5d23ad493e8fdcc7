"""Errors that only a site's owner sees: the site's log, and the last error in a file."""

import logging
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from silvan.errors import SilvanError
from silvan.util.files import try_json, write_whole

SITE_LOG, LAST_ERROR = "log.txt", "last_error.json"

MAX_LOG, OLD_LOGS = 10 << 20, 3
"""Maximum bytes of a log, and the number of older logs to keep."""


class LastError(msgspec.Struct, frozen=True):
    """The last error at a site: when, in which study, and what it was."""

    at: str
    study: str
    text: str


def note_error(folder: Path, study: str, error: Exception) -> None:
    """Store an error for the site's owner; a failure of this must not hide the error itself."""
    text = str(error) if isinstance(error, SilvanError | OSError) else f"a bug in silvan ({type(error).__name__})"
    at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        write_whole(folder / LAST_ERROR, msgspec.json.encode(LastError(at, study, text)))
    except OSError as failed:
        logging.getLogger("silvan.site").error("the last error could not be kept: %s", failed.strerror)


def last_error(folder: Path) -> LastError | None:
    """Return the last error at a site; None if there was none or its record is unreadable."""
    return try_json(folder / LAST_ERROR, LastError)


def keep_log(folder: Path) -> None:
    """Write silvan's own log lines to the site's folder only: FLARE may send its logs to the server."""
    logger = logging.getLogger("silvan")
    for handler in list(logger.handlers):
        if isinstance(handler, RotatingFileHandler):
            logger.removeHandler(handler)
            handler.close()
    keeping = RotatingFileHandler(folder / SITE_LOG, maxBytes=MAX_LOG, backupCount=OLD_LOGS, delay=True)
    keeping.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(keeping)
    logger.propagate = False
