"""Writes docs/tasks/README.md from what the tasks of this repository declare: python scripts/tasks_table.py."""

from __future__ import annotations

from pathlib import Path

from attnbench import protocol, registry
from attnbench.contracts import Task
from attnbench.options import parse

PAGE = Path(__file__).parents[1] / "docs" / "tasks" / "README.md"
HEADER = ["task", "question", "asks", "metric", "tokens", "in quick", "licence of the data", "needs"]
INTRODUCTION = """\
# Tasks

Made by `python scripts/tasks_table.py` from what every task declares. `attnbench show TASK` has its options, source and
citation, and, once it is prepared, its sizes, lengths, chance and trivial levels; `attnbench data verify TASK` tells of
duplicates, contradictions and order.

- **asks**: the kind of head: a class of the input (Classify) or of two inputs (Match), a class at every token
  (TagTokens), one of the candidates in the input (Choose), the place of an answer (Span).
- **tokens**: the most of one input, by default; **in quick**: under the protocol `quick`.
- **licence of the data**: `generated` needs no files; for the others the task's page says where they are to be had.
"""


def main() -> None:
    PAGE.write_text(page(), "utf-8")
    print(PAGE.relative_to(PAGE.parents[2]))


def page() -> str:
    names = registry.names("tasks")
    rows = [row(name) for name in names if registry.home("tasks", name).how == "built-in"]
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return INTRODUCTION + "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def row(name: str) -> list[str]:
    task: Task = registry.load("tasks", name).object
    options = parse(name, task.options, {})
    quick = parse(name, task.options, protocol.load("quick").rules(name).task)
    return [
        f"[{name}]({name}.md)" if (PAGE.parent / f"{name}.md").exists() else name,
        task.summary,
        type(task.head(options)).__name__,
        task.metric,
        f"{task.max_length(options):,}",
        f"{task.max_length(quick):,}",
        task.source.licence,
        ", ".join(task.requires),
    ]


if __name__ == "__main__":
    main()
