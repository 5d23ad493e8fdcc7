"""Sites of real federations that soon notice that a server was killed."""

import json
from unittest import mock

from silvan.deploy.membership import startup_kit


def write_hasty_site(folder, *given, write=startup_kit.write_site):
    """Writes a site's folder in which FLARE checks for a killed server after a second, not half a minute."""
    write(folder, *given)
    path = folder / "local" / "resources.json"
    resources = json.loads(path.read_text())
    resources["client"]["maint_msg_timeout"] = 1.0
    path.write_text(json.dumps(resources))


def hasty_sites():
    """Makes all new sites hasty."""
    return mock.patch.object(startup_kit, "write_site", write_hasty_site)
