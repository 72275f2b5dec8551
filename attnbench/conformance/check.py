"""What a check is, what comes out of it, and the words in which a check says that a promise is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from attnbench.conformance.subject import Subject

#: Two computations of the same thing in float64 differ by rounding only; loose enough for a float32 step inside.
SAME = 1e-6


@dataclass(frozen=True, kw_only=True)
class Case:
    """The size of one input: rows are content rows, and `mask` names which of them are real (see `subject.MASKS`)."""

    length: int
    batch: int = 3
    dim: int = 16
    heads: int = 2
    mask: str = "none"

    @property
    def size(self) -> int:
        return self.batch * self.length * self.dim

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())


class Mismatch(Exception):
    """A promise is broken: what was expected, and what came."""

    def __init__(self, expected: str, found: str):
        super().__init__(f"expected {expected}; {found}")
        self.expected, self.found = expected, found


class NotApplicable(Exception):
    """The mechanism does not promise this, or it cannot be seen from outside; the text says why."""


@dataclass(frozen=True)
class Check:
    """A property every mechanism owes, as far as it declares to.

    `function` takes the subject, and a case where `cases` names some; its docstring is its documentation. It returns
    what it measured, or nothing.

    Attributes:
        needs: checks without which this one would only repeat a failure; it is left out where one of them failed.
        cases: the inputs to try, from the subject.
    """

    function: Callable[..., str | None]
    needs: tuple[str, ...] = ()
    cases: Callable[[Subject], Sequence[Case]] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def doc(self) -> str:
        return " ".join((self.function.__doc__ or "").split())


Status = Literal["pass", "fail", "not applicable"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`detail` is what was measured, or why the check does not apply; a failure has `expected`, `found` and, where
    one was looked for, the smallest `case` that fails.
    """

    check: str
    status: Status
    detail: str = ""
    expected: str = ""
    found: str = ""
    case: Case | None = None
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All but name and status, on one line."""
        if self.status != "fail":
            return self.detail
        where = f"; smallest input found: {self.case}" if self.case else ""
        return f"expected {self.expected}; {self.found}{where}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def applies(condition: bool, otherwise: str) -> None:
    if not condition:
        raise NotApplicable(otherwise)


def agree(found: Tensor, expected: Tensor, promise: str, circumstance: str, tolerance: float = SAME) -> None:
    """Both are equal up to `tolerance` of the largest expected value (at least 1); NaN equals nothing.

    Raises:
        Mismatch: with the largest difference.
    """
    if found.shape != expected.shape:
        raise Mismatch(promise, f"{circumstance} the shape is {tuple(found.shape)}, not {tuple(expected.shape)}")
    if not expected.numel():
        return
    scale = expected.abs().max().item()
    gap = (found - expected).abs().max().item()
    if not gap <= tolerance * max(1.0, scale):
        raise Mismatch(promise, f"{circumstance} the largest difference is {gap:.2g} on a scale of {scale:.2g}")


def finite(tensor: Tensor, what: str, promise: str, circumstance: str) -> None:
    if not bool(tensor.isfinite().all()):
        bad = (~tensor.isfinite()).sum().item()
        raise Mismatch(promise, f"{circumstance} {bad} of {tensor.numel()} numbers of {what} are not finite")
