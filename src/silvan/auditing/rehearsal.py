"""A federation made again to be attacked: the same tables and rules, but nothing of it is kept in anybody's books."""

from collections.abc import Callable, Iterator
from typing import Any

from silvan.federate.by_rows import make_sums
from silvan.federation.journal import Journal
from silvan.federation.message import Verb
from silvan.federation.site import Site
from silvan.federation.transports.in_process import LocalFederation
from silvan.privacy.gate.gate import Gate, policy_of
from silvan.privacy.noise.budget import Budget

Twist = Callable[[str, bytes], bytes]


class Rehearsal(LocalFederation):
    """Keeps what sites send; ``twist`` may put something else in its place."""

    twist: Twist | None = None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.sent: list[tuple[str, bytes]] = []

    def deliver(self, messages: dict[str, bytes], verb: Verb) -> Iterator[tuple[str, bytes | Exception]]:
        """Let each site answer, and listen."""
        for site, data in super().deliver(messages, verb):
            if isinstance(data, bytes):
                data = data if self.twist is None else self.twist(site, data)
                self.sent.append((site, data))
            yield site, data


def rehearse(federation: LocalFederation, sums: str | None = None) -> Rehearsal:
    """Make a federation again, with stores, books and ledgers of its own; ``sums`` in place of its way of summing."""
    adding, cover = make_sums(sums or federation.sums.name)
    members = {}
    for name in federation.active:
        site = federation.site(name)
        policy = policy_of(site)
        members[name] = Site(
            name,
            site.source,
            label=site.label,
            exclude=site.exclude,
            test=site.test,
            split_seed=site.split_seed,
            sampling_key=site.sampling_key,
            outbox=Gate(policy, Budget(policy.epsilon)),
            cover=cover,
            n_jobs=site.n_jobs,
            forest=site.forest,
            memory=site.memory,
            folder=site.folder,
        )
    again = Rehearsal(members, adding, journal=Journal(None), study="rehearsal of an audit")
    again.schema, again.rows = federation.schema, {name: federation.site(name).n_train for name in members}
    again.agreed = federation.agreed
    return again
