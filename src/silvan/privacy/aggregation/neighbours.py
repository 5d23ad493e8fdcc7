"""Which sites share masks: all with all others, or each with its neighbours on a circle.

A coordinator that knows the masks of some sites and subtracts those of the sites that were lost sees one sum for
each connected piece of the rest; as long as the rest is connected, it sees one sum. On a circle where
every site shares masks with the k/2 next to it on either side, the rest falls apart only where two runs of k/2
neighbours are gone. With m gone this is impossible if k > m. Otherwise, with random positions on the circle, the
probability is at most the number of pairs of runs times the probability that k given positions are among m of n
(after Bell et al. 2020, whose graphs these are).
"""

from functools import lru_cache
from math import comb

from silvan.federation.store import digest

SECURITY = 120
"""The rest is disconnected with a probability of at most one in 2^120.

The places on the circle follow from the study's name, which the coordinator chooses: with 2^80 names tried, one that
puts sites which collude around another is still found with a probability of at most 2^-40.
"""

FEW = 50
"""Up to this number, sites share masks with all others: there is little to save."""


def disconnection_bound(n: int, gone: int, k: int) -> float:
    """Bound the probability that n sites with k neighbours each are disconnected when so many are gone at random."""
    if k > gone or k >= n - 1:
        return 0.0
    return min(1.0, comb(n, 2) * comb(n - k, gone - k) / comb(n, gone))


@lru_cache
def enough_neighbours(n: int) -> int:
    """Return how many neighbours each of n sites needs when a third of them is lost and another third colludes."""
    gone = 2 * (n // 3)
    enough = (k for k in range(2, n - 1, 2) if n > FEW and disconnection_bound(n, gone, k) <= 2.0**-SECURITY)
    return next(enough, n - 1)


@lru_cache(maxsize=8)
def neighbours(circle: str, keys: tuple[bytes, ...], k: int) -> list[list[int]]:
    """List the positions of each site's neighbours; a digest of the sites' keys determines the order on the circle."""
    n = len(keys)
    if k >= n - 1:
        return [[j for j in range(n) if j != i] for i in range(n)]
    order = sorted(range(n), key=lambda i: digest(circle.encode() + b"\0" + keys[i]))
    near: list[list[int]] = [[] for _ in range(n)]
    for at, place in enumerate(order):
        near[place] = sorted(order[(at + step) % n] for step in range(-(k // 2), k // 2 + 1) if step)
    return near
