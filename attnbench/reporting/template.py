"""Pages from templates: all text is escaped, and the policy of a page lets in its own style and script only."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any

from attnbench.tables import visible

if TYPE_CHECKING:
    from markupsafe import Markup


def render(template: str, script: str | None = None, **values: Any) -> str:
    """A page with the common style, and the script of that file if there is one. Text is shown on one line, without
    characters that show nothing. A template writes `uri(picture)` for the source of an image.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("attnbench.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    parts = {"style": _asset("page.css")} | ({"script": _asset(script)} if script else {})
    return environment.get_template(template).render(
        uri=lambda picture: plain(picture.uri),  # of letters that base64 has
        policy="; ".join(_policy(parts)),
        **{name: plain(text) for name, text in parts.items()},
        **values,
    )


def plain(text: str) -> Markup:
    """Text that goes into the page as it is."""
    from markupsafe import Markup

    return Markup(text)


def _asset(name: str) -> str:
    return resources.files("attnbench.reporting").joinpath("templates", name).read_text("utf-8")


def _policy(parts: dict[str, str]) -> Iterator[str]:
    """Of the content security policy: this one style and this one script, and nothing from anywhere."""
    yield "default-src 'none'"
    for kind, text in parts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        yield f"{kind}-src 'sha256-{digest}'"
    yield from ("img-src data:", "base-uri 'none'", "form-action 'none'")
