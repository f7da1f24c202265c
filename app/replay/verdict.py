"""The verdict as data: every text, page and exit code is a rendering of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from app.replay.events import Event

SCHEMA_VERSION: Final = 1


class Outcome(StrEnum):
    """What a replay can find; each has one exit code."""

    REPRODUCED = "reproduced"
    DIVERGED = "diverged"
    UNUSABLE = "unusable"
    IRREPRODUCIBLE = "irreproducible"
    WHAT_IF = "what-if"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES: Final = {
    Outcome.REPRODUCED: 0,
    Outcome.DIVERGED: 1,
    Outcome.UNUSABLE: 2,
    Outcome.IRREPRODUCIBLE: 3,
    Outcome.WHAT_IF: 4,
}

EXIT_INTERNAL: Final = 70


class RowState(StrEnum):
    """How one aligned row stands."""

    EQUAL = "equal"
    NORMALISED = "normalised"
    CHANGED = "changed"
    RECORDED_ONLY = "recorded-only"
    REPLAYED_ONLY = "replayed-only"


class FieldState(StrEnum):
    """How one field of a row stands; a field that one side lacks is `changed`."""

    EQUAL = "equal"
    NORMALISED = "normalised"
    CHANGED = "changed"


class FieldPair(NamedTuple):
    """One field on both sides; None where a side does not have it."""

    name: str
    recorded: str | None
    replayed: str | None
    state: FieldState


class Row(NamedTuple):
    """One line of the aligned timeline.

    `fields` holds what is not equal, in a stable order. `cause` is the ordinal of the row this one
    follows from, when its differences are nothing but consequences (shifted steps and ids).
    """

    ordinal: int
    state: RowState
    surface: str
    recorded: Event | None
    replayed: Event | None
    fields: tuple[FieldPair, ...] = ()
    cause: int | None = None

    @property
    def differs(self) -> bool:
        return self.state not in (RowState.EQUAL, RowState.NORMALISED)

    @property
    def event(self) -> Event:
        """The event that names the row: the recorded one where there is one."""
        event = self.recorded or self.replayed
        assert event is not None, "a row has at least one side"
        return event


class SurfaceState(StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Surface:
    """One thing that a re-run can be compared on: compared or not, and why not."""

    name: str
    state: SurfaceState
    detail: str = ""

    @property
    def compared(self) -> bool:
        return self.state is not SurfaceState.NOT_COMPARED


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, or one whole event, that differs; `kind` is changed, missing, extra or consequence."""

    ordinal: int
    surface: str
    event_type: str
    label: str
    span_id: str
    step_index: int | None
    field: str
    recorded: str | None
    replayed: str | None
    kind: str
    cause: int | None = None

    def as_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["class"] = data.pop("kind")
        return data


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a verdict is not a comparison: a stable code, what happened, and what to do about it."""

    code: str
    text: str
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """The attempt a verdict is about. Times are epoch milliseconds."""

    entity_key: bytes
    seq: int
    kind: str
    clock_ms: int
    entry_step: int
    trace_id: str
    status: str | None = None  # as recorded; None for what has not run
    batch_size: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "entity_key": key_json(self.entity_key),
            "seq": self.seq,
            "kind": self.kind,
            "clock_ms": self.clock_ms,
            "entry_step": self.entry_step,
            "trace_id": self.trace_id,
            "status": self.status,
            "batch_size": self.batch_size,
        }


@dataclass(frozen=True)
class Verdict:
    """What a replay found; `headline` is one plain sentence for a person.

    `served` says where each answer came from, with counts; `confinement` how the agent was held;
    `digests` names the inputs and products by sha256; `plan` says what the re-run was fed; `reads` are memory
    reads that its state cannot vouch for; `code` is which build ran, in what, and what of that is suspect.
    """

    outcome: Outcome
    headline: str
    reason: Reason | None = None
    attempt: AttemptRef | None = None
    surfaces: tuple[Surface, ...] = ()
    differences: tuple[Difference, ...] = ()
    normalised: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    first_divergence: int | None = None
    served: Mapping[str, Any] = field(default_factory=dict)
    driver: Mapping[str, Any] = field(default_factory=dict)
    confinement: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    replayed: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    code: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return self.outcome.exit_code

    def as_json(self) -> dict[str, Any]:
        """The one JSON object that the command prints and the API serves."""
        return {
            "schema": SCHEMA_VERSION,
            "verdict": str(self.outcome),
            "exit_code": self.exit_code,
            "headline": self.headline,
            "reason": None if self.reason is None else asdict(self.reason),
            "attempt": None if self.attempt is None else self.attempt.as_json(),
            "surfaces": [
                {"name": s.name, "compared": s.compared, "state": str(s.state), "detail": s.detail}
                for s in self.surfaces
            ],
            "counts": dict(self.counts),
            "first_divergence": self.first_divergence,
            "differences": [d.as_json() for d in self.differences],
            "normalised": [dict(n) for n in self.normalised],
            "served": dict(self.served),
            "driver": dict(self.driver),
            "code": dict(self.code),
            "confinement": dict(self.confinement),
            "digests": dict(self.digests),
            "plan": dict(self.plan),
            "replayed": dict(self.replayed),
            "reads": [dict(read) for read in self.reads],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One step of a re-run (see `ledger`) and the ordinal of the row that it explains, None where there is none."""

    ordinal: int | None
    kind: str
    body: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"ordinal": self.ordinal, "kind": self.kind, **self.body}


@dataclass(frozen=True)
class Report:
    """A verdict, the aligned timeline it rests on (empty when nothing could be compared), and the run's ledger."""

    verdict: Verdict
    rows: tuple[Row, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()


def key_text(key: bytes) -> str | None:
    """A key as text, when it is printable UTF-8; else None."""
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def key_json(key: bytes) -> dict[str, str | None]:
    return {"hex": key.hex(), "text": key_text(key)}
