"""Suite files: what they expand to, and that every fault in one is a single line before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench import suite as suites
from attnbench import survey
from attnbench.errors import AttnbenchError
from attnbench.outcomes import Run, runs_of
from attnbench.record import Tuning

ROOT = Path(__file__).parents[1]
HEAD = 'name = "mine"\ntasks = ["recall"]\nmechanisms = ["dense"]\n'
CELLS = """
name = "mine"
tasks = ["recall", "digits"]
mechanisms = ["dense", "local"]
regularizers = ["none", "rdrop"]
seeds = [4, 2]
[set]
model.dropout = 0.1
[options]
block_size = [4, 8]
"""

Write = Callable[..., suites.Suite]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def one(text: str, name: str = "mine.toml") -> suites.Suite:
        (tmp_path / name).write_text(text, "utf-8")
        return suites.load(str(tmp_path / name))

    return one


def cells(suite: suites.Suite) -> list[str]:
    return [asked.title for asked in suites.expand(suite)]


def test_cells_are_crossed_and_options_go_to_the_mechanisms_that_have_them(write: Write) -> None:
    assert cells(write(CELLS)) == [
        f"{mechanism} with {regularizer} on {task}{block}"
        for task in ("recall", "digits")
        for mechanism, blocks in (("dense", [""]), ("local", [" block_size=4", " block_size=8"]))
        for regularizer in ("none", "rdrop")
        for block in blocks
    ]


def test_whole_seeds_come_first_in_the_files_order(write: Write) -> None:
    suite = write(CELLS)
    found = survey.take(suite, prepare=False)
    assert runs_of(suite, found) == [Run(cell, seed) for seed in (4, 2) for cell in range(12)]


def test_trials_come_before_all_runs_and_on_their_own_seeds(write: Write) -> None:
    suite = write(HEAD + "seeds = 2\n[tune]\nseeds = [7]\nbudget.lr = [1, 2]\nmodel.dropout = [0, 0.5]\n")
    found = survey.take(suite, prepare=False)
    assert runs_of(suite, found) == [*(Run(0, 7, trial) for trial in range(4)), Run(0, 0), Run(0, 1)]
    assert [variant.values for variant in found.cells[0].variants] == [
        {"budget.lr": lr, "model.dropout": dropout} for lr in (1.0, 2.0) for dropout in (0.0, 0.5)
    ]


def test_a_cell_that_is_a_mechanism_with_its_regularizer_takes_no_other(write: Write) -> None:
    text = 'name = "a"\ntasks = ["recall"]\nmechanisms = ["ernie_sparse", "hst"]\nregularizers = ["none", "sar"]\n'
    suite = write(text)
    assert cells(suite) == ["ernie_sparse on recall", "hst with none on recall", "hst with sar on recall"]
    found = survey.take(suite, prepare=False)
    assert [cell.label for cell in found.cells] == ["ernie_sparse", "hst"], "hst with sar is ernie_sparse"
    assert found.duplicates == 1


@pytest.mark.parametrize(
    "more",
    [
        '[set]\nbudget.steps = 900\n[[cells]]\nmechanism = "dense"',
        '[[cells]]\nmechanism = "dense"\nregularizer = "none"',
    ],
)
def test_what_comes_to_the_same_spec_is_one_cell(write: Write, more: str) -> None:
    found = survey.take(write(HEAD + more), prepare=False)
    assert (len(found.cells), found.duplicates) == (1, 1)


def test_single_cells_have_settings_and_tasks_of_their_own(write: Write) -> None:
    suite = write(
        HEAD + 'seeds = 1\n[set]\nbudget.steps = 3\n[options]\n"task.pairs" = [1, 2]\n[[cells]]\nmechanism = "hst"\n'
        'tasks = ["digits"]\nregularizer = "sar"\nset = { block_size = 4, sar.alpha = 0.25, budget.steps = 5 }\n'
    )
    assert [dict(asked.settings) for asked in suites.expand(suite)] == [
        {"budget.steps": "3", "task.pairs": "1"},
        {"budget.steps": "3", "task.pairs": "2"},
        {"budget.steps": "5", "block_size": "4", "sar.alpha": "0.25"},
    ]


def test_a_number_of_seeds_counts_from_0_and_keys_may_be_tables(write: Write) -> None:
    assert write(HEAD + "seeds = 2").seeds == [0, 1]
    assert write(HEAD).seeds == [0, 1, 2]
    same = [
        '[set]\n"budget.steps" = 3\nmodel.dim = 8',
        "[set.budget]\nsteps = 3\n[set.model]\ndim = 8",
        "set = { budget.steps = 3, model = { dim = 8 } }",
    ]
    assert [write(HEAD + text).set for text in same] == [{"budget.steps": 3, "model.dim": 8}] * 3


def test_tuning_is_on_the_first_seed_unless_it_says_otherwise(write: Write) -> None:
    tuned = HEAD + "seeds = [5, 6]\n[tune]\nbudget.lr = [1.0, 2.0]\n"
    assert write(tuned).tuning == Tuning(grid={"budget.lr": [1.0, 2.0]}, seeds=[5])
    assert write(tuned + "seeds = [1, 2]").tuning == Tuning(grid={"budget.lr": [1.0, 2.0]}, seeds=[1, 2])
    assert write(HEAD).tuning is None


def test_files_are_looked_for_beside_the_suite(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (ROOT / "mechanisms" / "dense.py").read_text("utf-8")
    (tmp_path / "mine.py").write_text(source, "utf-8")
    (tmp_path / "own.toml").write_text('name = "own"\nversion = 1\nsummary = ""\n', "utf-8")
    suite = write('name = "a"\ntasks = ["recall"]\nmechanisms = ["mine.py"]\nprotocol = "own.toml"\n')
    monkeypatch.chdir("/")
    (cell,) = survey.take(suite, prepare=False).cells
    assert (cell.label, cell.mechanism) == ("mine", str(tmp_path / "mine.py"))
    assert cell.variants[0].subject.spec.protocol.name == "own"
    assert cell.variants[0].subject.origin["mechanism"] == "file mine.py"


def test_a_suite_under_another_protocol_has_the_keys_it_says(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + "[set]\nmodel.dim = 8\n[under.attnbench-1]\nseeds = 7\n[under.attnbench-1.set]\n", "utf-8")
    usual, other = suites.load(str(path)), suites.load(str(path), "attnbench-1")
    assert usual == suites.load(str(path), "quick") and usual.set == {"model.dim": 8}
    assert (other.protocol, len(other.seeds), other.set) == ("attnbench-1", 7, {})
    assert (other.tasks, other.mechanisms, other.under) == (usual.tasks, usual.mechanisms, {})
    with pytest.raises(AttnbenchError, match=r"lra-2021.*attnbench-1, quick"):
        suites.load(str(path), "lra-2021")
    values = '[set]\nmodel.dim = "$wide"\n[values]\nwide = 8\n[under.attnbench-1]\nvalues = { wide = 64 }\n'
    path.write_text(HEAD + values, "utf-8")
    assert [suites.load(str(path), one).set for one in (None, "attnbench-1")] == [{"model.dim": 8}, {"model.dim": 64}]
    path.write_text(HEAD + '[set]\nmodel.dim = "$wdie"\n[values]\nwide = 8\n', "utf-8")
    with pytest.raises(AttnbenchError, match=r"\$wdie.*\$wide"):
        suites.load(str(path))
    path.write_text(HEAD + "[under.attnbench-1]\nsedes = 7\n", "utf-8")
    with pytest.raises(AttnbenchError, match=r"mine\.toml: .*sedes"):
        suites.load(str(path), "attnbench-1")


def test_a_cell_that_cannot_run_here_is_kept_with_the_reason(write: Write, tmp_path: Path) -> None:
    (tmp_path / "needs.py").write_text("import nowhere_to_be_found\n", "utf-8")
    source = (ROOT / "mechanisms" / "dense.py").read_text("utf-8")
    (tmp_path / "deaf.py").write_text(
        source.replace("MECHANISM = Mechanism(", "MECHANISM = Mechanism(honours_masks=False,")
    )
    text = HEAD + '[[cells]]\nmechanism = "needs.py"\n'
    text += '[[cells]]\nmechanism = "deaf.py"\nregularizer = "sar"\nset = { model.dropout = 0.1 }\n'
    dense, needs, deaf = survey.take(write(text), prepare=False).cells
    assert dense.refusal is None
    assert needs.refusal is not None and "nowhere_to_be_found" in needs.refusal and not needs.variants
    assert deaf.refusal == "sar shifts the input behind masked rows, and deaf ignores masks"
    assert deaf.variants[0].subject.label == "deaf+sar"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "name: Field required"),
        ('name = "a"', "names no mechanism: give mechanisms"),
        ('name = "a"\nmechanisms = ["dense"]', "names no task: give tasks"),
        ('name = "a"\n[[cells]]\nmechanism = "dense"', "no task for dense"),
        (HEAD + "mechanism = 'dense'", "unknown key 'mechanism'; did you mean mechanisms?"),
        (
            HEAD + "[[cells]]\nmechanism = 'dense'\ntask = ['recall']",
            "unknown key in cells.0 'task'; did you mean tasks?",
        ),
        (HEAD + "folder = 'x'", "unknown key 'folder'"),
        (HEAD + "seeds = 0", "seeds: how many (from 1 on), or a list of whole numbers from 0 on (found 0)"),
        (HEAD + "seeds = [1, -1]", "seeds: how many"),
        (HEAD + "seeds = [1, 1]", "seeds: 1 is given twice"),
        (HEAD + "seeds = [true]", "seeds: how many"),
        (HEAD + "[set]\nbudget.steps = [1]", "set.budget.steps: a number, a text, true or false"),
        (HEAD + "[set]\nbudget.steps = 2020-01-01", "set.budget.steps: a number, a text, true or false"),
        (HEAD + "[set]\nbudget.steps = 1\n'budget.steps' = 2", "set: budget.steps is given twice"),
        (HEAD + "[options]\nblock_size = 3", "options.block_size: Input should be a valid list"),
        (HEAD + "[options]\nblock_size = []", "options.block_size: List should have at least 1 item"),
        (HEAD + "[options]\nblock_size = [8, 8]", "options.block_size: 8 is given twice"),
        (HEAD + "[set]\nbudget.lr = 1\n[tune]\nbudget.lr = [1, 2]", "budget.lr is given twice"),
        (HEAD + "[tune]\nseeds = [1]", "tune: names no value to choose"),
        (HEAD + "[tune]\nseeds = 'x'\nbudget.lr = [1, 2]", "tune.seeds: how many"),
        (HEAD + "[tune]\nbudget.lr = [1, 2]\n[[cells]]\nmechanism = 'hst'\nset = { budget.lr = 1 }", "is given twice"),
        ("name = 'a", "not valid TOML"),
    ],
)
def test_a_faulty_file_is_one_line(write: Write, text: str, said: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        write(text)
    assert said in str(caught.value) and "mine.toml: " in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[[cells]]\nmechanism = 'dens'", "unknown mechanism 'dens'; did you mean dense"),
        ("[[cells]]\nmechanism = 'gone.py'", "gone.py: no such file"),
        ("[[cells]]\nmechanism = 'hst'\ntasks = ['recal']", "unknown task 'recal'; did you mean recall"),
        ("[[cells]]\nmechanism = 'hst'\nregularizer = 'sarr'", "unknown regularizer 'sarr'; did you mean sar"),
        ("[[cells]]\nmechanism = 'ernie_sparse'\nregularizer = 'rdrop'", "ernie_sparse is hst with sar"),
        (
            "[[cells]]\nmechanism = 'hst'\nset = { blok_size = 4 }",
            "option 'blok_size'; did you mean block_size",
        ),
        ("[set]\nblock_size = 4", "unknown setting of any cell 'block_size'"),
        ("[options]\n'task.lenght' = [32, 64]", "unknown setting of any cell 'task.lenght'; did you mean task.length"),
        ("[set]\nbudget.steps = 'many'", "dense on recall: budget: steps: Input should be a valid integer"),
        ("[[cells]]\nmechanism = 'hst'\nregularizer = 'rdrop'", "hst with rdrop on recall: rdrop: "),
        ("[tune]\nbudget.steps = [1, 2]", "unknown value to tune 'budget.steps'"),
        ("[tune]\nbudget.lr = [1]", "two or more different values to choose from"),
        ("[tune]\nbudget.lr = [1, 1.0]", "1.0 is given twice"),
        ("[tune]\nbudget.lr = ['1e-3', 0.001]", "two or more different values to choose from"),
        ("[tune]\nbudget.lr = [1, -1]", "budget: lr: Input should be greater than 0"),
    ],
)
def test_a_fault_of_a_cell_is_one_line(write: Write, more: str, said: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        survey.take(write(HEAD + more), prepare=False)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("reference", ["nothing.toml", "quikc"])
def test_a_suite_that_is_not_there_is_one_line(reference: str) -> None:
    with pytest.raises(AttnbenchError, match=r"cannot be read|did you mean quick\?"):
        suites.load(reference)


def test_a_suite_file_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff\xfe'")
    with pytest.raises(AttnbenchError, match="not valid TOML"):
        suites.load(str(tmp_path / "bytes.toml"))


def test_the_file_in_the_docs_is_one(write: Write) -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text("utf-8")
    shown = page.split("```toml\n")[1].split("```")[0]
    suite = write(shown)
    assert {key for key in suites.Suite.model_fields if key not in suite.model_fields_set} == set()
    rows = {line.split("|")[1] for line in page.splitlines() if line.startswith("| `")}
    assert {key for key in suites.Suite.model_fields if not any(f"`{key}`" in row for row in rows)} == {"folder"}


@pytest.mark.parametrize("name", suites.packaged())
def test_the_suites_that_come_with_attnbench_can_be_planned(name: str) -> None:
    suite = suites.load(name)
    assert suite == suites.load(str(ROOT / "suites" / f"{name}.toml")).model_copy(update={"folder": suite.folder})
    found = survey.take(suite, prepare=False)
    assert found.duplicates == 0 and [cell.refusal for cell in found.cells] == [None] * len(found.cells)
