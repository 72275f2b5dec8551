"""Where the aliases of an answer stand in a text: the distant supervision of TriviaQA (Joshi et al. 2017, section 4).

A place counts when its text, after the official normalisation, equals an alias. Texts are compared atom by atom: a run
of letters and digits, or one other character that the normalisation keeps; articles and what becomes a blank part them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .official import BLANKS, triviaqa

_ATOM = re.compile(rf"[^\W_]+|[^\s{re.escape(BLANKS)}]")
_ARTICLES = frozenset({"a", "an", "the"})


class Aliases:
    """Aliases of one answer, ready to be looked for."""

    def __init__(self, aliases: Iterable[str]):
        self._wanted = {triviaqa(alias) for alias in aliases} - {""}
        self._by_first: dict[str, list[tuple[str, ...]]] = {}
        for alias in sorted(self._wanted):
            atoms = tuple(atom for atom in _ATOM.findall(alias) if atom not in _ARTICLES)
            if atoms:
                self._by_first.setdefault(atoms[0], []).append(atoms)

    def places(self, text: str) -> list[tuple[int, int]]:
        """First character and the one behind the last of each place, in order; they may overlap."""
        return sorted(set(self._found(text)))

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        lowered = text.lower()
        if len(lowered) != len(text):  # a few capitals become two characters
            lowered = "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)
        matches = [match for match in _ATOM.finditer(lowered) if match.group() not in _ARTICLES]
        atoms = [match.group() for match in matches]
        for index, atom in enumerate(atoms):
            for wanted in self._by_first.get(atom, ()):
                stop = index + len(wanted)
                if tuple(atoms[index:stop]) == wanted:
                    begin, end = matches[index].start(), matches[stop - 1].end()
                    if triviaqa(text[begin:end]) in self._wanted:
                        yield begin, end
