"""What do masked sums and noise cost?"""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.common import Goal, Report, interleave, ratio, synthetic
from benchmarks.horizontal import BINS, DEPTH, FEATURES, ROWS, TREES, federation, learner
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Envelope, SummedReply, Total, Verb
from silvan.federation.site import Site, answers
from silvan.federation.sums import TrustedSums
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation.counters import mask
from silvan.privacy.aggregation.masked_coordinator import MaskedSums
from silvan.privacy.aggregation.masked_site import MaskedPart, Turn
from silvan.privacy.noise.laplace import Noise

SITES, SPARSE, COUNTERS, LOST = 10, 4, 1_000_000, ("site03", "site08")
SENSITIVITY = 20
"""Of the counters that get noise: so many tables, or features and trees, see a row."""


class Counters(SummedReply, frozen=True, kw_only=True):
    """A site's counters."""

    values: np.ndarray


class Count(Total[Counters], frozen=True, kw_only=True):
    """All counters of a site."""


@answers(Count)
def count(site: Site, request: Count) -> Counters:
    """Return what the site was made with."""
    values: np.ndarray = site.source
    return Counters(values=values)


class Watched(InProcess):
    """Takes the time of every site's replies; two sites fail after they have sent their keys."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Reply in turn, under a stopwatch."""
        for site in messages:
            start = time.process_time()
            answers_ = list(super().deliver({site: messages[site]}, verb, timeout))
            self.seconds[site] += time.process_time() - start
            step = wire.decode(messages[site], Envelope).step
            if site not in LOST or (step is not None and wire.decode(step.body, Turn).what == "key"):
                yield from answers_


def forests(X: np.ndarray, y: np.ndarray) -> dict[str, Federation]:
    """Make three federations of the same sites with different kinds of sums."""
    made = {}
    ways: dict[str, tuple[Any, Any]] = {
        "trusted": (TrustedSums(), None),
        "masked, all pairs": (MaskedSums(), MaskedPart()),
        f"masked, {SPARSE} neighbours": (MaskedSums(SPARSE), MaskedPart(neighbours=SPARSE)),
    }
    for name, (sums, secure_sum) in ways.items():
        fed = made[name] = federation(X, y, SITES)
        fed.sums = sums
        for site in fed.local_sites.values():
            site.secure_sum = secure_sum
    return made


def lossy_sum(most: int | None) -> tuple[float, float]:
    """Sum many counters over sites of which two are lost: the slowest site's seconds, and the coordinator's."""
    rng = np.random.default_rng(0)
    parts = {f"site{i:02}": rng.integers(0, 1000, COUNTERS, np.int32) for i in range(SITES)}
    sites = {name: Site(name, part, secure_sum=MaskedPart(), n_jobs=1) for name, part in parts.items()}
    watched = Watched(sites)
    fed = Federation(watched, sites, MaskedSums(), quorum=3)
    start = time.process_time()
    total = fed.total(Count(), most=most)
    whole = time.process_time() - start
    left = [part for name, part in parts.items() if name not in LOST]
    if sorted(fed.lost) != sorted(LOST) or not np.array_equal(total.values, np.sum(left, axis=0)):
        raise RuntimeError("the sum is not that of the sites that are left")
    return max(watched.seconds.values()), whole - sum(watched.seconds.values())


def stream_speed() -> float:
    """Return the bytes of masks per second, with one thread."""
    words, seeds = np.zeros(1 << 20, np.uint64), [bytes([i]) * 32 for i in range(10)]
    mask(words, seeds, [])
    start = time.process_time()
    mask(words, seeds, [])
    return 10 * words.nbytes / (time.process_time() - start)


def noise_seconds(sharers: int) -> float:
    """Return the seconds for the noise of many counters: all of it at one site, or one of several shares."""
    noise, counters = Noise(SENSITIVITY, 1.0, sharers), np.zeros(COUNTERS, np.int64)
    noise.add(counters[:1000])
    start = time.process_time()
    noise.add(counters)
    return time.process_time() - start


def main() -> None:
    """Measure and report."""
    X, y = synthetic(ROWS)
    feds = forests(X, y)
    for fed in feds.values():
        learner(4).fit(fed)
    hashes = set()

    def fit(fed: Federation) -> float:
        start = time.process_time()
        hashes.add(learner().fit(fed).forest_.hash)
        return time.process_time() - start

    times = interleave({name: lambda fed=fed: fit(fed) for name, fed in feds.items()}, 5)
    if len(hashes) > 1:
        raise RuntimeError("masked sums give another forest")
    report = Report(
        "Masked sums",
        f"A forest as above ({ROWS:,} x 30 rows, {TREES} trees of depth {DEPTH}, {FEATURES} features a node, {BINS} "
        f"bins) over {SITES} sites in one process; processor time as multiples of that with `trusted` sums in the same "
        f"round, median (smallest-largest). Then one sum of {COUNTERS:,} counters over {SITES} sites, two of which are "
        "lost after they gave their keys: processor time of the slowest site, one thread.",
        ["", "time", "sent by a site, MB", "exchanges"],
    )
    for name, fed in feds.items():
        before, started = fed.exchanges, {site: dict(b) for site, b in fed.bytes.items()}
        learner().fit(fed)
        sent = max(b["sent"] - started[site]["sent"] for site, b in fed.bytes.items()) / 1e6
        report.rows.append([name, ratio(times, name, "trusted")[1], f"{sent:.1f}", str(fed.exchanges - before)])
    for name, most in (("masked, all pairs", 0.3), (f"masked, {SPARSE} neighbours", 0.3)):
        goal = f"{name}: what it adds to the forest's time, share"
        report.goals.append(Goal(goal, ratio(times, name, "trusted")[0] - 1, most=most))
    lossy_sum(None)
    for text, bound in (("2^64", None), ("sums below 2^16", 10_000)):
        site, coordinator = (min(column) for column in zip(*(lossy_sum(bound) for _ in range(3)), strict=True))
        report.goals.append(Goal(f"{COUNTERS:,} counters, two lost, {text}: seconds a site", site, most=0.2))
        report.notes.append(f"With {text}, the coordinator takes {coordinator:.2f} s for that.")
    report.notes.append(f"Masks are made and added at {stream_speed() / 1e9:.1f} GB a second on one thread.")
    whole, share = noise_seconds(1), noise_seconds(SITES)
    report.notes.append(
        f"Noise for {COUNTERS:,} counters (discrete Laplace of scale {SENSITIVITY}) takes {whole:.1f} s on one thread "
        f"where a site adds all of it, by opendp, and {share:.1f} s for one of {SITES} shares, by our own sampler."
    )
    report.publish()


if __name__ == "__main__":
    main()
