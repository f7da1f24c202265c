"""Shows two values side by side so that what differs catches the eye: canonical JSON first, then marks on words.

Nothing is shown that is not in the record: JSON numbers keep their spelling, and a long equal stretch is folded with
its length, never dropped in silence.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from app.web.marking import pieces_of

LARGE: Final = 32 * 1024  # characters; beyond it a value is shown as head, size, digest and download
HEAD: Final = 1024
_FOLD: Final = 600  # an equal stretch longer than this, in characters, is folded
_CONTEXT: Final = 120
_LINE: Final = 90  # characters of JSON that a ledger shows on one line
_MARKS: Final = 10  # occurrences of emphasised words that are marked in one value
_DIFFERENT: Final = 4096  # characters of one difference that are shown


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a value. `folded` counts characters left out in its place (its text is then empty).

    `marked` draws the eye to it without saying that it differs.
    """

    text: str
    differs: bool = False
    folded: int = 0
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """One value as it goes onto the page; `spans` is None where there is no value (not recorded).

    `length` counts `unit`s. Of a `large` value only the head is here.
    """

    spans: tuple[Span, ...] | None
    length: int = 0
    is_json: bool = False
    large: bool = False
    sha256: str = ""
    unit: str = "characters"

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans or ())

    @property
    def nodes(self) -> int:
        """About how many elements its drawing takes."""
        spans = sum(span.differs or span.marked or span.folded > 0 for span in self.spans or ())
        return 1 + spans + 8 * self.large

    @property
    def multiline(self) -> bool:
        return any("\n" in span.text for span in self.spans or ()) or len(self.text) > 110


NOTHING: Final = Shown(None)


def show(value: str | None, limit: int = LARGE, line: int = 0) -> Shown:
    """One value by itself, without marks: beyond `limit` characters only its head, up to `line` as it was spelled."""
    if value is None:
        return NOTHING
    if len(value) > limit:
        return _head(value)
    pretty = None if len(value) <= line else canonical(value)
    return Shown((Span(value if pretty is None else pretty),), len(value), pretty is not None)


def show_json(value: Any, limit: int = LARGE) -> Shown:
    """A value of a ledger: text as it is, what was cut as its head, bytes that are no text as hex, else JSON."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return show(value, limit, _LINE)
    if isinstance(value, dict):
        if value.keys() == {"head", "bytes", "sha256"} and isinstance(value["head"], str):
            return _cut(value["head"], value["bytes"], value["sha256"])
        if value.keys() in ({"hex", "bytes"}, {"hex", "bytes", "sha256"}) and isinstance(value["hex"], str):
            shown = value["hex"] if len(value["hex"]) <= HEAD else value["hex"][:HEAD]
            return _cut(f"0x{shown}", value["bytes"], value.get("sha256", ""), of=len(shown) // 2)
    return show(json.dumps(value, ensure_ascii=False), limit, _LINE)


def _cut(head: str, count: int, sha256: str, of: int | None = None) -> Shown:
    """The head of a value whose rest is not here, with the size of the whole in bytes."""
    seen = len(head.encode("utf-8", "replace")) if of is None else of
    rest = (Span("", folded=count - seen),) if count > seen else ()
    return Shown((Span(head), *rest), count, large=bool(rest) or of is not None, sha256=sha256, unit="bytes")


def emphasise(shown: Shown, words: Collection[str]) -> Shown:
    """The same value with every occurrence of some words marked, so that the eye finds where a value came from."""
    if not words or shown.spans is None:
        return shown
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in sorted(words, key=len, reverse=True)))
    spans: list[Span] = []
    for span in shown.spans:
        spans += [span] if span.folded or span.differs else _emphasised(span.text, pattern)
    return replace(shown, spans=tuple(spans))


def _emphasised(text: str, pattern: re.Pattern[str]) -> Iterator[Span]:
    at = 0
    for found in islice(pattern.finditer(text), _MARKS):
        if found.start() > at:
            yield Span(text[at : found.start()])
        yield Span(found[0], marked=True)
        at = found.end()
    if at < len(text) or not text:
        yield Span(text[at:])


def show_pair(recorded: str | None, replayed: str | None) -> tuple[Shown, Shown]:
    """Two values with their differing words marked; a value that has no counterpart is marked as a whole."""
    if recorded is None or replayed is None:
        return _alone(recorded), _alone(replayed)
    left, right = canonical(recorded), canonical(replayed)
    both = left is not None and right is not None and left != right
    # Where canonical JSON is equal the bytes differ in spelling only, and that spelling is what must be shown.
    a, b = (left or "", right or "") if both else (recorded, replayed)
    if max(len(a), len(b)) > 16 * LARGE:
        return _head(recorded), _head(replayed)
    spans_a, spans_b = _mark(a, b)
    large_a, large_b = len(recorded) > LARGE, len(replayed) > LARGE
    return (
        Shown(spans_a, len(recorded), both, large_a, _digest(recorded) if large_a else ""),
        Shown(spans_b, len(replayed), both, large_b, _digest(replayed) if large_b else ""),
    )


def canonical(value: str) -> str | None:
    """A JSON object or array with sorted keys and one member a line; None for anything else.

    Numbers stay as they were written. Objects that name a key twice are not touched: sorting would hide one.
    """
    if value[:1] not in ("{", "[") or len(value) > 8 * LARGE:
        return None
    try:
        parsed = json.loads(
            value, parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_members
        )
        return "".join(_write(parsed, 0))
    except (ValueError, RecursionError):
        return None


class _Number(str):
    """A number as it was spelled."""

    __slots__ = ()


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key appears twice")
    return members


def _write(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, _Number):
        yield str(value)
    elif isinstance(value, dict) and value:
        yield from _items("{", "}", (_member(key, value[key], depth + 1) for key in sorted(value)), depth)
    elif isinstance(value, list) and value:
        yield from _items("[", "]", ("".join(_write(item, depth + 1)) for item in value), depth)
    else:
        yield json.dumps(value, ensure_ascii=False)


def _member(key: str, value: Any, depth: int) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: {''.join(_write(value, depth))}"


def _items(opening: str, closing: str, items: Iterator[str], depth: int) -> Iterator[str]:
    indent = "\n" + "  " * (depth + 1)
    yield opening + indent
    yield f",{indent}".join(items)
    yield "\n" + "  " * depth + closing


def _mark(a: str, b: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    left: list[Span] = []
    right: list[Span] = []
    for equal, piece_a, piece_b in pieces_of(a, b):
        if equal:
            left += _equal(piece_a)
            right += _equal(piece_b)
        else:
            left += _different(piece_a)
            right += _different(piece_b)
    return tuple(left), tuple(right)


def _equal(text: str) -> list[Span]:
    if len(text) <= _FOLD:
        return [Span(text)] if text else []
    return [
        Span(text[:_CONTEXT]),
        Span("", folded=len(text) - 2 * _CONTEXT),
        Span(text[-_CONTEXT:]),
    ]


def _different(text: str) -> list[Span]:
    if len(text) <= _DIFFERENT:
        return [Span(text, differs=True)] if text else []
    return [Span(text[:_DIFFERENT], differs=True), Span("", differs=True, folded=len(text) - _DIFFERENT)]


def _alone(value: str | None) -> Shown:
    """A value without counterpart: all of it is the difference."""
    shown = show(value)
    if shown.spans is None:
        return shown
    return replace(shown, spans=tuple(Span(span.text, True, span.folded) for span in shown.spans))


def _head(value: str) -> Shown:
    return Shown(
        (Span(value[:HEAD]), Span("", folded=len(value) - HEAD)), len(value), large=True, sha256=_digest(value)
    )


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
