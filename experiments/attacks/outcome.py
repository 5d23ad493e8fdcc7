"""What came of an attack."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What an attack read, beside what it read before it was closed and what the documents allow.

    ``target`` says what it is after, with the number of them where they are counted. ``read`` is what it read just now:
    a number of labels, a measured epsilon, a share of answers turned. ``before`` is what was recorded before the attack
    was closed. ``note`` is what the site answered, if it refused.
    """

    target: str
    before: str
    read: float
    allowed: float = 0.0
    note: str = ""

    @property
    def held(self) -> bool:
        """Whether the attack read no more than the documents allow."""
        return self.read <= self.allowed

    def line(self, name: str) -> str:
        """Return a row of the table of attacks."""
        now = f"{self.read:.4g}" + (f" ({self.note})" if self.note else "")
        return f"| {name} | {self.target} | {self.before} | {now} | {self.allowed:.4g} |"
