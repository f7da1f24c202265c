"""What a re-run produced, for people: intents with their arguments, outputs, what it waits for, what it printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.web.values import Shown, show

_MOST: Final = 20


@dataclass(frozen=True, slots=True)
class IntentView:
    """One intent that the run asked for."""

    tool: str
    intent: str
    arguments: Shown


@dataclass(frozen=True, slots=True)
class BytesView:
    """One product as text, with the size and digest of the whole."""

    text: Shown
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Products:
    """`more` counts intents and outputs that the page leaves to the JSON."""

    intents: Sequence[IntentView]
    outputs: Sequence[BytesView]
    continuation: BytesView | None
    error: tuple[str, Shown] | None
    printed: Shown | None
    more: int

    @property
    def any(self) -> bool:
        return bool(self.intents or self.outputs or self.continuation or self.error)


def products_of(replayed: Mapping[str, Any]) -> Products:
    """Read `Verdict.replayed`."""
    intents, outputs = replayed.get("intents", ()), replayed.get("outputs", ())
    error = replayed.get("error")
    continuation = replayed.get("continuation")
    printed = replayed.get("printed")
    return Products(
        [IntentView(one["tool"], one["intent_id"], show(one["args_json"])) for one in intents[:_MOST]],
        [_bytes(one) for one in outputs[:_MOST]],
        None if continuation is None else _bytes(continuation),
        None if error is None else (error["type"], show(error["detail"])),
        show(printed) if printed else None,
        max(0, len(intents) - _MOST) + max(0, len(outputs) - _MOST),
    )


def _bytes(product: Mapping[str, Any]) -> BytesView:
    return BytesView(show(product.get("text", "")), product["bytes"], product["sha256"])
