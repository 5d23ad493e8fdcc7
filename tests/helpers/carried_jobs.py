"""Studies between machines with real folders and the real job classes; only FLARE is left out."""

from collections import Counter
from importlib.metadata import version
from types import SimpleNamespace
from unittest import mock

from silvan.deploy.jobs import coordinator_job
from silvan.deploy.jobs.site_job import open_site_of
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.errors import SiteError
from silvan.federation import wire
from silvan.federation.flare import AbortedError
from silvan.federation.signed import SignedMessage
from silvan.federation.transport import Transport
from silvan.study.run_folder import Run


class Carrier(Transport):
    """Carries messages to sites that are created as a job creates them.

    After ``stop_after`` messages the machine is switched off; sites in ``away`` do not reply.
    """

    def __init__(self, members, plan, stop_after=None, away=()):
        self.sites, self.spent, self.carried, self.stop_after, self.away = {}, Counter(), [], stop_after, away
        for name, member in members.items():
            own = JoinedSite(member.path)
            own.note_study(plan)
            self.sites[name] = open_site_of(own, plan, own.roster())

    def deliver(self, messages, verb, timeout):
        for name, data in messages.items():
            if self.stop_after is not None and len(self.carried) > self.stop_after:
                raise AbortedError("the machine was switched off")
            if name in self.away:
                yield name, SiteError(name, "is not there")
                continue
            answer = self.sites[name].receive(data, verb)
            self.carried += [wire.decode(one, SignedMessage).body for one in (data, answer)]
            yield name, answer


def run_job(hub, members, plan, stop_after=None, away=()):
    """Runs a study as the server's job does; returns the run and all messages."""
    carrier = Carrier(members, plan, stop_after, away)
    with (
        mock.patch.object(coordinator_job, "remove_old_jobs", return_value=[]),
        mock.patch.object(coordinator_job, "FlareTransport", return_value=carrier),
    ):
        job = coordinator_job.Coordinator(plan.text, list(members), {}, version("silvan"))
        job.work(SimpleNamespace(root=hub.path / "server", job="job"))
    return Run(hub.path / "runs" / plan.folder), carrier
