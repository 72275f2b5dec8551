"""Books to make reports from, out of synthetic records."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from factories import make_quality, make_record

from attnbench.record import CurvePoint, Record
from attnbench.report import build
from attnbench.reporting.book import Book
from attnbench.reporting.literature import Published
from attnbench.reporting.picture import Picture
from attnbench.speed.result import SpeedResult

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg==")
#: Each would break out of some context: an element, an attribute, a comment, JSON in a script, LaTeX, mathtext.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "--></script><!--<script>",
    "{{ 7*7 }}{% raw %}",
    r"\input{x} $\frac{1}{ % & # _ ^ ~ \\[1em]",
    "&lt;b&gt; &amp;",
    "javascript:alert(1)",
)


def book(records: Sequence[Record], literature: Sequence[Published] = (), speed: Sequence[SpeedResult] = ()) -> Book:
    return Book.of(build(records), records, literature, speed)


def curve(points: int) -> list[CurvePoint]:
    return [
        CurvePoint(step=50 * n, examples=1600 * n, loss=2 / n, validation=1 - 1 / n, validation_loss=2.1 / n)
        for n in range(1, points + 1)
    ]


def grid(mechanisms: int, tasks: int, seeds: int = 3, points: int = 40, **changes: Any) -> list[Record]:
    """Every mechanism on every task, with scores that depend on both."""
    return [
        make_record(
            label=f"mech{m:03d}", mechanism=f"mech{m:03d}", task=f"task{t:02d}", seed=seed, seeds=seeds,
            test=0.3 + 0.6 * ((7 * m + 3 * t) % 11) / 11 + 0.01 * seed, options={"block_size": 32, "window": m},
            **changes,
        ).model_copy(update={"curve": curve(points)})
        for m in range(mechanisms)
        for t in range(tasks)
        for seed in range(seeds)
    ]  # fmt: skip


def hostile_record(text: str) -> Record:
    """With this text wherever a plugin, a user or a machine may put some."""
    record = make_record(
        label=text, mechanism=text, task=text, options={text: text}, task_options={text: text}, protocol=text,
        protocol_changes={text: text}, quality=make_quality(metric=text, trivial={text: 0.2}, more={text: 0.5}),
        regularizers=(text,), id="20260101T000000Z-ab",
    )  # fmt: skip
    facts = {"machine": {text: text, "load_before": 1.5}, "software": {text: text}, "code": {text: text}}
    return record.model_copy(update={"command": text, "reason": text, "started": text, **facts})


def picture(of: str, text: str = "a plot") -> Picture:
    """Not drawn: a PNG of one pixel, and an SVG that is larger."""
    return Picture(of, "name", text, text, PIXEL, b"<svg xmlns='http://www.w3.org/2000/svg'/>" + b" " * 99)


class Tree(HTMLParser):
    """Elements in order as (name, attributes, text directly inside); `errors` are tags that do not match."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.errors: list[str] = []
        self._open: list[int] = []
        self.feed(page)
        self.close()
        self.errors += [f"{self.elements[index][0]} never ends" for index in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in ("meta", "link", "input", "br", "img"):
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self.elements[self._open[-1]][0] != tag:
            self.errors.append(f"</{tag}> at {self.getpos()}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.elements[self._open[-1]][2].append(data)

    def all(self, name: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and own text of every element of this name."""
        return [(attributes, "".join(text).strip()) for tag, attributes, text in self.elements if tag == name]
