"""Recent activations: lists by filter, and look-ups by key or intent, over millions of stored attempts.

Filters are answered from the few shapes that attempts have; the attempts themselves are only walked by time.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from app.incidents.attempt_store import STRAY, shape_of
from app.incidents.columns import plain
from app.incidents.errors import IncidentError, NotFound
from app.incidents.projection import Range, Shape, intent_hash, intent_id_of, read_places
from app.incidents.store import ReadSession
from app.replay.verdict import key_text

MAX_PAGE: Final = 200

_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class EmittedIntent:
    """One intent that an attempt emitted; `kind` is `TOOL` or `APPROVAL`."""

    intent_id: str
    step: int
    tool: str
    kind: str


@dataclass(frozen=True, slots=True)
class Activation:
    """One attempt as the traces tell it. `id` is for URLs; `events` counts its distinct trace events.

    `category` is `activation`, `failure`, `orphan`, `timer`, `escalation` or `incomplete`; `status` how it ended, or
    the category where nothing says. `clock_ms` is its event time. `ranges` are where its events lie.
    """

    id: str
    pipeline: str
    entity_key: bytes
    seq: int
    clock_ms: int
    shape: Shape
    intents: tuple[EmittedIntent, ...]
    events: int
    ranges: tuple[Range, ...]

    @property
    def kind(self) -> str:
        """`start`, `resume`, or empty where the trace does not tell."""
        return self.shape.kind

    @property
    def category(self) -> str:
        return self.shape.category

    @property
    def status(self) -> str:
        return self.shape.status

    @property
    def reason(self) -> str:
        """Why it failed; empty when it did not."""
        return self.shape.reason

    @property
    def tools(self) -> tuple[str, ...]:
        """Every tool that it called, or whose intent it emitted."""
        return self.shape.tools

    @property
    def replayable(self) -> bool:
        """Whether agent code ran, so that there is something to replay."""
        return self.category in ("activation", "failure", "incomplete")

    def as_json(self) -> dict[str, Any]:
        """The object of `GET /api/v1/activations`."""
        shape = self.shape
        return {
            "id": self.id,
            "pipeline": self.pipeline,
            "entity_key": {"hex": self.entity_key.hex(), "text": key_text(self.entity_key)},
            "seq": self.seq,
            "kind": shape.kind or None,
            "category": shape.category,
            "status": shape.status,
            "clock_ms": self.clock_ms,
            "reason": shape.reason or None,
            "error_type": shape.error_type or None,
            "entry_step": shape.entry_step,
            "batch_size": shape.batch_size,
            "tools": list(shape.tools),
            "intents": [
                {"intent_id": one.intent_id, "step": one.step, "tool": one.tool, "kind": one.kind}
                for one in self.intents
            ],
            "events": self.events,
        }


@dataclass(frozen=True, slots=True)
class ActivationFilter:
    """Which activations to list; what is None does not matter. Times are the attempts' own, in epoch milliseconds.

    `since_ms` is included, `until_ms` is not.
    """

    pipeline: str | None = None
    status: str | None = None
    reason: str | None = None
    tool: str | None = None
    kind: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    entity_key: bytes | None = None
    seq: int | None = None
    among: frozenset[str] | None = None  # of these pipelines alone


@dataclass(frozen=True, slots=True)
class ActivationPage:
    """One page, latest event time first; `next` is the cursor of the following page, None on the last one."""

    items: tuple[Activation, ...]
    next: str | None

    def as_json(self) -> dict[str, Any]:
        """The body of `GET /api/v1/activations`."""
        return {"items": [item.as_json() for item in self.items], "next": self.next}


@dataclass(frozen=True, slots=True)
class Choices:
    """What can be filtered by, as it occurs."""

    pipelines: tuple[str, ...]
    statuses: tuple[str, ...]
    reasons: tuple[str, ...]
    tools: tuple[str, ...]


async def list_activations(
    session: ReadSession, chosen: ActivationFilter, *, after: str | None = None, limit: int = 50
) -> ActivationPage:
    """Read activations that pass a filter; `after` is an `ActivationPage.next`.

    Raises `IncidentError` for a cursor that is not ours.
    """
    limit = max(1, min(limit, MAX_PAGE))
    conditions, values = _conditions(chosen, after)
    shapes = await _shape_ids(session, chosen)
    if shapes is not None:
        if not shapes:
            return ActivationPage((), None)
        conditions.append("a.shape_id = ANY(CAST(:shapes AS integer[]))")
        values["shapes"] = shapes
    statement = text(_LIST.format(where=" AND ".join(conditions) or "true"))
    rows = (await session.execute(statement, values | {"limit": limit + 1})).all()
    known = await _shapes(session, {row.shape_id for row in rows})
    items = tuple(activation_of(row, *known[row.shape_id]) for row in rows[:limit])
    return ActivationPage(items, _cursor(rows[limit - 1]) if len(rows) > limit else None)


async def get_activation(session: ReadSession, activation_id: str) -> Activation:
    """Load one by its `id`. Raises `NotFound`: it may have been dropped, for it is older than what is kept."""
    match = re.fullmatch(r"([0-9a-z]{1,13})-([0-9a-z]{1,13})", activation_id)
    if match is not None:
        clock, number = (int(part, 36) for part in match.groups())
        values = {"clock": _signed(clock), "id": number}
        row = (await session.execute(_ONE, values)).one_or_none() if number < 1 << 63 else None
        if row is not None:
            return await _with_shape(session, row)
    raise NotFound("activation", activation_id)


async def find_by_intent(
    session: ReadSession, intent_id: str, *, pipeline: str | None = None, among: frozenset[str] | None = None
) -> tuple[Activation, ...]:
    """Find who emitted an intent, the latest first. Ids repeat after a key was wiped, so there can be several."""
    rows = (await session.execute(_BY_INTENT, {"hash": intent_hash(intent_id)})).all()
    found = [await _with_shape(session, row) for row in rows]
    return tuple(
        one
        for one in found
        if any(intent.intent_id == intent_id for intent in one.intents)
        and pipeline in (None, one.pipeline)
        and (among is None or one.pipeline in among)
    )


async def choices(session: ReadSession, among: frozenset[str] | None = None) -> Choices:
    """Read what there is to filter by (`among`: in these pipelines)."""
    values = {"stray": STRAY, "among": None if among is None else sorted(among)}
    row = (await session.execute(_CHOICES, values)).one()
    return Choices(*(tuple(sorted(filter(None, column or ()))) for column in row))


def parse_key(*, key: str | None = None, hex: str | None = None, base64: str | None = None) -> bytes:  # noqa: A002
    """Read an entity key given as text, hex or base64. Raises `IncidentError` unless exactly one can be read."""
    given = {name: value for name, value in (("text", key), ("hex", hex), ("base64", base64)) if value is not None}
    if len(given) != 1:
        raise IncidentError("give the key once: as text, as hex, or as base64")
    ((form, value),) = given.items()
    try:
        match form:
            case "hex":
                return bytes.fromhex(value.removeprefix("0x"))
            case "base64":
                return _base64(value)
            case _:
                return value.encode("utf-8")
    except (ValueError, binascii.Error) as error:
        raise IncidentError(f"{value!r} is not a key in {form}: {error}") from error


def _base64(value: str) -> bytes:
    plain = value.replace("-", "+").replace("_", "/")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


# Rows ----------------------------------------------------------------------------------------------------------------


def activation_of(row: Any, pipeline: str, shape: Shape) -> Activation:
    """Make an activation of a row of `attempts`."""
    owner = (bytes(row.entity_key), int(row.seq))
    events, ranges = read_places(bytes(row.places))
    intents = tuple(EmittedIntent(intent_id_of(owner, one), one.step, one.tool, one.kind) for one in shape.intents)
    name = f"{_base36(_unsigned(row.clock_ms))}-{_base36(row.id)}"
    return Activation(name, pipeline, *owner, row.clock_ms, shape, intents, events, ranges)


async def attempts_of_key(
    session: ReadSession, pipeline: str, entity_key: bytes, *, seqs: tuple[int, int] | None, near_ms: int, limit: int
) -> list[Activation]:
    """List the attempts of a key, of some seqs (both ends included), those nearest to a time first."""
    low, high = seqs if seqs is not None else (_LEAST, _MOST)
    low, high = max(low, _LEAST), min(high, _MOST)
    values = {"pipeline": pipeline, "key": entity_key, "low": low, "high": high, "near": near_ms, "limit": limit}
    rows = (await session.execute(_OF_KEY, values)).all()
    return [activation_of(row, row.pipeline, shape_of(row)) for row in rows if row.category != STRAY]


async def _with_shape(session: ReadSession, row: Any) -> Activation:
    return activation_of(row, *(await _shapes(session, {row.shape_id}))[row.shape_id])


async def _shapes(session: ReadSession, ids: set[int]) -> Mapping[int, tuple[str, Shape]]:
    """Read shapes with the pipelines that they are of, by id."""
    rows = (await session.execute(_SHAPES, {"ids": list(ids)})).all()
    return {row.id: (row.pipeline, shape_of(row)) for row in rows}


async def _shape_ids(session: ReadSession, chosen: ActivationFilter) -> list[int] | None:
    """Find the shapes that pass a filter; None where all do, for naming them would only slow the walk down."""
    conditions: list[str] = ["category <> :stray"]
    values: dict[str, Any] = {"stray": STRAY}
    for name in ("pipeline", "status", "reason", "kind"):
        value = getattr(chosen, name)
        if value is not None:
            conditions.append(f"{name} = :{name}")
            values[name] = plain(value)
    if chosen.among is not None:
        conditions.append("pipeline = ANY(CAST(:among AS text[]))")
        values["among"] = sorted(chosen.among)
    if chosen.tool is not None:
        conditions.append(":tool = ANY(tools)")
        values["tool"] = plain(chosen.tool)
    fits = " AND ".join(conditions)
    statement = text(f"SELECT array_agg(id) FILTER (WHERE {fits}), count(*) FROM shapes")  # noqa: S608  our own words
    ids, total = (await session.execute(statement, values)).one()
    return None if ids is not None and len(ids) == total else ids or []


def _conditions(chosen: ActivationFilter, after: str | None) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    values: dict[str, Any] = {}
    for condition, name, value in (
        ("a.entity_key = :key", "key", chosen.entity_key),
        ("a.seq = :seq", "seq", chosen.seq),
        ("a.clock_ms >= :since", "since", chosen.since_ms),
        ("a.clock_ms < :until", "until", chosen.until_ms),
    ):
        if value is not None:
            conditions.append(condition)
            values[name] = value
    if after is not None:
        conditions.append("a.clock_ms <= :clock AND (a.clock_ms, a.id) < (:clock, :id)")
        values["clock"], values["id"] = _position(after)
    return conditions, values


_COLUMNS: Final = "a.id, a.clock_ms, a.seq, a.shape_id, a.entity_key, a.places"
_LIST: Final = f"SELECT {_COLUMNS} FROM attempts a WHERE {{where}} ORDER BY a.clock_ms DESC, a.id DESC LIMIT :limit"  # noqa: S608
_ONE: Final = text(f"SELECT {_COLUMNS} FROM attempts a WHERE a.clock_ms = :clock AND a.id = :id")  # noqa: S608
_SHAPES: Final = text("SELECT * FROM shapes WHERE id = ANY(CAST(:ids AS integer[]))")
_BY_INTENT: Final = text(
    f"SELECT {_COLUMNS} FROM attempts a WHERE a.intent = :hash UNION ALL SELECT {_COLUMNS} FROM attempts a"  # noqa: S608
    " WHERE a.more_intents IS NOT NULL AND a.more_intents @> ARRAY[CAST(:hash AS bigint)]"
    " ORDER BY clock_ms DESC, id DESC LIMIT 100"
)
_OF_KEY: Final = text(
    f"SELECT {_COLUMNS}, s.pipeline, s.kind, s.category, s.status, s.reason, s.error_type, s.entry_step,"  # noqa: S608
    " s.batch_size, s.batch_trigger, s.plain, s.tools, s.intents FROM attempts a JOIN shapes s ON s.id = a.shape_id"
    " WHERE a.entity_key = :key AND a.seq BETWEEN :low AND :high AND s.pipeline = :pipeline"
    # Event times are whatever producers wrote, and may lie further apart than a bigint reaches.
    " ORDER BY abs(CAST(a.clock_ms AS numeric) - :near), a.id LIMIT :limit"
)
_CHOICES: Final = text(
    "SELECT array_agg(DISTINCT pipeline), array_agg(DISTINCT status), array_agg(DISTINCT reason),"
    " (SELECT array_agg(DISTINCT tool) FROM shapes, unnest(tools) tool WHERE"
    " CAST(:among AS text[]) IS NULL OR pipeline = ANY(CAST(:among AS text[]))) FROM shapes WHERE category <> :stray"
    " AND (CAST(:among AS text[]) IS NULL OR pipeline = ANY(CAST(:among AS text[])))"
)

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


def _unsigned(number: int) -> int:
    return number & (1 << 64) - 1


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _cursor(row: Any) -> str:
    return f"{_base36(_unsigned(row.clock_ms))}.{_base36(row.id)}"


def _position(cursor: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9a-z]{1,13})\.([0-9a-z]{1,13})", cursor)
    if match is None or int(match[2], 36) >= 1 << 63:
        raise IncidentError(f"{cursor!r} is not a position in the list of activations; start from its first page")
    return _signed(int(match[1], 36)), int(match[2], 36)


__all__ = [
    "Activation", "ActivationFilter", "ActivationPage", "Choices", "EmittedIntent", "choices",
    "find_by_intent", "get_activation", "list_activations", "parse_key",
]  # fmt: skip
