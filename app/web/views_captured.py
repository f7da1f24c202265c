"""One captured model response as its page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.incidents.service import Captured
from app.web.messages import said
from app.web.values import Shown, show, show_json
from app.web.views_story import Said


@dataclass(frozen=True, slots=True)
class CapturedView:
    """A snapshot's copy of a response: its bytes as text or hex, and what a known shape of it says."""

    source: str
    counter: int
    created_ms: int
    size: int | None
    digest: str
    sound: bool
    text: Shown | None
    said: Sequence[Said]

    @classmethod
    def of(cls, found: Captured) -> CapturedView:
        data = found.response
        text = None if data is None else _text(data)
        messages = said(data.decode("utf-8", "replace")) if data is not None and len(data) < 1_000_000 else None
        return cls(
            found.source,
            found.counter,
            found.created_ms,
            None if data is None else len(data),
            found.digest,
            found.sound,
            text,
            [Said(message.role, show_json(message.content)) for message in messages or ()],
        )


def _text(data: bytes) -> Shown:
    """Text where it is text; else hex, of long ones the head."""
    try:
        return show(data.decode("utf-8"))
    except UnicodeDecodeError:
        return show_json({"hex": data[:1000].hex(), "bytes": len(data), "sha256": ""})
