"""Mechanisms as files, sound and not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = """\
import os, sys, time
import torch
from attnbench import Mechanism
from attnbench.layers import QKVMixer, attention


class Mixer(QKVMixer):
    def attend(self, q, k, v, mask):
        {body}
        return attention(q, k, v)


{more}
MECHANISM = Mechanism(summary="", paper="", build=lambda shape, options: Mixer(shape), {declared})
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., str]:
    """Writes softmax attention as NAME.py, with `body` in front of it; returns its path."""

    def write(name: str, body: str = "pass", declared: str = "exact=True, complexity='n^2'", more: str = "") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD.format(body=body, declared=declared, more=more))
        return str(path)

    return write
