"""Compares the ledgers of two runs, step by step and word by word.

Steps are aligned by what they are (a call of this model, a write of this key), so that one more step is one more line
and not a shift of all that follow. Only what differs is read whole, and only as much as a page may hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final, Protocol

from app.web.messages import conversation, said
from app.web.values import Shown, show, show_pair

_MATCHABLE: Final = 600  # steps a side: the matcher is quadratic, so longer stretches are paired in their order
_LONG: Final = 20_000  # characters of one text that are compared word by word


class Outline(Protocol):
    """A stored entry without its body."""

    @property
    def position(self) -> int: ...
    @property
    def ordinal(self) -> int | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Aligned:
    """One step on either side or on both; `equal` ones say the same."""

    left: Outline | None
    right: Outline | None

    @property
    def equal(self) -> bool:
        return self.left is not None and self.right is not None and self.left.digest == self.right.digest


def align(left: Sequence[Outline], right: Sequence[Outline]) -> list[Aligned]:
    """Pair the steps of two runs in order; each step of either is in exactly one pair."""
    head = _common(left, right)
    tail = _common(left[head:][::-1], right[head:][::-1])
    middle_left, middle_right = left[head : len(left) - tail], right[head : len(right) - tail]
    pairs = [Aligned(one, other) for one, other in zip(left[:head], right[:head], strict=True)]
    pairs += _middle(middle_left, middle_right)
    ends = zip(left[len(left) - tail :], right[len(right) - tail :], strict=True)
    return pairs + [Aligned(one, other) for one, other in ends]


def _common(left: Sequence[Outline], right: Sequence[Outline]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if (one.kind, one.name, one.digest) != (other.kind, other.name, other.digest):
            break
        count += 1
    return count


def _middle(left: Sequence[Outline], right: Sequence[Outline]) -> Iterator[Aligned]:
    if max(len(left), len(right)) > _MATCHABLE:
        yield from _paired(left, right)
        return
    one, other = ([(step.kind, step.name) for step in side] for side in (left, right))
    for tag, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from map(Aligned, left[i:j], right[k:m])
        else:
            yield from _paired(left[i:j], right[k:m])


def _paired(left: Sequence[Outline], right: Sequence[Outline]) -> Iterator[Aligned]:
    """Pair by kind, in order; what finds no partner stands alone."""
    todo = list(right)
    for one in left:
        at = next((n for n, other in enumerate(todo[:50]) if other.kind == one.kind), None)
        if at is None:
            yield Aligned(one, None)
            continue
        yield from (Aligned(None, other) for other in todo[:at])
        yield Aligned(one, todo[at])
        todo = todo[at + 1 :]
    yield from (Aligned(None, other) for other in todo)


@dataclass(frozen=True, slots=True)
class EqualSteps:
    """A stretch of steps that say the same on both sides."""

    count: int
    what: str

    is_equal = True


@dataclass(frozen=True, slots=True)
class TextPair:
    """One text of a step on both sides, with differing words marked; `same` where only one needs to be shown."""

    label: str
    left: Shown
    right: Shown
    same: bool


@dataclass(frozen=True, slots=True)
class ChangedStep:
    """A step that differs: its title, where it stands on each side, and its texts."""

    title: str
    left: int | None
    right: int | None
    left_there: bool
    right_there: bool
    texts: Sequence[TextPair]

    is_equal = False


Shared = EqualSteps | ChangedStep


@dataclass(frozen=True, slots=True)
class Chapter:
    """The pairs of one page: equal stretches are counted, and `next` is the pair to go on from."""

    pairs: Sequence[Aligned]
    next: int | None

    def positions(self, side: str) -> list[int]:
        """The entries that must be read whole."""
        steps = (getattr(pair, side) for pair in self.pairs if not pair.equal)
        return [step.position for step in steps if step is not None]


def chapter(pairs: Sequence[Aligned], start: int, most: int) -> Chapter:
    """Take pairs from `start` on until `most` of them differ."""
    changed = 0
    for at in range(start, len(pairs)):
        changed += not pairs[at].equal
        if changed > most:
            return Chapter(pairs[start:at], at)
    return Chapter(pairs[start:], None)


def shared_steps(
    page: Chapter, left: Mapping[int, Mapping[str, Any]], right: Mapping[int, Mapping[str, Any]]
) -> list[Shared]:
    """Draw a page: `left` and `right` are the bodies of what differs, by position. Marking words takes its time."""
    told: list[Shared] = []
    equal: list[Aligned] = []
    for pair in page.pairs:
        if pair.equal:
            equal.append(pair)
            continue
        told += _equal(equal)
        equal = []
        told.append(_changed(pair, left, right))
    return [*told, *_equal(equal)]


def _equal(pairs: Sequence[Aligned]) -> Iterable[EqualSteps]:
    if pairs:
        kinds = dict.fromkeys(_words(pair.left) for pair in pairs if pair.left is not None)
        more = ", …" if len(kinds) > 4 else ""
        yield EqualSteps(len(pairs), ", ".join(list(kinds)[:4]) + more)


def _words(step: Outline) -> str:
    return f"{ {'model': 'model call'}.get(step.kind, step.kind) } {step.name}".strip()


def _changed(
    pair: Aligned, left: Mapping[int, Mapping[str, Any]], right: Mapping[int, Mapping[str, Any]]
) -> ChangedStep:
    one, other = pair.left, pair.right
    step = one or other
    assert step is not None, "a pair has at least one side"
    texts_left = {} if one is None else dict(_texts(one.kind, left.get(one.position, {})))
    texts_right = {} if other is None else dict(_texts(other.kind, right.get(other.position, {})))
    title = _words(step)
    if one is not None and other is not None and one.name != other.name:
        title = f"{_words(one)} → {_words(other)}"
    labels = dict.fromkeys((*texts_left, *texts_right))
    alone = one is None or other is None
    return ChangedStep(
        title,
        None if one is None else one.ordinal,
        None if other is None else other.ordinal,
        one is not None,
        other is not None,
        [_text_pair(label, texts_left.get(label), texts_right.get(label), alone) for label in labels],
    )


def _text_pair(label: str, left: str | None, right: str | None, alone: bool) -> TextPair:
    """One text on both sides; of a step that only one run made nothing is marked, for all of it is the difference."""
    if left == right:
        return TextPair(label, show(left, _LONG), show(right, _LONG), same=True)
    if alone or max(len(left or ""), len(right or "")) > _LONG:
        return TextPair(label, show(left, _LONG), show(right, _LONG), same=False)
    return TextPair(label, *show_pair(left, right), same=False)


def _texts(kind: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a step that can differ, in the order of reading."""
    match kind:
        case "model":
            yield from _request(body.get("request"))
            yield "it said", _said(body)
        case "tool":
            yield "arguments", _text(body.get("arguments"))
            yield ("error" if "error" in body else "returned"), _text(body.get("error", body.get("value")))
        case "memory" if "value" in body:
            yield "read", _text(body["value"])
        case "memory":
            yield "before", _text(body.get("before"))
            yield "after", _text(body.get("after"))
        case "intent":
            yield "arguments", _text(body.get("args"))
        case _:
            yield "step", _text(dict(body))


def _request(request: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(request, Mapping) or "messages" not in request:
        yield "request", _text(request)
        return
    messages = conversation(request["messages"], request.get("params"))
    yield "it saw", "\n".join(f"{m.role}: {_text(m.content)}" if m.role else _text(m.content) for m in messages)
    if request.get("params"):
        yield "sampling", _text(request["params"])
    if request.get("tools"):
        yield "tools offered", _text(request["tools"])


def _said(body: Mapping[str, Any]) -> str:
    decoded, response = body.get("decoded"), body.get("response")
    if isinstance(decoded, Mapping) and "text" in decoded:
        return _text(decoded["text"])
    messages = said(response)
    return _text(response) if messages is None else "\n".join(_text(message.content) for message in messages)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
