"""Shows the progress of steps that take over two seconds, with an estimate of the time left.

In a terminal as a bar that disappears when the step is done; elsewhere as a line every ten seconds.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from silvan.federation.federation import Federation
from silvan.federation.question import Event
from silvan.util.readable import count_of, format_time

PATIENCE = 2.0
"""Seconds before anything is shown."""

_MEMORY = 40
"""The last answers, by which the pace is estimated: the first ones include compilation."""

PAUSE = 10.0
"""Seconds between lines where there is no terminal."""


class Step:
    """One step that takes a while."""

    def __init__(self, text: str, expected: float | None = None) -> None:
        self.text, self.expected = text, expected
        self.done, self.total, self.detail = 0, 0, ""
        self.start = time.monotonic()
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MEMORY)  # how much was done, and when

    def follow(self, federation: Federation, rounds: int | None, apart: bool = False) -> None:
        """Count a federation's answers; ``rounds`` is how many there will be at most, if that is known.

        Rounds that are counted apart do not show in an event's number; each has its own kind of message.
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
        """Record how much is done."""
        self._marks.append((done, time.monotonic()))
        self.done, self.total = min(done, total) if total else done, total

    @property
    def left(self) -> float | None:
        """The estimated seconds left; None if there is no estimate yet."""
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


class _Detail(ProgressColumn):
    """The text beside the bar."""

    def render(self, task: Task) -> Text:
        step: Step = task.fields["step"]
        return Text(str(step), style="dim")


class _Bar(BarColumn):
    """A bar that moves to and fro while the total is not known."""

    def render(self, task: Task) -> Any:
        step: Step = task.fields["step"]
        task.total, task.completed = step.total or None, step.done
        if step.expected:
            task.total = step.expected
            task.completed = min(time.monotonic() - step.start, 0.95 * step.expected)
        return super().render(task)


class Progress:
    """Shows steps on a console, by default on standard error, so that results can be piped."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console

    @contextmanager
    def step(self, text: str, expected: float | None = None) -> Iterator[Step]:
        """Run one step, the body of the ``with`` statement; show its progress if it takes long."""
        step, done = Step(text, expected), threading.Event()
        thread = threading.Thread(target=self._show, args=(step, done), daemon=True, name="silvan-progress")
        thread.start()
        try:
            yield step
        finally:
            done.set()
            thread.join()

    def _show(self, step: Step, done: threading.Event) -> None:
        if done.wait(PATIENCE):
            return
        if not self.console.is_terminal:
            while True:
                self.console.print(f"{step.text} ... {step}".rstrip(), markup=False, highlight=False)
                if done.wait(PAUSE):
                    return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _Bar(bar_width=24),
            _Detail(),
        )
        with Bars(*columns, console=self.console, transient=True) as bars:
            bars.add_task(step.text, total=None, step=step)
            done.wait()
