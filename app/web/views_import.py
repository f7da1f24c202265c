"""The import form: one row per role, with what is already kept and what is wrong, each in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.incidents.service import DraftFile
from app.web.problems import FileTrouble


@dataclass(frozen=True, slots=True)
class RoleRow:
    """One row of the form; `extra` rows are folded away, `needed` ones carry a mark."""

    name: str
    label: str
    hint: str
    needed: bool = False
    many: bool = True
    extra: bool = False
    accept: str = ""
    held: Sequence[DraftFile] = ()
    problems: Sequence[FileTrouble] = ()


_ROWS: Final = (
    RoleRow("snapshot", "Snapshot", "One StateSnapshot, as the export request brought it back.", needed=True),
    RoleRow("traces", "Traces", "Varint-framed TraceEvents. Order and duplicates do not matter.", needed=True),
    RoleRow("event", "Event", "The AgentEnvelope that triggered the activation.", needed=True),
    RoleRow("bundle", "Or a bundle", "A bundle.zip holds everything; import it alone.", many=False, accept=".zip"),
    RoleRow("snapshots", "Snapshots", "Framed StateSnapshots: states before and after.", extra=True),
    RoleRow("events", "Events", "Framed AgentEnvelopes: what came before and after.", extra=True),
    RoleRow("intents", "Intents", "Framed ToolIntents: lets arguments be compared.", extra=True),
    RoleRow("outputs", "Outputs", "Framed outputs: lets outputs be compared.", extra=True),
    RoleRow("errors", "Errors", "Framed dead letters: lets error details be compared.", extra=True),
    RoleRow("event-log", "Event log", "Lines of one run of Flink Agents; whole logs go to Event logs.", extra=True),
)


def role_rows(held: Sequence[DraftFile], troubles: Sequence[FileTrouble]) -> list[RoleRow]:
    """All rows, with kept files and problems put where they belong."""
    return [
        RoleRow(
            row.name,
            row.label,
            row.hint,
            row.needed,
            row.many,
            row.extra,
            row.accept,
            [file for file in held if file.role == row.name],
            [trouble for trouble in troubles if trouble.role == row.name],
        )
        for row in _ROWS
    ]


def stray(troubles: Sequence[FileTrouble]) -> list[FileTrouble]:
    """Problems that belong to no row of the form."""
    placed = {row.name for row in _ROWS} | {"seq"}
    return [trouble for trouble in troubles if trouble.role not in placed]
