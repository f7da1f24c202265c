"""What an incident of a live pipeline has, what it still lacks and why that matters, and how long there is time.

Pure: the evidence's roles and the attempt go in, sentences come out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

CACHE_WINDOW_MS: Final = 21_600_000
"""How long a pipeline keeps a model response for replays: six hours of event time."""


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that is not here: what, why that matters, what to do; `blocks` when nothing replays without it."""

    what: str
    why: str
    remedy: str
    blocks: bool

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "why": self.why, "remedy": self.remedy, "blocks": self.blocks}


@dataclass(frozen=True, slots=True)
class TableRow:
    """The row of the table of what replays exactly that applies to this attempt."""

    target: str
    memory: str
    responses: str
    replays: str

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target, "memory": self.memory, "responses": self.responses, "replays": self.replays,
        }  # fmt: skip


COMMITTED: Final = TableRow(
    "completed or suspended",
    "as it was after the attempt; exact where a snapshot from just before it is here",
    "in the snapshot, until later activations push them out or six hours pass",
    "exactly, as long as its requests and intents did not read memory that was overwritten since",
)
FIRST: Final = TableRow(
    "the first activation of a key, completed or suspended",
    "exact: it began with none",
    "in the snapshot, until later activations push them out or six hours pass",
    "exactly, once a snapshot holds its model responses; none from before it is needed",
)
FAILED: Final = TableRow(
    "failed",
    "exact: a failed attempt commits nothing",
    "gone: its model responses were discarded with it",
    "up to its first model call that no snapshot answers; a failure before any call reproduces wholly",
)
PENDING: Final = TableRow(
    "pending resume, not yet run",
    "exact: it is what the resume will load",
    "not there yet",
    "as a what-if: nothing was recorded that it could be compared with",
)

_FAILURES: Final = ("failed", "timed out")


@dataclass(frozen=True, slots=True)
class Window:
    """When the attempt's model responses expire from the pipeline's own state; `left_ms` is below 0 once they have.

    It counts in event time. What a snapshot holds does not expire, so an export before then is in time for ever.
    """

    closes_at_ms: int
    left_ms: int

    def as_json(self) -> dict[str, Any]:
        return {"closes_at_ms": self.closes_at_ms, "left_ms": self.left_ms}


@dataclass(frozen=True, slots=True)
class Held:
    """What is known of an incident: roles of its evidence, the attempt, and what is under way.

    `calls_model` is None where that is not known; `status` is the attempt's as recorded, `selected` whether the
    evidence selects an attempt. `emitted` counts the intents of the attempt as collected (None: not known), `followed`
    names the streams whose topics intake follows.
    """

    roles: Collection[str]
    kind: str | None
    seq: int | None
    status: str | None
    selected: bool
    problem: str | None
    calls_model: bool | None
    exporting: bool
    searching: bool
    emitted: int | None = None
    followed: Collection[str] = ()


def table_row(held: Held) -> TableRow | None:
    """Find the row that applies; None as long as the attempt is not known."""
    if held.status in _FAILURES:
        return FAILED
    if held.status is not None:
        return FIRST if _is_first(held) else COMMITTED
    return PENDING if held.selected else None


def window(clock_ms: int | None, now_ms: int) -> Window | None:
    """Compute the time left; None as long as the attempt's clock is not known."""
    if clock_ms is None:
        return None
    closes = clock_ms + CACHE_WINDOW_MS
    return Window(closes, closes - now_ms)


def is_ready(held: Held) -> bool:
    """Whether a replay can start: nothing is missing that it cannot do without."""
    return held.selected and not any(one.blocks for one in missing(held))


def missing(held: Held) -> tuple[Missing, ...]:
    """List what is not here, what blocks a replay first."""
    found = [one for one in (_traces(held), _envelope(held), _snapshot(held), _mismatch(held)) if one is not None]
    found += _comparable(held)
    return tuple(sorted(found, key=lambda one: not one.blocks))


def _traces(held: Held) -> Missing | None:
    if "traces" in held.roles:
        return None
    return Missing(
        "traces",
        "they are the record that a replay is compared with, and say on which clock the attempt ran",
        "They are searched for in the traces topic."
        if held.searching
        else "Search again, or hand in the trace stream.",
        blocks=True,
    )


def _envelope(held: Held) -> Missing | None:
    if "event" in held.roles:
        return None
    return Missing(
        "triggering envelope",
        "traces hold no payloads: only the topic that triggered the attempt has what the agent was given",
        "It is being searched for." if held.searching else "Search again, or hand in the envelope.",
        blocks=True,
    )


def _snapshot(held: Held) -> Missing | None:
    if "snapshot" in held.roles or "snapshots" in held.roles:
        return None
    # What called no model needs no responses.
    if held.calls_model is False and _is_first(held):
        return None
    remedy = "The pipeline is being asked for it." if held.exporting else "Export the key."
    return Missing(
        "snapshot",
        "it holds the model responses that the attempt consumed, and the key's memory",
        remedy,
        blocks=True,
    )


def _mismatch(held: Held) -> Missing | None:
    if held.selected or not {"traces", "event"} <= set(held.roles):
        return None
    return Missing(
        "a matching attempt",
        held.problem or "the evidence selects no attempt",
        "Look at the evidence: the envelope and the traces have to be of one attempt.",
        blocks=True,
    )


def _comparable(held: Held) -> list[Missing]:
    """What a replay can do without, but a comparison cannot; what such an attempt never sends is not missing."""
    failed = held.status in _FAILURES
    intents = not failed and held.emitted != 0
    gains = [
        ("intents", "arguments of intents that no snapshot holds pending are not compared", intents),
        ("outputs", "outputs are not compared", not failed and held.status != "suspended"),
        ("errors", "the detail of the error is not compared", failed),
    ]
    return [
        Missing(stream, why, _remedy(held, stream), blocks=False)
        for stream, why, applies in gains
        if applies and stream not in held.roles
    ]


def _remedy(held: Held, stream: str) -> str:
    if stream in held.followed:
        return "Its topic is followed and none of this key has come: it comes by itself, or there was none."
    return f"Name the topic of {stream} in hindcast.toml, or hand the stream in."


def _is_first(held: Held) -> bool:
    """Whether it began a life of its key, and so from nothing."""
    return held.kind == "start" and held.seq == 0
