"""How many examples hypothesis tries."""

from hypothesis import settings


def examples(n: int) -> settings:
    """The number of examples for a slow test, increased like that of other tests in ``make explore``."""
    return settings(max_examples=max(1, n * settings.default.max_examples // 100))
