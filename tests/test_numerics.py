"""CPU settings: in force only where float32 stays float32, for the CPU alone, and given back."""

from __future__ import annotations

import pytest
import torch

from attnbench import numerics
from attnbench.errors import AttnbenchError


def setting() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32


def test_products_are_float32_in_either_mode_and_settings_are_given_back() -> None:
    before = setting()
    for mode in numerics.MODES:
        with numerics.applied(mode) as in_force:
            assert numerics.product_error() < 1e-5
            assert in_force["mode"] == mode and in_force["products"]
        assert setting() == before


@pytest.mark.parametrize(
    ("error", "on_cpu", "precision"), [(1e-7, True, "medium"), (2.4e-3, True, ""), (1e-7, False, "")]
)
def test_faster_kernels_are_used_where_they_are_exact_and_never_for_work_on_cuda(
    monkeypatch: pytest.MonkeyPatch, error: float, on_cpu: bool, precision: str
) -> None:
    usual, _ = setting()
    monkeypatch.setattr(numerics, "product_error", lambda: error)
    with numerics.applied("fast", on_cpu) as in_force:
        assert torch.get_float32_matmul_precision() == (precision or usual)
        assert in_force["products"].startswith(precision or usual)
        assert ("error 2.4e-03" in in_force["products"]) == (error > 1e-5)


def test_settings_are_given_back_after_a_fault() -> None:
    before = setting()
    with pytest.raises(ZeroDivisionError), numerics.applied("fast"):
        raise ZeroDivisionError
    assert setting() == before


def test_another_mode_is_one_line() -> None:
    with pytest.raises(AttnbenchError, match="numerics is fast or stock, got 'slow'"), numerics.applied("slow"):  # type: ignore[arg-type]
        pass
