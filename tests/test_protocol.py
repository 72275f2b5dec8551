"""Protocols: built-in and the user's own, what changes their name, and who gets their attention options."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from attnbench import plan, protocol, registry, runner
from attnbench.config import Budget, ModelConfig, Numerics, Padding
from attnbench.errors import AttnbenchError, UnknownName

HEAD = 'name = "mine"\nversion = 2\nsummary = "s"\n'


def own(folder: Path, text: str = "", head: str = HEAD) -> str:
    path = folder / "mine.toml"
    path.write_text(head + text)
    return str(path)


def refused(reference: str, **more: Any) -> str:
    with pytest.raises(AttnbenchError) as caught:
        plan.make("dense", "recall", protocol=reference, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_are_the_files_and_load_under_their_names() -> None:
    assert "quick" in protocol.names()
    for name in protocol.names():
        assert protocol.load(name).name == name
    with pytest.raises(UnknownName, match="did you mean quick"):
        protocol.load("quikc")


def test_what_a_file_leaves_out_has_the_default(tmp_path: Path) -> None:
    rules = plan.make("dense", "recall", protocol=own(tmp_path)).rules
    assert (rules.model, rules.budget) == (ModelConfig(), Budget())
    assert (rules.numerics, rules.padding) == (Numerics(), Padding())
    assert rules.spec.model_dump() == {
        "name": "mine", "version": 2, "changes": {}, "seeds": 1, "parameters_within": None,
    }  # fmt: skip


def test_values_of_a_task_win_over_those_for_all_and_the_user_over_both(tmp_path: Path) -> None:
    reference = own(tmp_path, "[model]\ndim = 32\nlayers = 3\n[tasks.recall.model]\ndim = 16\n")
    assert plan.make("dense", "digits", protocol=reference).rules.model.dim == 32
    model = plan.make("dense", "recall", protocol=reference).rules.model
    assert (model.dim, model.layers) == (16, 3)
    assert plan.make("dense", "recall", protocol=reference, settings={"dim": "8"}).rules.model.dim == 8


def test_the_nearer_rule_wins_and_the_user_over_all(tmp_path: Path) -> None:
    layers = ["", "tasks.recall.", "mechanisms.local.", "tasks.recall.mechanisms.local."]
    text, found = "", []
    for number, layer in enumerate(layers, start=1):
        text += f"[{layer}model]\ndim = {8 * number}\n[{layer}attention]\nblock_size = {number}\n"
        made = plan.make("local", "recall", protocol=own(tmp_path, text))
        found.append((made.rules.model.dim, made.mechanism.options.block_size))
        others = [plan.make(*cell, protocol=own(tmp_path, text)) for cell in [("hst", "recall"), ("local", "digits")]]
        assert [one.rules.model.dim for one in others] == [8 * min(number, 2), (8, 8, 24, 24)[number - 1]]
        assert [one.mechanism.options.block_size for one in others] == [min(number, 2), (1, 1, 3, 3)[number - 1]]
        user = plan.make("local", "recall", protocol=own(tmp_path, text), settings={"block_size": "9", "dim": "40"})
        assert (user.rules.model.dim, user.mechanism.options.block_size) == (40, 9)
    assert found == [(8, 1), (16, 2), (24, 3), (32, 4)]


def test_a_cell_has_the_rules_of_its_mechanism(tmp_path: Path) -> None:
    reference = own(tmp_path, "[mechanisms.hst.model]\ndim = 16\n")
    assert plan.make("ernie_sparse", "recall", protocol=reference).rules.model.dim == 16
    assert plan.make("dense", "recall", protocol=reference).rules.model.dim == 64


def test_a_preset_for_all_reaches_who_has_it_and_a_users_goes_before_it(tmp_path: Path) -> None:
    reference = own(tmp_path, "[attention]\npreset = 'literal'\nblock_size = 4\n")
    literal = registry.load("mechanisms", "hst").object.presets["literal"]
    options = plan.make("hst", "recall", protocol=reference).mechanism.spec()["options"]
    assert options == plan.make("hst", "recall", settings={**literal, "block_size": 4}).mechanism.spec()["options"]
    assert plan.make("local", "recall", protocol=reference).mechanism.options.block_size == 4
    other = next(name for name in registry.load("mechanisms", "hst").object.presets if name != "literal")
    asked = plan.make("hst", "recall", protocol=reference, settings={"preset": other}).mechanism.options
    assert asked == plan.make("hst", "recall", settings={"preset": other, "block_size": 4}).mechanism.options


def test_a_closed_protocol_is_about_its_tasks_alone(tmp_path: Path) -> None:
    reference = own(tmp_path, "[tasks.recall.model]\ndim = 16\n", head=HEAD + "closed = true\n")
    assert plan.make("dense", "recall", protocol=reference).rules.model.dim == 16
    with pytest.raises(AttnbenchError, match="protocol mine is about recall, not about digits"):
        plan.make("dense", "digits", protocol=reference)


@pytest.mark.parametrize("head", [HEAD.replace('"mine"', '""'), HEAD.replace("2", "0")])
def test_a_protocol_has_a_name_and_a_version(tmp_path: Path, head: str) -> None:
    assert refused(own(tmp_path, head=head))


@pytest.mark.parametrize("place", ["mechanisms", "tasks.recall.mechanisms"])
def test_rules_for_a_cell_would_change_nothing_and_name_the_mechanism_it_trains(tmp_path: Path, place: str) -> None:
    said = "protocol mine has rules for ernie_sparse, which is hst with sar; write mechanisms.hst"
    assert refused(own(tmp_path, f"[{place}.ernie_sparse.model]\ndim = 16\n")) == said


def test_a_nearer_preset_goes_before_what_was_said_for_all(tmp_path: Path) -> None:
    """And an option beside it, or nearer, before the preset."""
    said = "[attention]\nwindow_blocks = 5\nblock_size = 4\n[mechanisms.hst.attention]\npreset = 'literal'\n"
    found = plan.make("hst", "recall", protocol=own(tmp_path, said)).mechanism.options
    assert (found.window_blocks, found.block_size) == (1, 4)
    for nearer in ("window_blocks = 7\n", "[tasks.recall.mechanisms.hst.attention]\nwindow_blocks = 7\n"):
        made = plan.make("hst", "recall", protocol=own(tmp_path, said + nearer))
        assert (made.mechanism.options.window_blocks, made.mechanism.options.stage2_norm) == (7, False)


@pytest.mark.parametrize("value", ["none", None])
def test_a_width_that_the_protocol_sets_can_be_unset(tmp_path: Path, value: str | None) -> None:
    reference = own(tmp_path, "[model]\nqkv = 32\n[tasks.recall.model]\nqkv = 'none'\n")
    assert plan.make("dense", "digits", protocol=reference).rules.model.qkv == 32
    assert plan.make("dense", "recall", protocol=reference).rules.model.qkv is None
    assert plan.make("dense", "digits", protocol=reference, settings={"qkv": value}).rules.model.qkv is None


@pytest.mark.parametrize(("text", "widths"), [("512,256", (512, 256)), ("8", (8,)), ("", ()), ("4, 4", (4, 4))])
def test_hidden_layers_are_told_as_a_list_or_as_text(tmp_path: Path, text: str, widths: tuple[int, ...]) -> None:
    settings = {"model.head_hidden": text}
    assert plan.make("dense", "digits", settings=settings).rules.model.head_hidden == widths
    reference = own(tmp_path, f"[model]\nhead_hidden = {list(widths)}\n")
    found = plan.make("dense", "digits", protocol=reference, settings=settings).rules
    assert (found.model.head_hidden, found.spec.changes) == (widths, {})


CHANGES = {
    "model.dim": 32,
    "model.positions": "sinusoidal",
    "budget.lr": 0.5,
    "budget.schedule": "rsqrt",
    "numerics.dtype": "bf16",
    "padding.rule": "max",
}


def spec_of(settings: dict[str, Any]) -> Any:
    return plan.make("dense", "digits", settings=settings).rules.spec


def test_every_set_of_changed_values_is_a_protocol_of_its_own() -> None:
    sets = [dict(c) for size in range(3) for c in itertools.combinations(CHANGES.items(), size)]
    specs = [spec_of(changes) for changes in sets]
    for changes, spec in zip(sets, specs, strict=True):
        assert spec.changes == changes
        assert spec.name == "quick" if not changes else spec.name.startswith("quick-")
    assert len({spec.name for spec in specs}) == len(sets)


def test_the_name_depends_on_the_values_not_on_how_they_were_said() -> None:
    said = [{"model.dim": 32, "budget.lr": 0.5}, {"budget.lr": "5e-1", "dim": "32"}, {"lr": "0.50", "model.dim": "32"}]
    assert len({spec_of(settings).name for settings in said}) == 1
    assert spec_of({"dim": 64, "batch": "32"}).name == "quick", "what the protocol says already is no change"


def test_options_of_task_mechanism_and_regularizer_rename_no_protocol() -> None:
    made = plan.make("hst", "recall", regularizer="sar", settings={"pairs": 1, "block_size": 4, "alpha": 2})
    assert made.rules.spec.name == "quick"


@pytest.mark.parametrize("value", ["inf", "nan", float("inf")])
@pytest.mark.parametrize("key", ["budget.lr", "budget.clip", "budget.eps", "budget.weight_decay", "model.dropout"])
def test_a_value_that_no_record_can_hold_is_refused(key: str, value: Any) -> None:
    assert key.partition(".")[2] in refused("quick", settings={key: value})


def test_a_value_of_a_regularizer_that_no_record_can_hold_is_refused() -> None:
    assert "alpha" in refused("quick", regularizer="sar", settings={"alpha": "inf"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[budget]\nsteps = 'x'", "budget: steps: Input should be a valid integer"),
        ("[budget]\nbatch = 10\naccumulate = 3", "accumulate=3 does not divide batch=10"),
        ("[budgett]\nsteps = 3", "budgett: Extra inputs"),
        ("[tasks.recall.budgett]\nsteps = 3", "tasks.recall.budgett: Extra inputs"),
        ("[tasks.recall.budget]\nstepps = 3", "did you mean steps"),
        ("[tasks.recall.task]\npiars = 1", "did you mean pairs"),
        ("[tasks.recall.task]\npairs = 0", "task recall: pairs: Input should be greater than 0"),
        ("[tasks.digits.budget]\nstepps = 3", "unknown value of budget in protocol mine 'stepps'; did you mean steps"),
        ("[tasks.digits.mechanisms.hst.model]\ndimm = 3", "'dimm'; did you mean dim?"),
        ("[mechanisms.hst.padding]\nrul = 'max'", "'rul'; did you mean rule?"),
        ("parameters_within = inf", "parameters_within: Input should be a finite number"),
        ("parameters_within = -0.1", "parameters_within: Input should be greater than or equal to 0"),
        ("seeds = 0", "seeds: Input should be greater than 0"),
        ("closed = true", "protocol mine is about no task, not about recall"),
        ("a = " + "[" * 5_000, "not valid TOML"),
        ("[model\ndim = 3", "not valid TOML"),
        ("[model]\ndim = 3\ndim = 4", "not valid TOML"),
        ("budget = 3", "budget: Input should be a valid dictionary"),
    ],
)
def test_a_faulty_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(own(tmp_path, text))


def test_a_file_that_is_not_text_or_a_folder_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"name = '\xff\xfe'")
    assert "bytes.toml" in refused(str(path))
    (tmp_path / "folder.toml").mkdir()
    assert "folder.toml" in refused(str(tmp_path / "folder.toml"))


def test_a_file_under_the_name_of_a_built_in_protocol_shares_no_table_with_it(tmp_path: Path) -> None:
    """A copy of `quick` with other values must not pass for `quick`."""
    text = (protocol.FOLDER / "quick.toml").read_text("utf-8").replace("dim = 64", "dim = 16")
    try:
        copy = plan.make("dense", "digits", protocol=own(tmp_path, text, head="")).rules
    except AttnbenchError:
        return
    assert copy.model.dim == 16
    assert copy.spec != plan.make("dense", "digits").rules.spec


ATTENTION = "[tasks.recall.attention]\nblock_size = 4\nwindow = 5\n"


@pytest.mark.parametrize("mechanism", registry.names("mechanisms"))
def test_attention_options_reach_exactly_the_mechanisms_that_have_them(tmp_path: Path, mechanism: str) -> None:
    reference = own(tmp_path, ATTENTION)
    here = plan.make(mechanism, "recall", protocol=reference).mechanism
    elsewhere = plan.make(mechanism, "digits", protocol=reference).mechanism
    fields = {field.name: field for field in dataclasses.fields(here.options)}
    for name, value in {"block_size": 4, "window": 5}.items():
        if name in fields:
            assert getattr(here.options, name) == value
            assert getattr(elsewhere.options, name) == fields[name].default
            changed = plan.make(mechanism, "recall", protocol=reference, settings={name: "2"}).mechanism
            assert getattr(changed.options, name) == 2
    others = {name for name in fields if name not in ("block_size", "window")}
    assert all(getattr(here.options, name) == fields[name].default for name in others)


def test_a_users_preset_and_the_attention_options_meet(tmp_path: Path) -> None:
    options = plan.make("hst", "recall", protocol=own(tmp_path, ATTENTION), settings={"preset": "literal"})
    assert (options.mechanism.options.block_size, options.mechanism.options.window_blocks) == (4, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tasks.recal.model]\ndim = 16\n", "unknown task in protocol mine 'recal'; did you mean recall or retrieval?"),
        ("[tasks.digitz.attention]\nblock_size = 4\n", "'digitz'; did you mean digits?"),
        ("[mechanisms.dens.model]\ndim = 16\n", "unknown mechanism in protocol mine 'dens'; did you mean dense"),
        ("[tasks.digits.mechanisms.hts.model]\ndim = 16\n", "'hts'; did you mean hst?"),
        ("[attention]\npreset = 'literall'\n", "'preset=literall'; did you mean preset=literal"),
        ("[mechanisms.dense.attention]\nblock_size = 4\n", "unknown option of mechanism dense 'block_size'"),
        (
            "[tasks.recall.attention]\nblok_size = 4\n",
            "unknown option of any mechanism in protocol mine, tasks.recall 'blok_size'; did you mean block_size",
        ),
    ],
)
def test_a_misspelt_name_is_refused_since_it_would_change_nothing(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(own(tmp_path, text))


def test_an_attention_option_that_another_mechanism_has_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a broken plugin that stands beside it; rules for other tasks are theirs to check."""
    (tmp_path / "plugins" / "mechanisms").mkdir(parents=True)
    (tmp_path / "plugins" / "mechanisms" / "torn.py").write_text("1 / 0")
    monkeypatch.setenv("ATTNBENCH_PLUGINS", str(tmp_path / "plugins"))
    reference = own(tmp_path, "[tasks.recall.attention]\nblock_size = 4\n[tasks.digits.attention]\nblok = 4\n")
    assert plan.make("dense", "recall", protocol=reference).mechanism.spec()["options"] == {}
    assert plan.make("local", "recall", protocol=reference).mechanism.options.block_size == 4


def test_an_attention_option_of_a_third_party_may_resemble_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugins" / "mechanisms").mkdir(parents=True)
    (tmp_path / "plugins" / "mechanisms" / "theirs.py").write_text(
        "from dataclasses import dataclass\nfrom attnbench import Mechanism\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Options:\n    block_sizes: int = 4\n"
        "MECHANISM = Mechanism(summary='', paper='', build=lambda shape, options: None, options=Options)\n"
    )
    protocol = own(tmp_path, "[tasks.recall.attention]\nblock_sizes = 4\n")
    assert "did you mean block_size" in refused(protocol)
    monkeypatch.setenv("ATTNBENCH_PLUGINS", str(tmp_path / "plugins"))
    assert plan.make("dense", "recall", protocol=protocol).label == "dense"


def test_the_example_of_the_docs_is_a_protocol(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text("utf-8")
    reference = own(tmp_path, text.split("```toml\n")[1].split("```")[0], head="")
    hst, dense = (plan.make(name, "listops", protocol=reference) for name in ("hst", "dense"))
    assert (hst.rules.model.layers, dense.rules.model.layers) == (3, 2)
    assert hst.mechanism.options.merge == registry.load("mechanisms", "hst").object.presets["literal"]["merge"]
    assert hst.rules.budget.steps == 5_000 and hst.rules.spec.seeds == 3
    assert hst.rules.spec.parameters_within == 0.1


def test_a_run_says_when_its_model_is_larger_than_the_protocol_allows(tmp_path: Path) -> None:
    reference = own(tmp_path, "parameters_within = 0.0\n[model]\nlayers = 3\nqkv = 32\nqkv_bias = false\n")
    dense, linformer = (
        runner.rehearse(plan.make(name, "recall", protocol=reference)) for name in ("dense", "linformer")
    )
    assert dense["params_total"] == dense["params_plain"] == linformer["params_plain"] and "notes" not in dense
    (note,) = linformer["notes"]  # type: ignore[misc]
    assert (
        "times the parameters of the same model with plain attention, and protocol mine allows 0% more or less" in note
    )
