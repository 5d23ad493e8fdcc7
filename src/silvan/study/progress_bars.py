"""Shows the progress of steps that take over two seconds, with an estimate of the remaining time.

A terminal shows a bar that disappears when the step is done; other outputs show a line every ten seconds.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from silvan.study.listener import Listener, TimedStep

PATIENCE = 2.0  # seconds before anything is shown
PAUSE = 10.0  # seconds between lines without a terminal


class _Detail(ProgressColumn):
    """The text beside the bar."""

    def render(self, task: Task) -> Text:
        step: TimedStep = task.fields["step"]
        return Text(str(step), style="dim")


class _Bar(BarColumn):
    """A bar that moves back and forth while the total is unknown."""

    def render(self, task: Task) -> Any:
        step: TimedStep = task.fields["step"]
        task.total, task.completed = step.total or None, step.done
        if step.expected:
            task.total = step.expected
            task.completed = min(time.monotonic() - step.start, 0.95 * step.expected)
        return super().render(task)


class ProgressBars(Listener):
    """Shows steps on a console, by default on standard error, so that results can be piped."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console

    @contextmanager
    def step(self, text: str, expected: float | None = None) -> Iterator[TimedStep]:
        """Follow a step, the body of the ``with`` statement, and show its progress if it takes long."""
        step, done = TimedStep(text, expected), threading.Event()
        thread = threading.Thread(target=self._show, args=(step, done), daemon=True, name="silvan-progress")
        thread.start()
        try:
            yield step
        finally:
            done.set()
            thread.join()

    def _show(self, step: TimedStep, done: threading.Event) -> None:
        if done.wait(PATIENCE):
            return
        if not self.console.is_terminal:
            while True:
                self.console.print(f"{step.text} ... {step}".rstrip(), markup=False, highlight=False)
                if done.wait(PAUSE):
                    return
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), _Bar(bar_width=24), _Detail())
        with Bars(*columns, console=self.console, transient=True) as bars:
            bars.add_task(step.text, total=None, step=step)
            done.wait()
