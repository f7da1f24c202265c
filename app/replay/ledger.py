"""The ledger of a re-run: what the model saw, what it said, what the agent did with it, step by step.

Written in the child as JSON lines of bounded size, attached to the timeline outside. Kinds of entries:

* `model`: step, cache_key, from_cache, request (model, messages, tools, params), response; outside also `decoded`
* `decoded`: cache_key, and what the decode hook makes of that response: text and tokens, or error
* `tool`: step, tool, arguments, value or error, outcome
* `memory`: operation, key, and value (a read) or before and after (a write)
* `intent`: step, intent_id, tool, kind, args
* `cut`: how many entries did not fit

A value too long for what is left of the bound is replaced by its head, size and sha256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.replay.verdict import LedgerEntry, Row

DEFAULT_BYTES: Final = 8 * 1024 * 1024
HEAD: Final = 1_000
LEAF: Final = 16_000
LONG: Final = 256 * 1024


class Ledger:
    """Collects entries up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._lines: list[str] = []
        self._cut = 0

    def add(self, kind: str, *, request: str | None = None, **fields: Any) -> None:
        """Add one entry; long values are shortened, and what does not fit at all is counted.

        `request` is JSON already, and is taken as it is written.
        """
        line = _line(kind, fields, request)
        if len(line) > min(self._left, LONG):
            short = {name: shortened(value) for name, value in fields.items()}
            line = _line(kind, short, None if request is None else _encode(_cut(request)))
        if len(line) > self._left:
            self._cut += 1
            return
        self._left -= len(line)
        self._lines.append(line)

    def dump(self) -> bytes:
        """All entries as JSON lines, ending with how many were cut."""
        lines = [*self._lines, _line("cut", {"entries": self._cut})] if self._cut else self._lines
        return "".join(lines).encode("utf-8", "backslashreplace")


def _line(kind: str, fields: Mapping[str, Any], request: str | None = None) -> str:
    try:
        body = _encode({"kind": kind, **fields})
    except (TypeError, ValueError, RecursionError):  # keys that are no text, a value that holds itself
        body = _encode({"kind": kind, **{name: _jsonable(value) for name, value in fields.items()}})
    return f"{body}\n" if request is None else f'{body[:-1]}, "request": {request}}}\n'


def _rendered(value: object) -> str:
    """A value that JSON cannot hold, as what Python says of it; never an exception."""
    try:
        return repr(value)[:LONG]
    except Exception:  # noqa: BLE001 - an agent's own __repr__ may raise anything
        return f"<{type(value).__name__} that cannot be shown>"


def _jsonable(value: Any) -> Any:
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError):
        return _rendered(value)
    return value


# Made once: json.dumps would make a new encoder for every line.
_encode: Final = json.JSONEncoder(ensure_ascii=False, default=_rendered).encode


def shortened(value: Any, longest: int = HEAD) -> Any:
    """The value itself when it is short, else its head, size and digest."""
    text = value if isinstance(value, str) else _encode(_jsonable(value))
    if len(text) <= longest:
        return value
    data = text.encode("utf-8", "backslashreplace")
    return {"head": text[:longest], "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _cut(request: str) -> Any:
    """A long request with its long texts shortened one by one, so that a person still sees who said what."""
    try:
        for longest in (LEAF, HEAD):
            cut = _leaves_cut(json.loads(request), longest)
            if len(_encode(cut)) <= LONG // 2:
                return cut
    except RecursionError:
        pass
    return shortened(request)


def _leaves_cut(value: Any, longest: int) -> Any:
    if isinstance(value, dict):
        return {name: _leaves_cut(item, longest) for name, item in value.items()}
    if isinstance(value, list):
        return [_leaves_cut(item, longest) for item in value]
    return shortened(value, longest) if isinstance(value, str) else value


def readable(value: bytes | None) -> Any:
    """Bytes as text where they are text, else as hex (long ones as their head, size and digest); None stays None."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        told = {"hex": value[:HEAD].hex(), "bytes": len(value)}
        return told if len(value) <= HEAD else {**told, "sha256": hashlib.sha256(value).hexdigest()}


def memory_value(encoded: bytes | None) -> Any:
    """An encoded memory entry for a person: a scalar as text, a ring as a list."""
    if not encoded:
        return None
    if encoded[:1] == b"\x00":
        return readable(encoded[1:])
    items, offset = [], 1
    while offset + 4 <= len(encoded):
        length = int.from_bytes(encoded[offset : offset + 4], "big")
        items.append(readable(encoded[offset + 4 : offset + 4 + length]))
        offset += 4 + length
    return items


def attach(data: bytes, rows: Sequence[Row]) -> tuple[LedgerEntry, ...]:
    """Read a ledger and say which row each entry explains.

    Model calls, tools and intents have rows of their own; memory accesses go to the row that follows them.
    """
    bodies = _bodies(data)
    places = _places(bodies, rows)
    last = rows[-1].ordinal if rows else None
    entries: list[LedgerEntry] = []
    following: int | None = last
    for body, place in zip(reversed(bodies), reversed(places), strict=True):
        kind = body.pop("kind")
        if kind == "memory":
            entries.append(LedgerEntry(following, kind, body))
            continue
        entries.append(LedgerEntry(place, kind, body))
        if place is not None:
            following = place
    entries.reverse()
    return tuple(entries)


def _bodies(data: bytes) -> list[dict[str, Any]]:
    """The entries as written, each decoded response put where its call is."""
    bodies: list[dict[str, Any]] = json.loads(b"[" + b",".join(data.splitlines()) + b"]")
    decoded = {body["cache_key"]: body for body in bodies if body["kind"] == "decoded"}
    for body in bodies:
        if body["kind"] == "model" and body["cache_key"] in decoded:
            said = decoded[body["cache_key"]]
            body["decoded"] = {name: said[name] for name in ("text", "tokens", "error") if name in said}
    return [body for body in bodies if body["kind"] != "decoded"]


def _places(bodies: Iterable[Mapping[str, Any]], rows: Sequence[Row]) -> list[int | None]:
    by_step: dict[tuple[str, int | None], list[int]] = {}
    tools: list[int] = []
    for row in rows:
        event = row.replayed
        if event is None:
            continue
        if event.type == "TOOL_CALL":
            tools.append(row.ordinal)
        else:
            by_step.setdefault((event.type, event.step), []).append(row.ordinal)
    places: list[int | None] = []
    for body in bodies:
        kind, step = body["kind"], body.get("step")
        if kind == "tool":
            staged = body.get("outcome") in ("executed", "supplied")
            places.append(tools.pop(0) if staged and tools else None)
        elif kind in ("model", "intent"):
            found = by_step.get(("LLM_CALL" if kind == "model" else "INTENT_EMITTED", step), [])
            places.append((found.pop(0) if len(found) > 1 else found[0]) if found else None)
        else:
            places.append(None)
    return places
