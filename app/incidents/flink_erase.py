"""Taking a key out of what event logs left: its runs, lines of no run that hold it, and the state of placing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import text

from app.incidents import purge_sql as sql
from app.incidents.columns import dumps
from app.incidents.errors import IncidentError
from app.incidents.store import ReadSession, WriteSession

_SHORTEST: Final = 4  # a key of fewer characters is looked for where keys stand alone: it is in too many words


async def erase_logged(session: WriteSession, key: str) -> dict[str, int]:
    """Delete what event logs told of a key; counts by table. Raises `IncidentError` where the role may not."""
    if not await may_change(session):
        raise IncidentError(
            "the role of retention may not change flink_logs yet, where a key stands while its runs are under way;"
            " run `hindcast migrate`, and erase again"
        )
    return {**await sql.delete_flink(session, key), "flink_logs": await _forget(session, key)}


async def may_change(session: ReadSession) -> bool:
    """Whether this session's role may read what is known of logs, and take keys out of it."""
    return bool((await session.execute(_MAY)).scalar_one())


async def _forget(session: WriteSession, key: str) -> int:
    """Take the runs of a key out of the states of all logs; returns in how many logs it stood."""
    changed = 0
    for ident in list((await session.execute(_WITH_STATE)).scalars()):
        state = (await session.execute(_STATE, {"id": ident})).scalar_one()
        kept = [_without(stream, key) for stream in state]
        if kept != state:
            await session.execute(_KEEP, {"id": ident, "state": dumps(kept)})
            changed += 1
    return changed


def _without(stream: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One stream's state without the runs that are of a key, or say it (`app.flink.placing` has the form)."""
    parts = {name: list(_others(stream[name], key)) for name in ("nested", "lineage") if name in stream}
    return {**stream, **parts}


def _others(entries: Sequence[Any], key: str) -> Iterator[Any]:
    for entry in entries:
        is_of = isinstance(entry, Mapping) and entry.get("key") == key
        if not is_of and not (len(key) >= _SHORTEST and key in json.dumps(entry, ensure_ascii=False)):
            yield entry


_MAY: Final = text(
    "SELECT has_column_privilege('flink_logs', 'state', 'SELECT') AND"
    " has_column_privilege('flink_logs', 'state', 'UPDATE')"
)
_WITH_STATE: Final = text("SELECT id FROM flink_logs WHERE length(CAST(state AS text)) > 2 ORDER BY id")
_STATE: Final = text("SELECT state FROM flink_logs WHERE id = :id FOR UPDATE")
_KEEP: Final = text("UPDATE flink_logs SET state = CAST(:state AS json) WHERE id = :id")
