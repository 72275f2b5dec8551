"""What a cell's process finds out before its first sample, and what ends it. Most of it here in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnbench.choice import choose_mechanism
from attnbench.speed import clock, flops, footprint, selfcheck, worker
from attnbench.speed.result import Setting
from attnbench.speed.work import Work

Write = Callable[..., str]


def setting(**changed: Any) -> Setting:
    return Setting(**{"dim": 16, "heads": 2, "warmup": 2, "rounds": 2, **changed})


def ready(mechanism: str, length: int = 64, **changed: Any) -> dict[str, Any]:
    request = {"mechanism": mechanism, "values": {}, "length": length}
    return worker._guarded(lambda: worker._ready(request, setting(**changed)))


@pytest.mark.parametrize("mode", ["fwd", "fwdbwd", "step"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_sound_cell_is_checked_counted_and_gives_samples(mode: str, dtype: str, plugin: Write) -> None:
    found = ready(plugin("mine"), mode=mode, dtype=dtype)
    assert found["status"] == "ok", found
    assert found["check"]["reference"] == "softmax attention written out in float64"
    assert found["check"]["error"] <= found["check"]["allowed"]
    assert (found["check"]["gradient_error"] is None) == (mode == "fwd")
    assert found["flops"] > 0 and found["resident_bytes"] > 0 and found["calls"] >= 1
    sample = found["turn"]()["sample"]
    assert sample["seconds"] > 0 and sample["wall"] > 0


WRONG = {
    "scale": "return attention(q * 1.01, k, v)",
    "a row": "v = v.clone(); v[:, :, 5] = 0",
    "gradient": "k = k.detach()",
    "nan": "return attention(q, k, v) * float('nan')",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_computes_something_wrong_is_not_timed(name: str, plugin: Write) -> None:
    found = ready(plugin("mine", WRONG[name]))
    assert found["status"] == "wrong" and "turn" not in found
    assert found["reason"].startswith("relative error ") and found["reason"].endswith("so it was not timed")


def test_a_sparse_path_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of a mechanism with a path is the same pattern over all pairs, not the path itself."""
    from attnbench.sparse import PATHS

    sound = ready("local", length=256)
    assert (sound["status"], sound["check"]["reference"]) == ("ok", "all pairs with its pattern, in float64")
    run = PATHS["gather"].run
    broken = lambda q, k, v, *rest: run(q, k, 1.001 * v, *rest)  # noqa: E731
    monkeypatch.setitem(PATHS, "gather", type(PATHS["gather"])("gather", broken, "reference"))
    assert ready("local", length=256)["status"] == "wrong"


def test_what_is_right_in_the_small_and_not_finite_at_its_length_is_not_timed(plugin: Write) -> None:
    found = ready(plugin("mine", "v = v / 0 if q.shape[2] > 200 else v"), length=256)
    assert found["status"] == "wrong" and "not finite" in found["reason"]


def test_a_dense_emulation_is_named_and_gets_no_score(plugin: Write) -> None:
    found = ready(plugin("mine", more="Mixer.implementation = 'dense emulation'"))
    assert (found["status"], found["implementation"]) == ("emulation", "dense emulation")
    assert "turn" not in found


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("if q.shape[2] > 200: raise torch.OutOfMemoryError('CUDA out of memory')", "oom", "OutOfMemoryError"),
        ("if q.shape[2] > 200: raise MemoryError", "oom", "MemoryError"),
        ("if q.shape[2] > 200: torch.empty(1 << 60, dtype=torch.uint8)", "oom", "allocate"),
        ("from attnbench.errors import Unsupported; raise Unsupported('not today')", "unsupported", "not today"),
        ("raise KeyError('x')", "failed", "KeyError: 'x' (mine.py:9)"),
    ],
    ids=["of the GPU", "of Python", "of the CPU", "unsupported", "a fault"],
)
def test_how_a_cell_can_end(body: str, status: str, words: str, plugin: Write) -> None:
    found = ready(plugin("mine", body), length=256)
    assert found["status"] == status
    assert words in found["reason"] and "\n" not in found["reason"]


@pytest.mark.parametrize("length", [64, 256])
@pytest.mark.parametrize(("dim", "heads", "batch"), [(16, 2, 1), (32, 1, 3)])
def test_flops_of_dense_are_those_of_the_closed_form(length: int, dim: int, heads: int, batch: int) -> None:
    """8 B N C^2 for the projections, 4 B N^2 C for the two products (B H N^2 D each, twice): no mask, no row left out.

    A backward pass takes twice of both, and the fused kernel computes the scores, an eighth of all, once more.
    """
    dense = choose_mechanism("dense", {})
    projections, products = 8 * batch * length * dim**2, 4 * batch * length**2 * dim
    forward = Work(dense, setting(dim=dim, heads=heads, batch=batch, mode="fwd"), length)
    assert flops.counted(forward.run) == forward.flops_formula == projections + products
    both = Work(dense, setting(dim=dim, heads=heads, batch=batch), length)
    both.run()
    assert both.flops_formula == 3 * (projections + products)
    assert flops.counted(both.run) == both.flops_formula + products // 2


def test_flops_of_a_step_are_those_of_its_layers() -> None:
    """Three times: 2 layers of attention and a feed-forward part of twice the width, and the head."""
    s = setting(mode="step", batch=2)
    length, dim = 64, s.dim
    layer = 8 * length * dim**2 + 4 * length**2 * dim + 8 * length * dim**2
    found = flops.counted(Work(choose_mechanism("dense", {}), s, length).run)
    again = 2 * length**2 * dim  # the scores
    assert found == pytest.approx(s.batch * s.layers * (3 * layer + again), rel=0.002)


def test_operations_are_counted_at_the_length_asked_for_and_windows_save_them() -> None:
    local = choose_mechanism("local", {"block_size": "16"})
    counts = [flops.counted(Work(local, setting(mode="fwd"), n).run) for n in (256, 512, 1024)]
    assert counts[2] / counts[1] == pytest.approx(2, rel=0.02) == counts[1] / counts[0]


@pytest.mark.parametrize(("dtype", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_precision_asked_for_is_what_runs(dtype: str, expected: torch.dtype) -> None:
    result = Work(choose_mechanism("dense", {}), setting(dtype=dtype, mode="fwd"), 32).run()
    assert isinstance(result, torch.Tensor) and result.dtype == expected


def test_inputs_are_made_before_the_clock_and_every_call_is_warmed_up(
    plugin: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drawn or built inside a sample; two calls come before any, and one more opens a turn."""
    events: list[str] = []
    run, timed, build = Work._forward, clock.timed, Work.__init__

    def noted(self: Work) -> Any:
        inner = run(self)
        return lambda: (events.append("call"), inner())[1]

    def sample(*arguments: Any) -> Any:
        events.append("clock")
        state = torch.get_rng_state()
        taken = timed(*arguments)
        assert torch.equal(state, torch.get_rng_state())
        events.append("stop")
        return taken

    monkeypatch.setattr(Work, "_forward", noted)
    monkeypatch.setattr(Work, "__init__", lambda self, *a: (events.append("build"), build(self, *a))[1])
    monkeypatch.setattr(clock, "timed", sample)
    found = ready(plugin("mine"), mode="fwd", warmup=2)
    before = list(events)
    assert before[0] == "build" and before.count("call") == 2 + 1 + 1  # warm-up, FLOPs, memory
    assert "clock" not in before
    found["turn"]()
    assert events[len(before) :] == ["call", "clock", *["call"] * found["calls"], "stop"]


def test_a_gpu_has_finished_before_the_clock_starts_and_before_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self) -> None:
            events.append("record")

        def elapsed_time(self, end: Event) -> float:
            events.append("read")
            return 40.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    taken = clock.timed(lambda: events.append("call"), 2, "cuda", 1)
    assert events == ["wait", "record", "call", "call", "record", "wait", "read"]
    assert taken.seconds == 0.04


def test_the_peak_of_a_gpu_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"now": 100, "peak": 10_000}  # of a longer input before

    def run() -> None:
        state["peak"] = max(state["peak"], state["now"] + 50)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: state["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: state["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: state.update(peak=state["now"]))
    assert footprint.peak_of(run, "cuda") == 50


@pytest.mark.skipif(not footprint._MARKS.exists(), reason="only Linux lets the peak begin anew")
def test_a_peak_is_that_of_the_call_and_not_of_one_before() -> None:
    """64 MiB, then 8: each net of what is held already, such as 32 MiB of input. In a process of its own, as cells
    are: what other tests have left free in this one would be used again.
    """
    code = """
import json, torch
from attnbench.speed import footprint

held = torch.ones(32 << 18)

def use(mib):
    def run():
        torch.ones(mib << 18).sum()

    run()
    return footprint.peak_of(run, "cpu") / 2**20

print(json.dumps([use(64), use(8), held.sum().item()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    large, small, held = json.loads(done.stdout)
    assert large == pytest.approx(64, abs=4)
    assert small == pytest.approx(8, abs=4)
    assert held == 32 << 18


def test_selective_mechanisms_may_choose_otherwise_in_bfloat16_but_not_in_float32() -> None:
    for name in ("moba", "moba_bidirectional", "nsa", "performer"):
        for mode in ("fwd", "fwdbwd"):
            found = selfcheck.check(choose_mechanism(name, {}), setting(dim=64, dtype="bf16", mode=mode))
            assert found.allowed < 0.1


def test_a_path_that_takes_whole_blocks_is_checked_with_whole_blocks() -> None:
    pytest.importorskip("xformers")
    found = selfcheck.check(choose_mechanism("xformers_blocksparse", {}), setting(dim=64))
    assert found.reference == "all pairs with its pattern, in float64"
