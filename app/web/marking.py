"""Finds the words by which two texts differ, in bounded time whatever the texts are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import Final

# A word or a mark with the blanks before it: blanks of their own would be equal to each other everywhere.
_TOKENS: Final = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")
_MATCHABLE: Final = 1500  # tokens a side: the matcher is quadratic, so longer ones are compared by their ends
_PAIRS: Final = 30_000  # pairs of equal tokens that are matched
_CRUMB: Final = 2
_MOST: Final = 60  # pieces of one value; what comes after that many is one difference, so that a page stays small

# Whether both sides say the same, and what each of them says.
Piece = tuple[bool, str, str]


def pieces_of(a: str, b: str) -> list[Piece]:
    """Cut two texts into stretches that are equal and stretches that are not, in order; together they are the texts."""
    return _bounded(list(_joined(_together(_pieces(a, b)))))


def _bounded(pieces: list[Piece]) -> list[Piece]:
    """Take what comes after many pieces as one difference."""
    if len(pieces) <= _MOST:
        return pieces
    rest = pieces[_MOST - 1 :]
    return [*pieces[: _MOST - 1], (False, "".join(p[1] for p in rest), "".join(p[2] for p in rest))]


def _together(pieces: Iterable[Piece]) -> list[Piece]:
    """Put neighbours that are equal into one."""
    found: list[Piece] = []
    for equal, a, b in pieces:
        if equal and found and found[-1][0]:
            found[-1] = (True, found[-1][1] + a, found[-1][2] + b)
        else:
            found.append((equal, a, b))
    return found


def _joined(pieces: list[Piece]) -> Iterator[Piece]:
    """Let differences swallow the crumbs between them: two ids differ as a whole, not in all but their hyphens."""
    pending = ("", "")
    for index, (equal, a, b) in enumerate(pieces):
        crumb = equal and len(a) <= _CRUMB and 0 < index < len(pieces) - 1
        if equal and not crumb:
            if any(pending):
                yield False, *pending
                pending = ("", "")
            yield True, a, b
        else:
            pending = (pending[0] + a, pending[1] + b)
    if any(pending):
        yield False, *pending


def _pieces(a: str, b: str) -> Iterator[Piece]:
    """Cut both into stretches that are equal and stretches that are not, in order."""
    for equal, piece_a, piece_b in _matched(_TOKENS.findall(a), _TOKENS.findall(b)):
        yield from [(True, piece_a, piece_b)] if equal else _trimmed(piece_a, piece_b)


def _matched(tokens_a: list[str], tokens_b: list[str], *, lines: bool = False) -> Iterator[Piece]:
    head = _common(tokens_a, tokens_b)
    tail = _common(tokens_a[head:][::-1], tokens_b[head:][::-1])
    middle_a, middle_b = tokens_a[head : len(tokens_a) - tail], tokens_b[head : len(tokens_b) - tail]
    if head:
        yield True, "".join(tokens_a[:head]), "".join(tokens_b[:head])
    if _crowded(middle_a, middle_b):
        yield from _by_lines("".join(middle_a), "".join(middle_b), lines)
    else:
        for tag, i, j, k, m in SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_opcodes():
            piece_a, piece_b = "".join(middle_a[i:j]), "".join(middle_b[k:m])
            if tag == "replace" and lines:
                yield from _matched(_TOKENS.findall(piece_a), _TOKENS.findall(piece_b))
            else:
                yield tag == "equal", piece_a, piece_b
    if tail:
        yield True, "".join(tokens_a[len(tokens_a) - tail :]), "".join(tokens_b[len(tokens_b) - tail :])


def _crowded(a: list[str], b: list[str]) -> bool:
    """Whether matching would take long: the matcher looks at every pair of equal tokens, again and again."""
    held = Counter(b)
    return max(len(a), len(b)) > _MATCHABLE or sum(held[token] for token in a) > _PAIRS


def _by_lines(a: str, b: str, lines: bool) -> Iterator[Piece]:
    """Match whole lines first, then words inside those that differ; one long line is a difference as a whole."""
    one, other = a.splitlines(keepends=True), b.splitlines(keepends=True)
    if lines or max(len(one), len(other)) < 2:
        yield False, a, b
    else:
        yield from _matched(one, other, lines=True)


def _trimmed(a: str, b: str) -> Iterator[Piece]:
    """A difference without the blanks that both sides begin with; or those blanks alone, where only they differ."""
    blank_a, blank_b = a[: len(a) - len(a.lstrip())], b[: len(b) - len(b.lstrip())]
    rest_a, rest_b = a[len(blank_a) :], b[len(blank_b) :]
    if blank_a == blank_b and blank_a and rest_a and rest_b:
        yield True, blank_a, blank_b
        yield False, rest_a, rest_b
    elif rest_a == rest_b and rest_a:
        yield False, blank_a, blank_b
        yield True, rest_a, rest_b
    else:
        yield False, a, b


def _common(a: list[str], b: list[str]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count
