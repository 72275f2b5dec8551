"""For the tests of a mechanism's author: the conformance kit as a pytest function.

from attnbench.testing import conformance

test_mine = conformance("./mine.py")
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnbench.conformance.runner import CHECKS, Examination
from attnbench.conformance.subject import Subject
from attnbench.errors import Unsupported


def conformance(mechanism: str | Path, **options: Any) -> Callable[[str], None]:
    """A test function with one case for each check; a check that does not apply is skipped with its reason.

    Args:
        mechanism: a name, a `.py` file (relative to the folder pytest runs in) or `pkg.module:Class`.
        options: of the mechanism, and `preset`.
    """

    @functools.cache
    def examination() -> Examination:
        return Examination(Subject.of(str(mechanism), options))

    @pytest.mark.parametrize("check", CHECKS)
    def test(check: str) -> None:
        try:
            outcome = examination().outcome(check)
        except Unsupported as reason:
            pytest.skip(str(reason))
        if outcome.status == "not applicable":
            pytest.skip(outcome.text)
        if outcome.status == "fail":
            pytest.fail(outcome.text, pytrace=False)

    return test
