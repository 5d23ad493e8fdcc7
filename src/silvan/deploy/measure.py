"""How fast the wire is, between the real processes of a study."""

import time

from silvan.federation.transports.chunks import PIECE
from silvan.federation.transports.flare import FlareTransport


def measure(transport: FlareTransport, site: str, rounds: int = 100) -> dict[str, float]:
    """Give the median seconds of a round without work, and the bytes a second to one site."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        transport.ping_all()
        times.append(time.perf_counter() - begun)
    data = bytes(PIECE)
    begun = time.perf_counter()
    for _ in range(8):
        transport.load(site, data)
    return {
        "round": sorted(times)[rounds // 2],
        "bytes a second": 8 * PIECE / (time.perf_counter() - begun),
    }
