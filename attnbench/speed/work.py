"""What a call is, in each mode. All that a clock must not see is made here: module, inputs, optimizer.

Shape letters: B batch, N content rows, C width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.choice import Choice
from attnbench.config import ModelConfig
from attnbench.contracts import Classify
from attnbench.model import Model, standalone
from attnbench.randomness import initialise, seeded
from attnbench.speed.clock import Run
from attnbench.speed.flops import plain_attention
from attnbench.speed.result import Setting

_VOCAB, _CLASSES = 256, 2


class Work:
    """One cell, ready to be called; `run()` is what is timed and returns what must be finite."""

    def __init__(self, choice: Choice, setting: Setting, length: int):
        self.choice, self.setting, self.length = choice, setting, length
        self.device = torch.device(setting.device)
        makers = {"fwd": self._forward, "fwdbwd": self._both_ways, "step": self._training_step}
        with seeded(0, "speed"):
            self.run: Run = makers[setting.mode]()

    @property
    def flops_formula(self) -> int | None:
        exact = self.choice.plugin.object.exact
        return plain_attention(self.setting, self.length) if exact else None

    def _mixer(self) -> tuple[Any, Tensor]:
        """The mixer and its input (B, N, C)."""
        s = self.setting
        contract, options = self.choice.plugin.object, self.choice.options
        mixer = standalone(contract, options, dim=s.dim, heads=s.heads, length=self.length).to(self.device)
        x = torch.randn(s.batch, self.length, s.dim).to(self.device)
        self.resident = _bytes([x, *mixer.parameters(), *mixer.buffers()])
        return mixer, x

    def _forward(self) -> Run:
        mixer, x = self._mixer()
        mixer.eval()

        @torch.no_grad()
        def run() -> object:
            with autocast(self.setting):
                return mixer(x)

        return run

    def _both_ways(self) -> Run:
        mixer, x = self._mixer()
        mixer.train()
        leaves = [x.requires_grad_(), *mixer.parameters()]
        ups: list[Tensor] = []

        def run() -> object:
            with autocast(self.setting):
                y = mixer(x)
            if not ups:  # in the first call of the warm-up, when the type of y is known
                ups.append(torch.randn_like(y))
            y.backward(ups[0])
            gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
            for leaf in leaves:
                leaf.grad = None
            return y, *gradients

        return run

    def _training_step(self) -> Run:
        """Of an encoder that sorts inputs into classes: loss, backward pass, clipping, AdamW."""
        s, contract = self.setting, self.choice.plugin.object
        config = ModelConfig(dim=s.dim, heads=s.heads, layers=s.layers, mlp=2 * s.dim, dropout=0.0)
        model = Model(config, contract, self.choice.options, Classify(classes=_CLASSES), _VOCAB, self.length)
        initialise(model, 0)
        model.to(self.device).train()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.numel()], lr=1e-3, fused=True)
        tokens = torch.randint(_VOCAB, (s.batch, self.length)).to(self.device)
        labels = torch.randint(_CLASSES, (s.batch,)).to(self.device)
        weights = _bytes([*model.parameters(), *model.buffers()])
        self.resident = weights + 2 * _bytes(model.parameters()) + _bytes([tokens, labels])  # AdamW holds two of each

        def run() -> object:
            with autocast(s):
                loss = F.cross_entropy(model([(tokens, None)], None), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return run


def autocast(setting: Setting) -> torch.autocast:
    """bf16 as in training: weights and inputs stay float32, products do not."""
    return torch.autocast(setting.device, torch.bfloat16, enabled=setting.dtype == "bf16")


def finite(result: object) -> bool:
    """All numbers of a tensor, or of several."""
    return all(bool(torch.isfinite(x).all()) for x in (result if isinstance(result, tuple) else (result,)))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
