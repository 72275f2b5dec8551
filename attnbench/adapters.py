"""A plain `nn.Module` as a mechanism: `--mechanism pkg.module:Class`.

The constructor's parameters are matched by the names in common use; the others with a default become options. Anything
else is refused with the reason. Forward may take a mask (True = a real row) under one of the names below.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from attnbench.contracts import Mechanism, MixerShape
from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    from torch import nn

SHAPE_NAMES = {
    "dim": ("dim", "embed_dim", "d_model", "hidden_size", "dim_in"),
    "heads": ("heads", "num_heads", "n_heads", "nhead"),
    "length": ("length", "seq_len", "max_len", "max_length", "max_seq_len"),
    "head_dim": ("dim_head", "head_dim"),
    "causal": ("causal",),
}
MASK_NAMES = ("mask", "input_mask", "key_mask")
_OPTION_TYPES = (bool, int, float, str)


def wrap_module(cls: Any, reference: str) -> Mechanism:
    """The class as a mechanism.

    Raises:
        AttnbenchError: not an `nn.Module`, or a constructor parameter without default whose name says nothing.
    """
    from torch import nn

    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise AttnbenchError(f"{reference}: not a torch nn.Module class")
    given, options = _split_parameters(cls, reference)
    mask = next((name for name in inspect.signature(cls.forward).parameters if name in MASK_NAMES), None)

    def build(shape: MixerShape, chosen: Any) -> nn.Module:
        arguments = {name: getattr(shape, what) for name, what in given.items()}
        if "batch_first" in inspect.signature(cls).parameters:
            arguments["batch_first"] = True  # rows here are (batch, rows, dim)
        mixer = _adapter(cls(**arguments, **dataclasses.asdict(chosen)), mask)
        _refuse_mixed_batch(mixer, shape, reference)
        return mixer

    return Mechanism(
        summary=f"{cls.__name__}, a plain module",
        paper=reference,
        build=build,
        options=dataclasses.make_dataclass("Options", options, frozen=True, kw_only=True),
        length_bound="length" in given.values(),
        honours_masks=mask is not None,
    )


def _split_parameters(cls: type, reference: str) -> tuple[dict[str, str], list[tuple[str, type, Any]]]:
    """Constructor parameters the shape fills ({parameter: attribute of MixerShape}), and those that are options."""
    meaning = {name: what for what, names in SHAPE_NAMES.items() for name in names}
    given: dict[str, str] = {}
    options: list[tuple[str, type, Any]] = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name == "batch_first":
            continue
        if name in meaning:
            given[name] = meaning[name]
        elif isinstance(parameter.default, _OPTION_TYPES):
            options.append((name, type(parameter.default), dataclasses.field(default=parameter.default)))
        elif parameter.default is parameter.empty:
            raise AttnbenchError(
                f"{reference}: the constructor needs {name!r}, which attnbench cannot fill; write a ten-line file "
                "(attnbench new mechanism NAME)"
            )
    return given, options


def _refuse_mixed_batch(mixer: nn.Module, shape: MixerShape, reference: str) -> None:
    """One example alone and beside another must give the same; one that reads (rows, batch, dim) mixes them."""
    import torch

    training = mixer.training
    x = torch.randn(2, 2, shape.dim, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mixer.eval()
        alone, together = mixer(x[:1]), mixer(x)[:1]
        mixer.train(training)
    if not torch.allclose(alone, together, rtol=1e-3, atol=1e-4):
        raise AttnbenchError(
            f"{reference}: an example's output depends on its batch-mates; it must read (batch, rows, dim)"
        )


def _adapter(module: nn.Module, mask_name: str | None) -> nn.Module:
    from torch import Tensor, nn

    class PlainModule(nn.Module):
        implementation = "module"

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor, mask: Tensor | None = None, layout: Any = None) -> Tensor:
            y = self.module(x) if mask is None or mask_name is None else self.module(x, **{mask_name: mask})
            if not isinstance(y, Tensor) or y.shape != x.shape:
                found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
                raise AttnbenchError(
                    f"{type(self.module).__name__} returned {found}, expected a tensor {tuple(x.shape)}"
                )
            return y

    return PlainModule()
