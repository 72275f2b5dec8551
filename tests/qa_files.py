"""Question answering in the released formats, made up: the answer stands behind a name that the question holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from attnbench.tasks._subwords import Subwords

from attnbench import registry
from attnbench.data import TaskData, folder_of, load
from attnbench.errors import AttnbenchError
from attnbench.options import parse

NAMES = ("Arbo", "Belka", "Corin", "Dessa", "Emil", "Faro", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Lutz")
PLACES = ("Narvik", "Oslo", "Paris", "Quito", "Rome", "Sofia", "Turin", "Ulm", "Vaduz", "Wien", "Xanten", "Zug")
FILLER = ["there", "was", "nothing", "else", "to", "be", "seen", "on", "that", "day"]


def _generator(*seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def paragraph(
    generator: np.random.Generator, facts: int = 4, filler: int = 4
) -> tuple[str, list[tuple[str, str, int]]]:
    """A text, and of each fact in it the name, the place, and the character the place begins at."""
    names, places = (generator.permutation(words)[:facts] for words in (NAMES, PLACES))
    text, found = "", []
    for name, place in zip(names, places, strict=True):
        text += " ".join(generator.choice(FILLER, filler)).capitalize() + ". "
        text += f"{name} lives in "
        found.append((str(name), str(place), len(text)))
        text += f"{place}. "
    return text.rstrip(), found


def _squad_articles(seed: int, articles: int, paragraphs: int, facts: int) -> list[dict[str, Any]]:
    generator, made = _generator(seed), []
    for article in range(articles):
        written = []
        for number in range(paragraphs):
            text, found = paragraph(generator, facts)
            qas = [
                {
                    "id": f"{seed}-{article}-{number}-{i}",
                    "question": f"Where does {name} live?",
                    "answers": [{"text": place, "answer_start": start}] * (1 + seed),
                }
                for i, (name, place, start) in enumerate(found)
            ]
            written.append({"context": text, "qas": qas})
        made.append({"title": f"Title {seed} {article}", "paragraphs": written})
    return made


def squad(folder: Path, articles: int = 12, test: int = 3, paragraphs: int = 3, facts: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate({"train": articles, "dev": test}.items()):
        data = {"data": _squad_articles(seed, count, paragraphs, facts), "version": "1.1"}
        (folder / f"{name}-v1.1.json").write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    return folder


def squad_on_the_hub(tree: Path, folder: Path) -> Path:
    """The same questions as parquet."""
    for name, split in {"train": "train", "dev": "validation"}.items():
        rows = [
            {
                "id": question["id"],
                "title": article["title"],
                "context": paragraph["context"],
                "question": question["question"],
                "answers": {
                    "text": [one["text"] for one in question["answers"]],
                    "answer_start": [one["answer_start"] for one in question["answers"]],
                },
            }
            for article in json.loads((tree / f"{name}-v1.1.json").read_text("utf-8"))["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        _to_parquet(rows, folder / "plain_text", split)
    return folder


def trivia(folder: Path, questions: int = 24, test: int = 6, filler: int = 30) -> Path:
    """Every question has two pages of Wikipedia and a page of the web; each fourth answer stands in none of them."""
    for name in ("qa", "evidence/wikipedia", "evidence/web"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": questions, "dev": test}.items()):
        generator, data = _generator(7, seed), []
        for number in range(count):
            pages = [f"{part} page {number} {i}.txt" for i in range(2)]
            web = f"{seed}{number}/{seed}{number}_7.txt"
            texts = [paragraph(generator, 3, filler) for _ in range(3)]
            (folder / "evidence" / "web" / web).parent.mkdir(exist_ok=True)
            for home, name, (text, _) in zip(("wikipedia", "wikipedia", "web"), (*pages, web), texts, strict=True):
                (folder / "evidence" / home / name).write_text(text, "utf-8")
            who, place, _ = texts[number % 2][1][1]
            if number % 4 == 3:
                place = "Nowhere"
            data.append(
                {
                    "Question": f"In which town, number {seed} {number}, does {who} live?",
                    "QuestionId": f"tc_{seed}_{number}",
                    "QuestionSource": "made up",
                    "Answer": {
                        "Value": place,
                        "Aliases": [place, f"The {place}-on-Sea"],
                        "NormalizedAliases": [place.lower(), f"{place.lower()} on sea"],
                        "NormalizedValue": place.lower(),
                        "Type": "WikipediaEntity",
                    },
                    "EntityPages": [{"DocSource": "TagMe", "Filename": name, "Title": name[:-4]} for name in pages],
                    "SearchResults": [{"Filename": web, "Rank": 0, "Title": "x", "Url": "x", "Description": "x"}],
                }
            )
        for domain in ("wikipedia", "web"):
            whole = {"Data": data, "Domain": domain.title(), "VerifiedEval": False, "Version": 1.0}
            (folder / "qa" / f"{domain}-{part}.json").write_text(json.dumps(whole, ensure_ascii=False), "utf-8")
    return folder


def trivia_on_the_hub(tree: Path, folder: Path, domain: str = "wikipedia") -> Path:
    """The same questions as parquet, with their evidence."""

    def columns(pages: list[dict[str, Any]], home: str, text: str) -> dict[str, list[str]]:
        names = [page["Filename"] for page in pages]
        return {
            "filename": names,
            text: [(tree / "evidence" / home / name).read_text("utf-8") for name in names],
        }

    for part, split in {"train": "train", "dev": "validation"}.items():
        rows = [
            {
                "question": one["Question"],
                "question_id": one["QuestionId"],
                "entity_pages": columns(one["EntityPages"], "wikipedia", "wiki_context"),
                "search_results": columns(one["SearchResults"], "web", "search_context"),
                "answer": {"normalized_aliases": one["Answer"]["NormalizedAliases"], "value": one["Answer"]["Value"]},
            }
            for one in json.loads((tree / "qa" / f"{domain}-{part}.json").read_text("utf-8"))["Data"]
        ]
        _to_parquet(rows, folder / f"rc.{domain}", split)
    return folder


def hop(folder: Path, questions: int = 24, test: int = 6, documents: int = 3, kind: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": questions, "dev": test}.items()):
        generator, data = _generator(3, seed), []
        for number in range(count):
            texts = [paragraph(generator, 2) for _ in range(documents)]
            name, place, _ = texts[number % documents][1][0]
            candidates = sorted({place.lower() for _, found in texts for _, place, _ in found})
            data.append(
                {
                    "id": f"WH_{part}_{number}",
                    "query": f"lives_in {name.lower()} {seed} {number}",
                    "candidates": candidates,
                    "answer": place.lower(),
                    "supports": [text for text, _ in texts],
                }
            )
        (folder / f"{part}{kind}.json").write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    return folder


def hop_on_the_hub(tree: Path, folder: Path) -> Path:
    for part, split in {"train": "train", "dev": "validation"}.items():
        _to_parquet(json.loads((tree / f"{part}.json").read_text("utf-8")), folder / "wikihop", split)
    return folder


def _to_parquet(rows: list[dict[str, Any]], folder: Path, split: str, shards: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = datasets.Dataset.from_list(rows)
    for shard in range(shards):
        made.shard(shards, shard, contiguous=True).to_parquet(folder / f"{split}-{shard:05d}-of-{shards:05d}.parquet")


def change(path: Path, *keys: Any, to: Any) -> None:
    """Sets a value deep in a JSON file, or takes it out when `to` is None."""
    whole = json.loads(path.read_text("utf-8"))
    inner = whole
    for key in keys[:-1]:
        inner = inner[key]
    if to is None:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = to
    path.write_text(json.dumps(whole), "utf-8")


def options(task: str, **values: Any) -> Any:
    return parse(f"task {task}", registry.load("tasks", task).object.options, values)


def prepared(task: str, source: Path | None, *, workers: int = 1, download: bool = False, **values: Any) -> TaskData:
    return load(registry.load("tasks", task), options(task, **values), source, workers, download)


def rows(found: TaskData, split: str) -> list[dict[str, Any]]:
    """All columns as they are stored."""
    stored: list[dict[str, Any]] = datasets.load_from_disk(str(found.folder / split)).to_list()
    return stored


def decoded(found: TaskData, ids: Any) -> str:
    return Subwords.load(found.folder / "kept" / "tokenizer.json").decode(ids)


def refusal(task: str, source: Path, **values: Any) -> str:
    """The one line with which the files are refused; nothing of them is kept."""
    with pytest.raises(AttnbenchError) as fault:
        prepared(task, source, **values)
    assert "\n" not in str(fault.value)
    assert not list(folder_of(registry.load("tasks", task), options(task, **values)).parent.glob("*.partial"))
    return str(fault.value)


def squad_of_two_kinds(folder: Path, articles: int = 60, test: int = 20) -> Path:
    """Who, or which town? In each paragraph a name and a town among other words: to be told apart by the question."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": articles, "dev": test}.items()):
        generator, data = _generator(11, seed), []
        for article in range(count):
            written = []
            for number in range(5):
                words = list(generator.choice(FILLER, 12))
                asked = {
                    "Who was there?": str(generator.choice(NAMES)),
                    "Which town was it?": str(generator.choice(PLACES)),
                }
                for answer, at in zip(asked.values(), generator.permutation(13)[:2], strict=True):
                    words.insert(int(at), answer)
                text = " ".join(words)
                qas = [
                    {"id": f"{part}-{article}-{number}-{i}", "question": question,
                     "answers": [{"text": answer, "answer_start": text.index(answer)}]}
                    for i, (question, answer) in enumerate(asked.items())
                ]  # fmt: skip
                written.append({"context": text, "qas": qas})
            data.append({"title": f"{part} {article}", "paragraphs": written})
        (folder / f"{part}-v1.1.json").write_text(json.dumps({"data": data, "version": "1.1"}), "utf-8")
    return folder


def hop_of_two_kinds(folder: Path, questions: int = 400, test: int = 100) -> Path:
    """A person, or a town? One candidate of four is of the kind the question asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": questions, "dev": test}.items()):
        generator, data = _generator(13, seed), []
        for number in range(count):
            right, wrong = (NAMES, PLACES) if number % 2 else (PLACES, NAMES)
            candidates = [str(generator.choice(right)), *map(str, generator.permutation(wrong)[:3])]
            words = " ".join(generator.permutation(FILLER)[:6])
            one: dict[str, Any] = {"id": f"{part}{number}", "query": f"{('town', 'person')[number % 2]} {words}"}
            one |= {"answer": candidates[0], "candidates": sorted(candidates)}
            data.append(one | {"supports": [" ".join(generator.choice(FILLER, 8)) for _ in range(2)]})
        (folder / f"{part}.json").write_text(json.dumps(data), "utf-8")
    return folder
