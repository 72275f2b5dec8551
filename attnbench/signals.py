"""Signals that ask a long work to stop at the next good place."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def heard(numbers: Sequence[int], tell: Callable[[int], None]) -> Iterator[None]:
    """`tell` gets these signals, which end nothing meanwhile; not those that are ignored already, as under nohup, and
    none outside the main thread, where signals are not ours to take.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        tell(number)

    try:
        taken = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in taken}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
