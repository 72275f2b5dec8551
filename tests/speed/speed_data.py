"""Results of measurements that never were, with times as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbench.speed.result import CellResult, Sample, Setting, SpeedResult, Yardstick

ROUNDS = 12


def samples(
    seconds: float, *, noise: float = 0.0, seed: int = 0, rounds: int = ROUNDS, drift: float = 0.0
) -> list[Sample]:
    """`drift`: by which share times grow over the rounds."""
    factors = np.exp(noise * np.random.default_rng(seed).standard_normal(rounds)) * np.linspace(1, 1 + drift, rounds)
    return [Sample(round=i, seconds=seconds * f, wall=seconds * f) for i, f in enumerate(factors)]


def cell(mechanism: str, length: int, found: list[Sample] | None = None, **more: Any) -> CellResult:
    known: dict[str, Any] = {
        "version": 1, "source_sha": "0", "options": {}, "complexity": "", "exact": mechanism == "dense",
        "status": "ok" if found else "oom", "samples": found or [],
    }  # fmt: skip
    return CellResult(mechanism=mechanism, length=length, **{**known, **more})


def grown(mechanism: str, cost: Callable[[int], float], lengths: list[int], **more: Any) -> list[CellResult]:
    return [cell(mechanism, length, samples(cost(length), noise=0.01, seed=length), **more) for length in lengths]


def result(cells: list[CellResult], yard: list[Sample] | None = None, **more: Any) -> SpeedResult:
    known: Mapping[str, Any] = {
        "id": "20261130T120000Z-beef", "setting": Setting(rounds=ROUNDS, threads=1), "interleaved": True,
        "clock": "wall", "machine": {"id": "cafe", "cpu": "x"}, "software": {"torch": "2.13.0"},
        "code": {"commit": "abc", "dirty": False}, "started": "then", "finished": "now", "command": "attnbench speed",
        "yardstick": Yardstick(size=1000, flops=2 * 10**9, samples=yard) if yard else None,
    }  # fmt: skip
    return SpeedResult(cells=cells, **{**known, **more})
