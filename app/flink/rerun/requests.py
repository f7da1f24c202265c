"""A model request that nothing recorded answers: which recorded one is nearest, and what is different about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.flink.inside.messages import Call
from app.flink.rerun.rows import changes
from app.flink.rerun.sides import nameless
from app.replay.verdict import FieldPair

_WORDS: Final = 2_000  # characters of a text that are compared word by word


@dataclass(frozen=True, slots=True)
class Near:
    """The nearest recorded request, and the parts in which the new one differs."""

    request: Mapping[str, Any]
    parts: tuple[FieldPair, ...]

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"part": one.name, "recorded": one.recorded, "replayed": one.replayed, "text_diff": text_diff(one)}
            for one in self.parts
        ]


def nearest(asked: Mapping[str, Any], recorded: Sequence[Mapping[str, Any]]) -> Near | None:
    """The recorded request that differs least: in the fewest parts, then by the words of its messages."""
    candidates = [Near(one, tuple(_parts(one, asked))) for one in recorded]
    return min(candidates, key=lambda near: (len(near.parts), _distance(near.parts)), default=None)


def whole(call: Call) -> Mapping[str, Any]:
    """The whole request of a model call, in the form in which requests are compared."""
    told = call.request if isinstance(call.request, dict) else {}
    return {**told, "messages": [nameless(one) for one in told.get("messages") or ()]}


def _parts(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[FieldPair]:
    for name in dict.fromkeys((*recorded, *asked)):
        one, other = recorded.get(name), asked.get(name)
        if isinstance(one, list) and isinstance(other, list):
            yield from _members(name, one, other)
        else:
            yield from changes(name, one, other)


def _members(name: str, one: list[Any], other: list[Any]) -> Iterator[FieldPair]:
    for number in range(max(len(one), len(other))):
        left = one[number] if number < len(one) else None
        right = other[number] if number < len(other) else None
        if isinstance(left, dict) and isinstance(right, dict) and name == "messages":
            left, right = nameless(left), nameless(right)
        yield from changes(f"{name}[{number}]", left, right)


def _distance(parts: Sequence[FieldPair]) -> float:
    return sum(
        1 - difflib.SequenceMatcher(None, (one.recorded or "")[:_WORDS], (one.replayed or "")[:_WORDS]).quick_ratio()
        for one in parts
    )


def text_diff(part: FieldPair) -> list[list[str]]:
    """Words that are equal, gone or new, in order: pairs of a mark (`=`, `-`, `+`) and a text."""
    left, right = (part.recorded or "")[:_WORDS].split(" "), (part.replayed or "")[:_WORDS].split(" ")
    found: list[list[str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            found.append(["=", " ".join(left[a:b])])
            continue
        found += [["-", " ".join(left[a:b])]] if b > a else []
        found += [["+", " ".join(right[c:d])]] if d > c else []
    return found


def said(part: FieldPair) -> str:
    """One part in one line: only the words that changed, with a few around them."""
    pieces = []
    for mark, text in text_diff(part):
        if mark == "=":
            words = text.split(" ")
            pieces.append(text if len(words) <= 8 else f"{' '.join(words[:3])} … {' '.join(words[-3:])}")
        else:
            pieces.append(f"[{mark}{text}]")
    return f"{part.name}: {' '.join(pieces)}"
