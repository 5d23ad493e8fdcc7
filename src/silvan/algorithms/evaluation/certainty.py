"""What an interval says about a gain, in a word and in a few."""

CERTAINTY = {
    "gained": "better beyond noise",
    "lost": "worse beyond noise",
    "noise": "may be noise",
    "level": "no difference seen",
    "few": "too few rows to tell",
    "unknown": "undefined",
}
"""What is written about the gain of the model that a site should use."""


def certainty(gain: float | None, low: float | None, high: float | None) -> str:
    """Return what an interval says about a gain: one of the keys of ``CERTAINTY``."""
    if gain is None:
        return "unknown"
    if low is None or high is None:
        return "few" if gain else "level"
    if low == high == 0.0:
        return "level"
    return "gained" if low > 0 else "lost" if high < 0 else "noise"
