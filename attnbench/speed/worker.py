"""The process of one cell, or of the yardstick: `python -m attnbench.speed.worker`.

A line of JSON in, a line of JSON out. The first line says what to measure; then each `turn` gives a sample. It ends
with its input. Whatever a plugin prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import IO, Any

from attnbench.errors import AttnbenchError, Unsupported, describe, is_out_of_memory

Answer = dict[str, Any]


class _Told(Exception):
    """The cell ends with this status."""

    def __init__(self, status: str, reason: str, **more: Any):
        self.answer: Answer = {"status": status, "reason": reason, **more}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    request = json.loads(sys.stdin.readline())
    with ExitStack() as stack:
        try:
            setting, numerics = _begin(request, stack)
        except AttnbenchError as error:
            _say(answers, {"status": "failed", "reason": describe(error)})
            return
        _say(answers, {"up": True, "numerics": numerics})
        if not sys.stdin.readline():
            return
        ready = _guarded(lambda: _ready(request, setting))
        turn = ready.pop("turn", None)
        _say(answers, ready)
        while turn is not None and sys.stdin.readline():
            _say(answers, _guarded(turn))


def _say(answers: IO[str], answer: Answer) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def _guarded(work: Callable[[], Answer]) -> Answer:
    """What `work` gives, or the status that ended it."""
    try:
        return work()
    except _Told as told:
        return told.answer
    except Exception as error:  # noqa: BLE001  a mechanism may fail in any way, and that is the result
        if is_out_of_memory(error):
            return {"status": "oom", "reason": describe(error)}
        status = "unsupported" if isinstance(error, Unsupported) else "failed"
        return {"status": status, "reason": describe(error)}


def _begin(request: Mapping[str, Any], stack: ExitStack) -> tuple[Any, dict[str, str]]:
    """Loads what takes long to load, and puts the settings of the process in force."""
    import torch

    from attnbench.numerics import applied
    from attnbench.speed import footprint
    from attnbench.speed.result import Setting

    setting = Setting.model_validate(request["setting"])
    torch.set_num_threads(setting.threads)
    numerics = stack.enter_context(applied(setting.numerics, setting.device == "cpu"))
    if "mechanism" in request:
        from attnbench.speed import selfcheck, work  # noqa: F401

        footprint.bound(setting.device)
    return setting, {**numerics, "float32 products": torch.get_float32_matmul_precision()}


def _ready(request: Mapping[str, Any], setting: Any) -> Answer:
    facts, run = prepare(request, setting) if "mechanism" in request else _yardstick(request, setting)
    return {"status": "ok", **facts, "turn": _turns(run, facts["calls"], setting)}


def _yardstick(request: Mapping[str, Any], setting: Any) -> tuple[Answer, Callable[[], object]]:
    import torch

    size = int(request["size"])
    dtype = torch.bfloat16 if setting.dtype == "bf16" else torch.float32
    a, b = torch.randn(2, size, size).to(setting.device, dtype)

    def run() -> object:
        return a @ b

    calls, _ = _warm(run, setting)
    return {"calls": calls}, run


def prepare(request: Mapping[str, Any], setting: Any) -> tuple[Answer, Callable[[], object]]:
    """All that comes before the first sample: what was found out of a cell, and the call that is timed."""
    from attnbench.choice import choose_mechanism
    from attnbench.speed import flops, footprint, selfcheck
    from attnbench.speed.work import Work, finite

    choice = choose_mechanism(request["mechanism"], request["values"])
    implementation = _implementation(choice, setting)
    if implementation == selfcheck.EMULATION:
        why = "computes all pairs whatever its pattern, so its time says nothing about the mechanism"
        raise _Told("emulation", why, implementation=implementation)
    try:
        checked = selfcheck.check(choice, setting)
    except selfcheck.Wrong as wrong:
        raise _Told("wrong", str(wrong), implementation=implementation) from None
    footprint.release(setting.device)
    work = Work(choice, setting, request["length"])
    calls, first = _warm(work.run, setting)
    if not finite(first):
        raise _Told("wrong", "its result holds numbers that are not finite", implementation=implementation)
    del first
    count = flops.counted(work.run)
    facts = {
        "implementation": implementation,
        "check": checked.model_dump(),
        "calls": calls,
        "flops": count,
        "flops_formula": work.flops_formula,
        "peak_bytes": footprint.peak_of(work.run, setting.device),
        "resident_bytes": work.resident,
    }
    return facts, work.run


def _implementation(choice: Any, setting: Any) -> str:
    """The path that will compute, as records name it; a small mixer is built for it."""
    from attnbench.model import standalone

    options, contract = choice.options, choice.plugin.object
    block = max(1, contract.tokens(options).block_size)
    mixer = standalone(contract, options, dim=setting.dim, heads=setting.heads, length=4 * block)
    return str(getattr(mixer.mixer, "implementation", "reference"))


def _warm(run: Callable[[], object], setting: Any) -> tuple[int, object]:
    """The declared calls before any sample: how many of them fill one, by the last, and what the first gave."""
    import torch

    from attnbench.speed.clock import calls_for

    first: object = None
    taken = 0.0
    for number in range(setting.warmup):
        started = time.perf_counter()
        result = run()
        if setting.device == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - started
        first = result if number == 0 else first
    return calls_for(taken), first


def _turns(run: Callable[[], object], calls: int, setting: Any) -> Callable[[], Answer]:
    from attnbench.speed import clock, footprint

    def turn() -> Answer:
        run()  # others have had the caches since
        taken = clock.timed(run, calls, setting.device, setting.threads)
        footprint.release(setting.device)
        return {
            "status": "ok",
            "sample": {"seconds": taken.seconds / calls, "wall": taken.wall / calls, "waited": taken.waited},
        }

    return turn


if __name__ == "__main__":
    main()
