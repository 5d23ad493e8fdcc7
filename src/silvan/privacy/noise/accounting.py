"""Privacy accounting: every noisy request, its cost, and how costs add up.

The unit is one row added or removed. A row is in one cell of a histogram, so all cells of a histogram (bins, classes,
nodes of one tree's level) together cost as much as one: parallel composition. Histograms that all contain the row
(columns, tables, levels, trees, rounds) cost the sum: sequential composition. Sites have different rows, so one site's
reply costs the rows of others nothing.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from silvan.privacy.noise.laplace import Noise

UNIT = "one row of those trained on, added or removed"


@dataclass(frozen=True)
class NoisyQuery:
    """One request: its cost, and its noise.

    ``times`` of its histograms contain a row, one after the other; together a row changes them by ``sensitivity``.
    """

    what: str
    epsilon: float
    times: int
    sensitivity: int
    scale: float
    alpha: float

    @classmethod
    def of(cls, what: str, noise: Noise, times: int) -> "NoisyQuery":
        """Describe a request with such noise."""
        epsilon = rounded_down(Fraction(noise.epsilon))
        return cls(what, epsilon, times, noise.sensitivity, float(noise.scale), noise.alpha)


@dataclass(frozen=True)
class Privacy:
    """The privacy accounting of a model.

    Parameters
    ----------
    epsilon
        The requested limit; ``total`` is at most that.
    queries
        Every noisy request.
    seen_by
        Against whom the guarantee holds.
    public
        What is assumed to be public.
    outside
        What is, or may be, disclosed without noise.
    """

    epsilon: float
    queries: tuple[NoisyQuery, ...]
    seen_by: str
    public: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    unit: str = UNIT
    composition: str = "sequential over questions, columns, tables, levels, trees; parallel over cells of a histogram"
    replaced: str = "twice that for one row replaced by another"

    @property
    def total(self) -> float:
        """Epsilon of all requests together."""
        exact = sum((Fraction(query.epsilon) for query in self.queries), Fraction(0))
        return rounded_up(exact)

    def __str__(self) -> str:
        lines = [f"epsilon {self.total:.6g} for {self.unit}" + (f" ({self.replaced})" if self.replaced else "")]
        lines += [f"composition: {self.composition}", f"holds against: {self.seen_by}", ""]
        table = [("question", "epsilon", "histograms", "epsilon each", "sensitivity", "noise scale", "alpha")]
        for q in self.queries:
            each = q.epsilon / q.times
            numbers = (f"{q.epsilon:.4g}", str(q.times), f"{each:.4g}", str(q.sensitivity), f"{q.scale:.4g}")
            table.append((q.what, *numbers, f"{q.alpha:.4g}"))
        table.append(("total", f"{self.total:.6g}", "", "", "", "", ""))
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        for row in table:
            first, *rest = (text.rjust(width) for text, width in zip(row, widths, strict=True))
            lines.append("  ".join([first.strip().ljust(widths[0]), *rest]).rstrip())
        lines += [""] * bool(self.public or self.outside)
        lines += [f"public: {text}" for text in self.public]
        lines += [f"outside the guarantee: {text}" for text in self.outside]
        return "\n".join(lines)


def rounded_down(exact: Fraction) -> float:
    """Return the largest float that is at most a number."""
    near = float(exact)
    return near if Fraction(near) <= exact else math.nextafter(near, -math.inf)


def rounded_up(exact: Fraction) -> float:
    """Return the smallest float that is at least a number."""
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)


class EpsilonSplit:
    """An epsilon to be split: the parts never add up to more, not even by rounding."""

    def __init__(self, epsilon: float) -> None:
        self.whole = self.left = Fraction(epsilon)

    def take(self, share: Fraction) -> float:
        """Take a share of the whole, or what is left if that is less."""
        part = rounded_down(min(self.whole * share, self.left))
        self.left -= Fraction(part)
        return part

    def rest(self) -> float:
        """Take everything that is left."""
        return self.take(Fraction(1))
