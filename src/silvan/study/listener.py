"""Listeners follow a run: its stage, long steps, and every message sent or received."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from silvan.federation.federation import Federation
from silvan.federation.outgoing import Event
from silvan.study.run_folder import Record
from silvan.util.readable import count_of, format_time

_MEMORY = 40  # number of recent replies for estimating the pace: the first ones include compilation


class TimedStep:
    """A step that may take a while."""

    def __init__(self, text: str, expected: float | None = None) -> None:
        self.text, self.expected = text, expected
        self.done, self.total, self.detail = 0, 0, ""
        self.start = time.monotonic()
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MEMORY)  # amount done, and when

    def follow(self, federation: Federation, rounds: int | None, apart: bool = False) -> None:
        """Count a federation's replies; ``rounds`` is the maximum number of rounds, if known.

        Rounds that are counted ``apart`` have no number of their own, but a separate kind of message.
        """
        before, waves = federation.rounds, dict[tuple[str, int], set[str]]()

        def on(event: Event) -> None:
            if event.what == "progress":
                self.detail = f"{event.kind} at {event.site}, {event.done / event.total:.0%}"
                return
            answered = waves.setdefault((event.kind, event.round), set())
            if event.what != "answer":
                return
            answered.add(event.site)
            now, sites = len(waves) if apart else event.round - before, len(federation.active)
            if rounds == 1:
                self.detail = f"{len(answered)} of {count_of(sites, 'site')}"
            else:
                self.detail = f"round {now}" if rounds is None else f"round {now} of up to {rounds}"
            self.advance((now - 1) * sites + len(answered), (rounds or 0) * sites)

        federation.watch(on)

    def advance(self, done: int, total: int) -> None:
        """Record the progress."""
        self._marks.append((done, time.monotonic()))
        self.done, self.total = min(done, total) if total else done, total

    @property
    def left(self) -> float | None:
        """The estimated seconds left; None if unknown."""
        if self.expected is not None:
            left = self.expected - (time.monotonic() - self.start)
            return left if left > 0.5 else None
        if not self.total or not self._marks or self.done <= self._marks[0][0]:
            return None
        done, since = self._marks[0]
        return (time.monotonic() - since) / (self.done - done) * (self.total - self.done)

    def __str__(self) -> str:
        left, since = self.left, time.monotonic() - self.start
        clock = f"{format_time(since)} so far" if left is None else f"about {format_time(left)} left"
        return " · ".join(filter(None, [self.detail, clock]))


class Listener:
    """Follows a run. This base class shows nothing.

    Stages are "agreeing on columns", "training", "evaluating" or, with repeats, "evaluating, split 1 of 30" and so on.
    """

    def stage(self, name: str, rounds: int = 0) -> None:
        """Handle the start of a stage, which ends with round ``rounds`` at the latest, if that is known."""

    def on(self, event: Event) -> None:
        """Handle an event of the federation."""

    @contextmanager
    def step(self, text: str, expected: float | None = None) -> Iterator[TimedStep]:
        """Follow a step, the body of the ``with`` statement; ``expected`` is its duration in seconds."""
        yield TimedStep(text, expected)

    def agreed(self, record: Record) -> None:
        """Handle the agreement: the record has the schema and the sites."""

    def trained(self, record: Record) -> None:
        """Handle the end of training: the model is written."""
