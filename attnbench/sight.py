"""What a sparse mechanism sees: block map, density and reach, as numbers and as a picture.

Density is that of the pattern. Reach is measured: row i reaches row j when the output at i has a gradient at the input
at j, so that it also holds what a mechanism does beside its pattern.

Shape letters: N content rows, R all rows, K blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from attnbench.choice import load_mechanism
from attnbench.config import ModelConfig
from attnbench.contracts import Layout, Mechanism, MixerShape
from attnbench.errors import AttnbenchError, blame
from attnbench.model import mixer_shape
from attnbench.options import field_names, parse
from attnbench.randomness import seeded
from attnbench.settings import divide
from attnbench.sparse import Pattern
from attnbench.sparse.dense import visibility
from attnbench.sparse.mixer import SparseMixer

LAYERS = 3
LONGEST = 1024
_HEAD_DIM = 8
_ROWS_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class _Model:
    heads: PositiveInt = ModelConfig().heads


@dataclass(frozen=True)
class Sight:
    """What one mechanism sees at one length.

    Attributes:
        block_map: (K, K) share of the pairs of two blocks that the pattern of the first layer shows, mean over heads.
        density: of the pattern, by layer: share of content pairs shown, mean over heads.
        reach: (R, R) bool after 1, 2, ... layers, row = query; what a residual passes on included.
    """

    name: str
    layout: Layout
    heads: int
    block_map: np.ndarray
    density: tuple[float, ...]
    reach: tuple[np.ndarray, ...]

    def facts(self) -> dict[str, Any]:
        tokens, s = self.layout.tokens, self.layout.specials
        after = {}
        for depth, reached in enumerate(self.reach, 1):
            content = reached[s:, s:]
            shares = {"content pairs": content.mean(), "content of the row with the least": content.mean(1).min()}
            if s:
                shares |= {"content from special rows": reached[:s, s:].mean()}
            after[f"after {depth} layers" if depth > 1 else "after 1 layer"] = _rounded(shares)
        return {
            "name": self.name,
            "length": self.layout.length,
            "heads": self.heads,
            "special rows": {"globals": tokens.globals, "representatives": self.layout.reps},
            "density": _rounded({f"layer {i}": share for i, share in enumerate(self.density, 1)}),
            "reach": after,
        }


def _rounded(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: round(float(share), 4) for name, share in shares.items()}


def show(name: str, settings: Mapping[str, Any], length: int, to: Path | None) -> dict[str, Any]:
    """Draws the picture and returns the numbers.

    Raises:
        AttnbenchError: no mechanism, an option it does not have, or nothing to draw.
    """
    if to is not None and not to.parent.is_dir():
        raise AttnbenchError(f"{to.parent}: no such folder")
    sight = look(name, settings, length)
    to = Path(f"{sight.name}.png") if to is None else to
    draw(sight, to)
    return sight.facts() | {"picture": str(to)}


def look(name: str, settings: Mapping[str, Any], length: int) -> Sight:
    """What the mechanism `name` sees with these options; `model.heads` is another setting."""
    if not 0 < length <= LONGEST:
        raise AttnbenchError(f"a picture has 1 to {LONGEST} rows of content, got {length}")
    plugin = load_mechanism(name)
    mechanism: Mechanism = plugin.object
    known = {"mechanism": [*field_names(mechanism.options), "preset"], "model": field_names(_Model)}
    chosen = divide(settings, known, {name: "mechanism", plugin.name: "mechanism"})
    options = parse(f"mechanism {plugin.name}", mechanism.options, chosen["mechanism"], mechanism.presets)
    heads = parse("model", _Model, chosen["model"]).heads
    with blame(f"mechanism {plugin.name}"), seeded(0, "sight"):
        shape = mixer_shape(mechanism, options, dim=_HEAD_DIM * heads, heads=heads, length=length)
        mixers = [mechanism.build(replace(shape, layer=layer), options) for layer in range(LAYERS)]
        patterns = [_patterns(mixer, heads, length) for mixer in mixers]
        if not patterns[0]:
            raise AttnbenchError(f"{plugin.name} has no pattern to draw: {_WHO_HAS_ONE}")
        shown = [_shown(pattern, Layout(shape.tokens, length)) for pattern in patterns]
        steps = [_step(mixer, shape, length) for mixer in mixers]
    return Sight(
        name=plugin.name,
        layout=Layout(shape.tokens, length),
        heads=heads,
        block_map=_by_blocks(shown[0], patterns[0][0][1].topology.block_size),
        density=tuple(float(share.mean()) for share in shown),
        reach=_composed(steps),
    )


_WHO_HAS_ONE = "only a mixer with a `pattern`, or `groups` of heads with one each, can be"


def _patterns(mixer: nn.Module, heads: int, length: int) -> list[tuple[int, Pattern]]:
    """Groups of heads and what each sees; empty for a mixer that does not say."""
    if isinstance(mixer, SparseMixer):
        return list(mixer.groups_at(length))
    if hasattr(mixer, "groups"):
        return list(mixer.groups)  # type: ignore[arg-type]
    return [(heads, mixer.pattern)] if hasattr(mixer, "pattern") else []  # type: ignore[list-item]


def _shown(groups: list[tuple[int, Pattern]], layout: Layout) -> Tensor:
    """(N, N) share of heads that show each pair of content rows."""
    shares = []
    for heads, pattern in groups:
        seen = visibility(pattern, None, layout, 1, torch.device("cpu"))[0]
        shares.append(heads * seen[:, layout.specials :, layout.specials :].double().mean(0))
    return torch.stack(shares).sum(0) / sum(heads for heads, _ in groups)


def _by_blocks(share_NN: Tensor, block_size: int) -> np.ndarray:
    """(K, K) means over the pairs of two blocks."""
    block = torch.arange(len(share_NN)) // block_size
    member = torch.nn.functional.one_hot(block).double()
    found: np.ndarray = (member.T @ share_NN @ member / torch.outer(member.sum(0), member.sum(0))).numpy()
    return found


def _step(mixer: nn.Module, shape: MixerShape, length: int) -> Tensor:
    """(R, R) bool: the output of which row depends on the input of which. One example for each output row."""
    rows = Layout(shape.tokens, length).rows
    x_RC, weights = torch.randn(2, rows, shape.dim)
    found = []
    for chunk in torch.arange(rows).split(_ROWS_AT_ONCE):
        x = x_RC.repeat(len(chunk), 1, 1).requires_grad_()
        y = mixer(x, None, Layout(shape.tokens, length))
        outputs = y[torch.arange(len(chunk)), chunk]
        (gradient,) = torch.autograd.grad((outputs * weights[chunk]).sum(), x)
        found.append(gradient.abs().amax(-1) > 0)
    return torch.cat(found)


def _composed(steps: list[Tensor]) -> tuple[np.ndarray, ...]:
    """Reach after each layer, every layer with a residual."""
    reached = torch.eye(len(steps[0]))
    found = []
    for step in steps:
        reached = ((step.float() + torch.eye(len(step))) @ reached > 0).float()
        found.append(reached.bool().numpy())
    return tuple(found)


def draw(sight: Sight, to: Path) -> None:
    """Block map and reach side by side, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * (1 + LAYERS), 5), layout="constrained")
    first, *others = figure.subplots(1, 1 + LAYERS)
    image = first.imshow(sight.block_map, cmap="Blues", vmin=0)
    figure.colorbar(image, ax=first, shrink=0.7)
    first.set(title=f"pattern of layer 1 by blocks\n{sight.density[0]:.1%} of all pairs")
    first.set(xlabel="key block", ylabel="query block")
    for depth, (axes, reached) in enumerate(zip(others, sight.reach, strict=True), 1):
        s = sight.layout.specials
        axes.imshow(_coloured(reached, s))
        share = reached[s:, s:].mean()
        axes.set(title=f"reach after {depth} layer{'s' * (depth > 1)}\n{share:.1%} of all pairs", xlabel="key")
        axes.set(xticks=[], yticks=[])
    others[0].set_ylabel("query")
    special = "; orange: special rows, drawn wider" if sight.layout.specials else ""
    figure.suptitle(f"{sight.name}, {sight.layout.length} rows, {sight.heads} heads{special}")
    figure.savefig(to, format="png", dpi=150)


def _coloured(reached: np.ndarray, specials: int) -> np.ndarray:
    """RGB: content pairs blue, pairs with a special row orange; special rows repeated until they can be seen."""
    kind = np.where(np.arange(len(reached)) < specials, 2, 1)
    colour = np.where(reached, np.maximum(kind[:, None], kind[None]), 0)
    wide = max(1, len(reached) // (30 * specials)) if specials else 1
    repeats = np.where(kind == 2, wide, 1)
    palette = np.array([[1.0, 1.0, 1.0], [0.12, 0.38, 0.66], [0.93, 0.55, 0.14]])
    found: np.ndarray = palette[colour.repeat(repeats, 0).repeat(repeats, 1)]
    return found
