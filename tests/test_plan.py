"""From words to a plan: plugins and their sources, options, settings, protocols."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from attnbench import plan, protocol, refusals, registry
from attnbench.config import Budget
from attnbench.errors import AttnbenchError, UnknownName, Unsupported
from attnbench.options import Span, as_json, parse
from attnbench.settings import divide, parse_pairs


@dataclass(frozen=True, kw_only=True)
class Options:
    size: int = 3
    share: float = 0.5
    on: bool = False
    shift: Span = (1, 1)


def test_options_come_from_text_and_survive_json() -> None:
    found = parse("mechanism x", Options, {"size": "7", "share": "0.25", "on": "true", "shift": "1..15"})
    assert found == Options(size=7, share=0.25, on=True, shift=(1, 15))
    assert as_json(found) == {"size": 7, "share": 0.25, "on": True, "shift": "1..15"}
    assert parse("mechanism x", Options, as_json(found)) == found
    assert as_json(Options())["shift"] == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"siez": 1}, "unknown option of mechanism x 'siez'; did you mean size?"),
        ({"size": "many"}, "mechanism x: size: Input should be a valid integer"),
        ({"size": 2.5}, "mechanism x: size: "),
        ({"shift": "1.."}, "mechanism x: shift: a whole number or a range such as 1..15"),
        ({"preset": "a"}, "unknown preset of mechanism x 'a'"),
    ],
)
def test_wrong_options_are_one_line_that_names_them(values: dict[str, object], said: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        parse("mechanism x", Options, values)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_preset_sets_values_that_single_options_override() -> None:
    presets = {"big": {"size": 9, "on": True}}
    assert parse("m", Options, {"preset": "big", "size": "8"}, presets) == Options(size=8, on=True)


def test_settings_find_their_part() -> None:
    parts = {"mechanism": ["size", "rate"], "budget": ["steps", "rate"]}
    assert divide({"size": 1, "budget.rate": 2, "hst.rate": 3}, parts, {"hst": "mechanism"}) == {
        "mechanism": {"size": 1, "rate": 3},
        "budget": {"rate": 2},
    }
    with pytest.raises(AttnbenchError, match=r"ambiguous: write mechanism.rate or budget.rate"):
        divide({"rate": 1}, parts)
    with pytest.raises(UnknownName, match="did you mean steps"):
        divide({"budget.stepps": 1}, parts)
    with pytest.raises(AttnbenchError, match="given twice"):
        divide({"size": 1, "mechanism.size": 2}, parts)
    assert parse_pairs(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


def test_ernie_sparse_is_hst_with_sar() -> None:
    one = plan.make("ernie_sparse", "recall")
    two = plan.make("hst", "recall", regularizer="sar")
    assert (one.label, two.label) == ("ernie_sparse", "hst+sar")
    assert {**one.as_json(), "label": ""} == {**two.as_json(), "label": ""}


def test_changed_values_make_another_protocol_and_are_recorded() -> None:
    plain = plan.make("dense", "digits")
    same = plan.make("dense", "digits", settings={"budget.batch": plain.rules.budget.batch})
    other = plan.make("dense", "digits", settings={"budget.batch": 16, "dim": "32"})
    assert plain.rules.spec == same.rules.spec and plain.rules.spec.name == "quick"
    assert other.rules.spec.name.startswith("quick-")
    assert other.rules.spec.changes == {"budget.batch": 16, "model.dim": 32}


def test_attention_rules_of_a_protocol_reach_who_has_them_and_the_user_wins() -> None:
    assert plan.make("local", "recall").mechanism.options.block_size == 8
    assert plan.make("local", "recall", settings={"block_size": 4}).mechanism.options.block_size == 4
    assert plan.make("local", "pathfinder").mechanism.options.block_size == 64
    assert plan.make("dense", "recall").mechanism.spec()["options"] == {}


def test_a_protocol_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nversion = 3\nsummary = "x"\n[budget]\nsteps = 7\n[tasks.recall.model]\ndim = 32\n'
        "[tasks.recall.task]\npairs = 1\n"
    )
    made = plan.make("dense", "recall", protocol=str(path))
    assert (made.rules.spec.name, made.rules.spec.version) == ("mine", 3)
    assert (made.rules.budget.steps, made.rules.model.dim, made.task.options.pairs) == (7, 32, 1)
    assert plan.make("dense", "digits", protocol=str(path)).rules.model.dim == 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "not valid TOML"),
        ('name = "a"\nversion = 1\nsummary = "x"\nbatch = 3', "batch: Extra inputs"),
        ('name = "a"\nversion = 1\nsummary = "x"\n[budget]\nstepps = 3', "did you mean steps"),
        ('name = "a"\nversion = 1\nsummary = "x"\n[budget]\nsteps = -3', "steps: Input should be greater than 0"),
        ('version = 1\nsummary = "x"', "name: Field required"),
    ],
)
def test_a_faulty_protocol_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(AttnbenchError) as caught:
        plan.make("dense", "recall", protocol=str(path))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_learning_rates_follow_their_closed_forms() -> None:
    cosine = Budget(steps=110, warmup=10, lr=2.0, schedule="cosine")
    assert [cosine.learning_rate(s) for s in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert [cosine.learning_rate(s) for s in (10, 60, 110)] == pytest.approx([2.0, 1.0, 0.0], abs=1e-12)
    assert cosine.learning_rate(35) == pytest.approx(2 * (1 + math.sqrt(0.5)) / 2)
    rsqrt = Budget(steps=100, warmup=4, lr=1.0, schedule="rsqrt")
    assert [rsqrt.learning_rate(s) for s in (3, 15, 63)] == pytest.approx([1.0, 0.5, 0.25])
    constant = Budget(steps=9, warmup=0, lr=0.3, schedule="constant")
    assert {constant.learning_rate(s) for s in range(9)} == {0.3}


MECHANISM = "from attnbench import Mechanism\nfrom torch import nn\n{more}"
MECHANISM += "MECHANISM = Mechanism(summary='s', paper='p', {arguments}build=lambda s, o: nn.Identity())\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("honours_masks=False, ", "ignores masks"), ("length_bound=True, ", "depends on the padded length")],
)
def test_sar_is_refused_where_masks_or_length_do_not_allow_it(tmp_path: Path, arguments: str, said: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(MECHANISM.format(more="", arguments=arguments))
    with pytest.raises(Unsupported, match=said):
        refusals.check_runnable(plan.make(str(path), "recall", regularizer="sar"))
    refusals.check_runnable(plan.make(str(path), "recall", regularizer="rdrop", settings={"dropout": 0.1}))


def test_the_source_hash_covers_private_neighbours_and_no_line_ends(tmp_path: Path) -> None:
    def sha(folder: str, ends: str = "\n", neighbour: str = "x = 1", more: str = "from ._own import x\n") -> str:
        package = tmp_path / folder / "mechanisms"
        package.mkdir(parents=True)
        (package / "_own.py").write_text(neighbour)
        (package / "_other.py").write_text("y = 1")
        source = MECHANISM.format(more="if 0:\n    " + more if more else "", arguments="")
        (package / "some.py").write_bytes(source.replace("\n", ends).encode())
        return registry.load("mechanisms", str(package / "some.py")).source_sha

    base = sha("a")
    assert sha("b") == base and sha("c", ends="\r\n") == base
    assert sha("d", neighbour="x = 2") != base
    assert sha("e", more="") != base


def test_a_summary_is_read_without_running_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mechanisms").mkdir()
    (tmp_path / "mechanisms" / "loud.py").write_text("raise SystemExit\n" + MECHANISM.format(more="", arguments=""))
    monkeypatch.setenv("ATTNBENCH_PLUGINS", str(tmp_path))
    assert registry.summary("mechanisms", "loud") == "s"
    assert "loud" in registry.names("mechanisms") and "_divergence" not in registry.names("regularizers")


class Plain(nn.Module):
    """A module as other libraries have it."""

    def __init__(self, dim: int, heads: int = 8, bias: bool = True, seq_len: int = 4):
        super().__init__()
        self.shape = (dim, heads, bias, seq_len)
        self.linear = nn.Linear(dim, dim, bias=bias)

    def forward(self, x, input_mask=None):  # type: ignore[no-untyped-def]
        self.mask = input_mask
        return self.linear(x)


class Unknowable(nn.Module):
    def __init__(self, dim: int, secret: object):
        super().__init__()


class Reshapes(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x[:, :1]


def test_a_plain_module_becomes_a_mechanism() -> None:
    import torch

    from attnbench.adapters import wrap_module
    from attnbench.contracts import MixerShape

    wrapped = wrap_module(Plain, "lib:Plain")
    assert wrapped.honours_masks and wrapped.length_bound
    options = parse("mechanism plain", wrapped.options, {"bias": "false"})
    mixer = wrapped.build(MixerShape(dim=8, heads=2, length=6), options)
    mask = torch.tensor([[True, False]])
    mixer(torch.zeros(1, 2, 8), mask)
    assert mixer.module.shape == (8, 2, False, 6) and mixer.module.mask is mask
    with pytest.raises(AttnbenchError, match="needs 'secret'"):
        wrap_module(Unknowable, "lib:Unknowable")
    with pytest.raises(AttnbenchError, match="not a torch nn"):
        wrap_module(dict, "lib:dict")
    narrow = wrap_module(Reshapes, "lib:Reshapes")
    assert not narrow.honours_masks
    with pytest.raises(AttnbenchError, match=r"returned \(1, 1, 8\), expected a tensor \(1, 2, 8\)"):
        narrow.build(MixerShape(dim=8, heads=2, length=6), narrow.options())(torch.zeros(1, 2, 8))


@pytest.mark.parametrize("name", protocol.names())
def test_every_shipped_protocol_resolves_for_every_task_and_every_mechanism(name: str) -> None:
    rules, mechanisms = protocol.load(name), registry.names("mechanisms")
    tasks = list(rules.tasks) if rules.closed else registry.names("tasks")
    for mechanism, task in {*((one, tasks[0]) for one in mechanisms), *(("dense", one) for one in tasks)}:
        plan.make(mechanism, task, protocol=name)


def test_ernie_sparse_and_hst_with_sar_share_one_cell() -> None:
    """The same question has the same spec hash, whatever it is called."""
    from attnbench import assembly

    hashes = {
        assembly.spec_of(made, "key", "reference").hash
        for made in (
            plan.make("ernie_sparse", "recall"),
            plan.make("ernie_sparse", "recall", regularizer="sar", seed=3),
            plan.make("hst", "recall", regularizer="sar"),
        )
    }
    assert len(hashes) == 1
    other = plan.make("hst", "recall", regularizer="rdrop", settings={"dropout": 0.1})
    assert assembly.spec_of(other, "key", "reference").hash not in hashes


@pytest.mark.parametrize("regularizer", ["none", "rdrop", "sar+rdrop"])
def test_ernie_sparse_with_another_regularizer_names_the_way(regularizer: str) -> None:
    with pytest.raises(AttnbenchError, match=f"use --mechanism hst --regularizer {regularizer.replace('+', '.')}"):
        plan.make("ernie_sparse", "recall", regularizer=regularizer)


def test_options_of_a_cell_go_by_its_name_too() -> None:
    made = plan.make("ernie_sparse", "recall", settings={"ernie_sparse.block_size": 4})
    assert made.mechanism.options.block_size == 4


def test_a_preset_the_user_asks_for_wins_over_the_protocol(tmp_path: Path) -> None:
    path = tmp_path / "preset.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Options:\n    block_size: int = 64\n"
        + MECHANISM.format(more="", arguments="options=Options, presets={'fine': {'block_size': 2}}, ")
    )
    assert plan.make(str(path), "recall").mechanism.options.block_size == 8
    assert plan.make(str(path), "recall", settings={"preset": "fine"}).mechanism.options.block_size == 2


def test_a_sum_of_regularizers_has_the_options_of_both() -> None:
    settings = {"sar.alpha": 2, "rdrop.alpha": "3", "model.dropout": 0.1}
    made = plan.make("dense", "recall", regularizer="sar+rdrop", settings=settings)
    assert made.label == "dense+sar+rdrop"
    assert [choice.options.alpha for choice in made.regularizers] == [2.0, 3.0]
    with pytest.raises(AttnbenchError, match=r"ambiguous: write sar.alpha or rdrop.alpha"):
        plan.make("dense", "recall", regularizer="sar+rdrop", settings={"alpha": 2})


@pytest.mark.parametrize("regularizer", ["", "sar+", "+", "sar+none", "none+none", "sar+sar", "sar +rdrop"])
def test_what_is_no_sum_of_regularizers_is_refused(regularizer: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        plan.make("dense", "recall", regularizer=regularizer)
    assert "regularizer" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("schedule", ["cosine", "rsqrt", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 7, 40])
def test_every_schedule_rises_evenly_and_then_never_again(schedule: str, warmup: int) -> None:
    budget = Budget(steps=40, warmup=warmup, lr=0.5, schedule=schedule)  # type: ignore[arg-type]
    rates = [budget.learning_rate(step) for step in range(40)]
    rise = [0.5 * (step + 1) / warmup for step in range(warmup)]
    assert rates[:warmup] == pytest.approx(rise)
    assert all(0 < later <= earlier <= 0.5 for earlier, later in zip(rates[warmup:], rates[warmup + 1 :], strict=False))


def test_cosine_and_rsqrt_by_hand() -> None:
    cosine = Budget(steps=100, warmup=20, lr=1.0, schedule="cosine")
    for step in range(20, 100):
        expected = math.cos(math.pi / 2 * (step - 20) / 80) ** 2  # the half-angle form
        assert cosine.learning_rate(step) == pytest.approx(expected, abs=1e-12)
    rsqrt = Budget(steps=1000, warmup=25, lr=1.0, schedule="rsqrt")
    assert all(rsqrt.learning_rate(step) ** -2 == pytest.approx((step + 1) / 25) for step in range(25, 1000))


# requests that are refused before anything is built


def refused(*cell: str, error: type[AttnbenchError] = AttnbenchError, **more: Any) -> str:
    """The one line that a request is refused with."""
    with pytest.raises(error) as caught:
        plan.make(*cell, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("seed", ["x", "1", 1.5, None, -1])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    assert refused("dense", "recall", seed=seed) == f"seed is a whole number from 0 on, got {seed!r}"


@pytest.mark.parametrize("key", [3, None, ("model", "dim")])
def test_names_of_options_are_text(key: Any) -> None:
    said = refused("dense", "recall", settings={"model.dim": 16, key: 1})
    assert said == f"the names of options are text, got {key!r}"


@pytest.mark.parametrize("preset", [[], {}, 3])
def test_a_preset_that_is_no_name_is_refused(preset: Any) -> None:
    assert "unknown preset of mechanism hst" in refused("hst", "recall", settings={"preset": preset})


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("None", "tokens returned a NoneType, not Tokens"),
        ("(1, 0, 0)", "tokens returned a tuple, not Tokens"),
        ("Tokens(globals=-1)", "tokens: ValueError: Tokens takes no negative number"),
        ("o.missing", "tokens: AttributeError"),
    ],
)
def test_special_rows_that_are_none_are_one_line_that_names_the_mechanism(
    tmp_path: Path, tokens: str, said: str
) -> None:
    path = tmp_path / "odd.py"
    path.write_text(MECHANISM.format(more="from attnbench import Tokens\n", arguments=f"tokens=lambda o: {tokens}, "))
    assert refused(str(path), "recall").startswith(f"mechanism odd: {said}")


@pytest.mark.parametrize("pooling", ["cls", "first", "last"])
def test_a_way_of_pooling_is_refused_where_nothing_is_pooled(pooling: str) -> None:
    assert f"model.pooling={pooling} pools nothing" in refused("dense", "recall", settings={"pooling": pooling})
    assert plan.make("dense", "digits", settings={"pooling": pooling}).rules.model.pooling == pooling


@pytest.mark.parametrize("mechanism", ["hst", "local"])
def test_a_block_as_long_as_the_input_is_the_largest(mechanism: str) -> None:
    settings = {"task.length": 16, "task.distance": 2}
    assert "block_size=17 is more than the 16 tokens of recall" in refused(
        mechanism, "recall", settings=settings | {"block_size": 17}
    )
    plan.make(mechanism, "recall", settings=settings | {"block_size": 16})


@pytest.mark.parametrize(
    ("regularizer", "options", "said"),
    [
        ("rdrop", {}, "rdrop: its two passes differ in their dropout masks only"),
        ("sar+rdrop", {}, "rdrop: its two passes"),
        ("sar", {"alpha": 0, "ce_passes": "first", "model.dropout": 0.1}, "sar: with alpha=0 and ce_passes=first"),
        ("sar", {"shift": 0}, "sar: with shift=0"),
        ("sar", {"shift": 0, "sar.dropout": "shared", "model.dropout": 0.1}, "sar: with shift=0"),
        ("sar", {"sar.dropout": "off"}, "sar: dropout=off"),
        ("sar", {"sar.dropout": "shared"}, "sar: dropout=shared"),
    ],
)
def test_a_regularizer_that_could_change_nothing_is_refused(
    regularizer: str, options: dict[str, Any], said: str
) -> None:
    assert refused("local", "recall", regularizer=regularizer, settings=options).startswith(said)


@pytest.mark.parametrize(
    ("regularizer", "options"),
    [
        ("rdrop", {"dropout": 0.1}),
        ("rdrop", {"attention_dropout": 0.1}),
        ("sar", {}),
        ("sar", {"shift": "0..1"}),
        ("sar", {"alpha": 0}),
        ("sar", {"ce_passes": "first"}),
        ("sar", {"shift": 0, "model.dropout": 0.1}),
        ("sar", {"shift": 0, "sar.dropout": "off", "model.dropout": 0.1}),
        ("sar", {"sar.dropout": "shared", "model.dropout": 0.1}),
    ],
)
def test_a_regularizer_that_changes_something_is_planned(regularizer: str, options: dict[str, Any]) -> None:
    assert len(plan.make("local", "recall", regularizer=regularizer, settings=options).regularizers) == 1


def test_a_regularizer_whose_own_check_breaks_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "torn.py"
    path.write_text(
        "from attnbench import Regularizer\n"
        "REGULARIZER = Regularizer(summary='s', paper='p', loss=lambda o: None, idle=lambda o, dropout: o.missing)\n"
    )
    assert refused("dense", "recall", regularizer=str(path)).startswith("regularizer torn: idle: AttributeError")


TASK = (
    "from attnbench.contracts import Classify, Source, Task\n"
    "TASK = Task(summary='s', source=Source(citation='c', licence='l'), prepare=lambda o, p: None,\n"
    "            **{{'head': lambda o: Classify(2), 'vocab': lambda o: 2, 'max_length': lambda o: 4, '{0}': {1}}})\n"
)


@pytest.mark.parametrize(
    ("what", "returned", "said"),
    [
        ("head", "3", "head returned a int, not one of attnbench.contracts"),
        ("vocab", "None", "vocab returned None, not a whole number from 1 on"),
        ("vocab", "0", "vocab returned 0"),
        ("max_length", "'4'", "max_length returned '4'"),
        ("max_length", "o.missing", "AttributeError"),
    ],
)
def test_a_task_that_does_not_say_what_it_is_is_one_line_that_names_it(
    tmp_path: Path, what: str, returned: str, said: str
) -> None:
    (tmp_path / "vague.py").write_text(TASK.format(what, f"lambda o: {returned}"))
    assert refused("dense", str(tmp_path / "vague.py")).startswith(f"task vague: {said}")


def test_a_task_may_count_with_numpy(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text("import numpy\n" + TASK.format("vocab", "lambda o: numpy.int64(2)"))
    assert plan.make("dense", str(tmp_path / "counts.py")).task.plugin.name == "counts"
