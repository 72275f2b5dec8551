"""A figure as it is stored: PNG and SVG. Same data and libraries, same bytes."""

from __future__ import annotations

import base64
import io
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Pixels of a PNG per inch, and of a screen.
_DPI, _SCREEN = 150, 96


@dataclass(frozen=True)
class Picture:
    """A figure as it is stored. `of` names the part of a page that it belongs to, `name` has no suffix yet."""

    of: str
    name: str
    title: str
    alt: str
    png: bytes
    svg: bytes

    @property
    def files(self) -> list[tuple[str, bytes]]:
        return [(f"{self.name}.png", self.png), (f"{self.name}.svg", self.svg)]

    @property
    def uri(self) -> str:
        """The smaller of both forms, to stand inside a page."""
        kind, data = min(("png", self.png), ("svg+xml", self.svg), key=lambda form: len(form[1]))
        return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height on a screen."""
        width, height = struct.unpack(">II", self.png[16:24])  # of the header that every PNG begins with
        return round(width * _SCREEN / _DPI), round(height * _SCREEN / _DPI)

    @classmethod
    def of_figure(cls, figure: Figure, of: str, name: str, title: str, alt: str) -> Picture:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # computed once for both forms
        return cls(of, name, title, alt, _saved(figure, "png"), _saved(figure, "svg"))


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=_DPI, bbox_inches="tight", metadata=metadata)
    return buffer.getvalue()
