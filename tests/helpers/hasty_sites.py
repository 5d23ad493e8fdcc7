"""Sites of real federations that see soon that a server was killed."""

import json
from unittest import mock

from silvan.deploy.membership import startup_kit


def write_hasty_site(folder, *given, write=startup_kit.write_site):
    """Write a site's folder, with a second where FLARE waits for half a minute to see that a server was killed."""
    write(folder, *given)
    path = folder / "local" / "resources.json"
    resources = json.loads(path.read_text())
    resources["client"]["maint_msg_timeout"] = 1.0
    path.write_text(json.dumps(resources))


def hasty_sites():
    """Have sites that are made now be hasty."""
    return mock.patch.object(startup_kit, "write_site", write_hasty_site)
