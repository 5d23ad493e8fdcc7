"""How many examples hypothesis tries."""

from hypothesis import settings


def examples(n: int) -> settings:
    """Try so many examples of a test where each takes long, and as much more as other tests in ``make explore``."""
    return settings(max_examples=max(1, n * settings.default.max_examples // 100))
