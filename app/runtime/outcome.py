"""How an activation ends: `Complete` or `Suspend`, and what a timed-out suspension hands its policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from app.wire.identity import intent_id

if TYPE_CHECKING:
    from app.runtime.context import ActivationContext


@dataclass(frozen=True)
class Complete:
    """The activation is done; `output` goes to the main output unless it is empty."""

    output: bytes = b""


@dataclass(frozen=True)
class Suspend:
    """The activation waits for a result or an approval.

    `snapshot` comes back as `ctx.snapshot` on resume, `adapter` names who wrote it, `timeout_ms`
    overrides the policy's timeout (None keeps it).
    """

    snapshot: bytes = b""
    adapter: str = ""
    timeout_ms: int | None = None


Outcome: TypeAlias = Complete | Suspend


@runtime_checkable
class Agent(Protocol):
    """Any async callable of one context."""

    async def __call__(self, ctx: ActivationContext) -> Outcome: ...


@dataclass(frozen=True)
class FallbackContext:
    """What a HITL policy sees of the suspension whose deadline passed; times in epoch milliseconds."""

    entity_key: bytes = b""
    seq: int = 0
    snapshot: bytes = b""
    kind: str = "timer"
    deadline_ms: int = 0
    fired_at_ms: int = 0
    pending_intent_ids: tuple[str, ...] = ()


def intent_id_for(entity_key: bytes, seq: int, step_index: int) -> str:
    """The id that an intent staged at this step has."""
    return intent_id(entity_key, seq, step_index)
