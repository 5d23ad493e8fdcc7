"""The code in FLARE's jobs: the coordinator's side of a study, and a site's. Jobs name these two classes.

Each is imported on first use, so that a site's process does not load what only the coordinator needs. Everything that
must survive is outside the folders of FLARE's jobs: the coordinator's journal and results in the run folder, a site's
store and ledger in the site's. These folders decide how parties know each other: by the keys of silvan's own joining,
or by the certificates of a federation that FLARE provisioned. A job cannot choose.
"""

from importlib import import_module
from typing import Any

_MODULES = {"Coordinator": "coordinator_job", "SiteExecutor": "site_job"}


def __getattr__(name: str) -> Any:
    """Import a class on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
