"""ListOps' tokens, the text form of Long Range Arena's files, and what an expression is worth.

The evaluator here is simple and slow on purpose: it shares nothing with the generator's and checks its labels, and
those of files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

#: The place of a token is its id, fixed for good. Id 0 is no token's, for LRA's models take it for padding. LRA's
#: pipeline writes `X` for `]` and deletes parentheses, which are there to make the trees binary.
TOKENS = ("", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")
VOCAB = len(TOKENS)
FIRST_DIGIT, FIRST_OPERATOR, CLOSE = 1, 11, 15
_IDS = {token: index for index, token in enumerate(TOKENS) if token} | {"]": CLOSE}
del _IDS["X"]  # never stands in a file

_DIGITS = {str(digit): digit for digit in range(10)}
_DEPTHS = {"(": 1, ")": -1}
_LONGEST_SHOWN = 20


def _median(values: list[int]) -> int:
    ordered, count = sorted(values), len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) // 2


_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
}


class Malformed(ValueError):
    """What is wrong with an expression, without the place."""


def parse(text: str) -> tuple[bytes, int]:
    """The ids of an expression as it stands in a file, with or without parentheses, and its value.

    Raises:
        Malformed: it is none.
    """
    words = text.split()
    _check_parentheses(words)
    plain = [word for word in words if word not in _DEPTHS]
    value = evaluate(plain)
    return bytes(map(_IDS.__getitem__, plain)), value


def _check_parentheses(words: Sequence[str]) -> None:
    depths = list(accumulate(map(_DEPTHS.get, words, repeat(0)), initial=0))
    if min(depths) < 0:
        raise Malformed("unbalanced parentheses: a ) too many")
    if depths[-1]:
        raise Malformed(f"unbalanced parentheses: {depths[-1]} of ( stay open")


def evaluate(words: Sequence[str]) -> int:
    """Value of an expression without parentheses, such as `[MAX 2 [SM 5 6 ] ]`: 0 to 9.

    MIN, MAX; MED is the median, of an even count the mean of the middle two with its half dropped; SM is the sum modulo
    10.

    Raises:
        Malformed: unknown token, unbalanced brackets, operator without argument, nothing, or more than one expression.
    """
    found: list[int] = []
    opened: list[tuple[str, list[int]]] = []
    values = found
    for word in words:
        if word in _DIGITS:
            values.append(_DIGITS[word])
        elif word in _OPERATIONS:
            opened.append((word, values))
            values = []
        elif word == "]":
            if not opened:
                raise Malformed("unbalanced brackets: a ] without operator")
            operator, around = opened.pop()
            if not values:
                raise Malformed(f"operator {operator} without argument")
            around.append(_OPERATIONS[operator](values))
            values = around
        else:
            raise Malformed(f"unknown token {word[:_LONGEST_SHOWN]!r}")
    if opened:
        raise Malformed(f"unbalanced brackets: {len(opened)} of [ stay open, the last is {opened[-1][0]}")
    if len(found) != 1:
        raise Malformed(f"{len(found)} expressions, expected one" if found else "empty expression")
    return found[0]


def apply(operator: int, digits: list[int]) -> int:
    """The value of the operator with this id over digits."""
    return _OPERATIONS[TOKENS[operator]](digits)


def text(ids: bytes) -> str:
    """An expression as LRA writes it: left-nested binary parentheses, one blank between all tokens.

    (op a1), then ((op a1) a2), and so on, at last the whole with its bracket: `( ( ( [MAX 2 ) 9 ) ] )`.
    """
    words: list[str] = []  # from the right
    arguments: list[int] = []  # so far, of each operator whose bracket was met
    for token in reversed(ids):
        if token >= FIRST_OPERATOR and token != CLOSE:
            words.append("( " * (arguments.pop() + 1) + TOKENS[token])
            continue
        word = "] )" if token == CLOSE else TOKENS[token]
        if arguments:
            arguments[-1] += 1
            word += " )"
        if token == CLOSE:
            arguments.append(0)
        words.append(word)
    return " ".join(reversed(words))
