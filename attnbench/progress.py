"""Progress on stderr: a live bar on a terminal, a line now and then elsewhere. Data never goes here."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")
_SECONDS_BETWEEN_LINES = 10.0

console = Console(stderr=True, highlight=False)


class Bar:
    """Counts to `total`; `note` is free text behind the count. Use as a context manager."""

    def __init__(self, title: str, total: int, done: int = 0, quiet: bool = False):
        self.title, self.total, self.done, self.quiet = title, total, done, quiet
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._live.add_task(title, total=total, completed=done, note="")
        self._started = self._last_line = time.monotonic()
        self._first = done

    def __enter__(self) -> Bar:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        self._live.update(self._task, completed=self.done, note=note)
        now = time.monotonic()
        if not self.quiet and not console.is_terminal and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            rate = (self.done - self._first) / (now - self._started)
            left = (self.total - self.done) / rate if rate else 0
            print(f"{self.title} {self.done}/{self.total} {note} left {left:.0f} s", file=sys.stderr, flush=True)


def track(items: Sequence[Item], title: str) -> Iterator[Item]:
    """Yields the items under a progress bar."""
    with Bar(title, len(items)) as bar:
        for item in items:
            yield item
            bar.advance()


def say(message: Any) -> None:
    """A line for the person at the terminal, on stderr."""
    console.print(message, markup=False, soft_wrap=True)
