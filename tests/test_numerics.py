"""CPU settings: in force only where float32 stays float32, for the CPU alone, and given back."""

from __future__ import annotations

import pytest
import torch

from attnbench import numerics
from attnbench.errors import AttnbenchError


def setting() -> tuple[str, str, str, bool]:
    cpu = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    cuda = torch.backends.cuda.matmul
    return torch.get_float32_matmul_precision(), cpu, cuda.fp32_precision, cuda.allow_tf32


def test_products_are_float32_in_either_mode_and_settings_are_given_back() -> None:
    before = setting()
    for mode in numerics.MODES:
        with numerics.applied(mode) as in_force:
            assert numerics.product_error() < 1e-5
            assert in_force["mode"] == mode and in_force["products"]
        assert setting() == before


@pytest.mark.parametrize(("error", "cpu"), [(1e-7, "bf16"), (2.4e-3, "none")])
def test_faster_kernels_are_used_where_they_are_exact_and_never_on_cuda(
    monkeypatch: pytest.MonkeyPatch, error: float, cpu: str
) -> None:
    usual, before, *cuda = setting()
    assert before == "none"
    monkeypatch.setattr(numerics, "product_error", lambda: error)
    with numerics.applied("fast") as in_force:
        assert setting() == (usual, cpu, *cuda)
        assert in_force["products"] == ("medium" if cpu == "bf16" else f"{usual} (medium: error 2.4e-03)")


def test_settings_are_given_back_after_a_fault() -> None:
    before = setting()
    with pytest.raises(ZeroDivisionError), numerics.applied("fast"):
        raise ZeroDivisionError
    assert setting() == before


def test_another_mode_is_one_line() -> None:
    with pytest.raises(AttnbenchError, match="numerics is fast or stock, got 'slow'"), numerics.applied("slow"):  # type: ignore[arg-type]
        pass
