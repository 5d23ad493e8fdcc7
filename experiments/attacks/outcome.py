"""The outcome of an attack."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What an attack learned, beside what it learned before it was closed and what the documents allow.

    ``target`` is its aim, with the number of targets where they are counted. ``read`` is its result now: a number of
    labels, a measured epsilon, a share of flipped predictions. ``before`` is the result recorded before the attack
    was closed. ``note`` is the site's error, if it refused.
    """

    target: str
    before: str
    read: float
    allowed: float = 0.0
    note: str = ""

    @property
    def held(self) -> bool:
        """Whether the attack learned no more than the documents allow."""
        return self.read <= self.allowed

    def line(self, name: str) -> str:
        """Return a row of the table of attacks."""
        now = f"{self.read:.4g}" + (f" ({self.note})" if self.note else "")
        return f"| {name} | {self.target} | {self.before} | {now} | {self.allowed:.4g} |"
