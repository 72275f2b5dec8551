"""Records as a run would write them, with everything overridable that the tests look at."""

from __future__ import annotations

from typing import Any

from attnbench import registry
from attnbench.record import (
    Cost,
    CurvePoint,
    MechanismSpec,
    PluginSpec,
    ProtocolSpec,
    Quality,
    Record,
    Spec,
    TaskSpec,
)


def portable_mechanisms() -> list[str]:
    """Names of those that run everywhere; the others need a package whose paths have limits."""
    names = registry.names("mechanisms")
    return [name for name in names if not getattr(registry.load("mechanisms", name).object, "requires", ())]


def make_spec(
    *,
    task: str = "recall",
    task_options: dict[str, Any] | None = None,
    task_sha: str = "7a" * 32,
    data_key: str = "d0" * 32,
    mechanism: str = "dense",
    options: dict[str, Any] | None = None,
    mechanism_sha: str = "3c" * 32,
    implementation: str = "reference",
    regularizers: tuple[str, ...] = (),
    protocol: str = "quick",
    protocol_version: int = 1,
    protocol_changes: dict[str, Any] | None = None,
    steps: int = 400,
    engine: int = 1,
    seeds: int = 1,
    parameters_within: float | None = None,
) -> Spec:
    return Spec(
        task=TaskSpec(
            name=task,
            version=1,
            source_sha=task_sha,
            options={"pairs": 8} if task_options is None else task_options,
            data_key=data_key,
            max_length=256,
            vocab=66,
        ),
        mechanism=MechanismSpec(
            name=mechanism,
            version=1,
            source_sha=mechanism_sha,
            options={} if options is None else options,
            implementation=implementation,
        ),
        regularizer=[
            PluginSpec(name=name, version=1, source_sha="5e" * 32, options={"alpha": 0.5}) for name in regularizers
        ],
        model={"dim": 64, "heads": 2, "layers": 2},
        budget={"steps": steps, "batch": 32, "optimiser": {"name": "adamw", "lr": 0.001}},
        numerics={"dtype": "float32"},
        padding={"rule": "longest"},
        protocol=ProtocolSpec(
            name=protocol,
            version=protocol_version,
            changes=protocol_changes or {},
            seeds=seeds,
            parameters_within=parameters_within,
        ),
        engine=engine,
    )


def make_quality(test: float = 0.8, **changes: Any) -> Quality:
    values: dict[str, Any] = {
        "metric": "accuracy",
        "best_step": 300,
        "validation": 0.81,
        "test": test,
        "interval": (test - 0.02, test + 0.02),
        "examples": 1000,
        "predictions": 1000,
        "chance": 0.125,
        "trivial": {"majority": 0.131, "bag of tokens": 0.152},
        "p_above_chance": 1e-9,
    }
    return Quality(**values | changes)


def make_record(
    *,
    label: str = "dense",
    seed: int = 0,
    status: Any = "ok",
    test: float = 0.8,
    quality: Quality | None = None,
    spec: Spec | None = None,
    started: str = "2026-01-01T00:00:00Z",
    params_mixer: int = 32768,
    params_plain: int | None = None,
    id: str | None = None,
    **spec_changes: Any,
) -> Record:
    """A record that trained to the end has a quality; `spec_changes` go to `make_spec`."""
    spec = make_spec(**spec_changes) if spec is None else spec
    finished = status in ("ok", "not_above_chance", "trivial")
    stamp = started.replace("-", "").replace(":", "")
    return Record(
        id=f"{stamp}-{spec.hash}-s{seed}" if id is None else id,
        label=label,
        status=status,
        reason=None if finished else f"{status} in a test",
        spec=spec,
        seed=seed,
        quality=(quality or make_quality(test)) if finished else None,
        curve=[CurvePoint(step=100, examples=3200, loss=1.2, validation=0.5, validation_loss=1.1)],
        cost=Cost(
            params_total=150_000,
            params_mixer=params_mixer,
            params_plain=params_plain,
            train_seconds=12.5,
            samples_per_second=1024.0,
            peak_bytes=1 << 28,
            peak_how="resident set",
        ),
        machine={"cpu": "test"},
        software={"python": "3.11"},
        code={"commit": None},
        started=started,
        finished=started,
        command="attnbench run",
    )
