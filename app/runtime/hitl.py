"""Human in the loop: how long a suspension waits and what happens when nobody answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from app.runtime.outcome import FallbackContext
from app.wire.records import ToolIntent, ToolResult

DEFAULT_HITL_TIMEOUT_MS: Final = 86_400_000
DEFAULT_INTENT_TTL_MS: Final = 3_600_000
DEFAULT_APPROVAL_CHANNEL: Final = "approval"
HITL_TIMEOUT_OUTPUT: Final = b"__hitl_timeout__"
REASON_HITL_TIMEOUT: Final = "hitl_timeout"


@dataclass(frozen=True)
class Deny:
    """Give up and put `output` on the main output as it is, empty bytes included."""

    output: bytes = HITL_TIMEOUT_OUTPUT


@dataclass(frozen=True)
class Drop:
    """Give up and send a dead letter with this reason."""

    reason: str = REASON_HITL_TIMEOUT


@dataclass(frozen=True)
class Escalate:
    """Ask again through another channel; `args_json` is sent verbatim, `timeout_ms` is the new wait."""

    tool_name: str
    args_json: str = "{}"
    timeout_ms: int = DEFAULT_HITL_TIMEOUT_MS


Route: TypeAlias = Deny | Drop | Escalate
TimeoutPolicy: TypeAlias = Callable[[FallbackContext], Route]


def deny(fallback: FallbackContext) -> Route:
    """The default policy: deny whatever was waiting."""
    return Deny()


@dataclass(frozen=True)
class HitlPolicy:
    """Waiting times in milliseconds, the default approval channel, and the policy for a passed deadline.

    Raises ValueError for a time that is not positive, a negative bound, or an empty channel.
    """

    timeout_ms: int = DEFAULT_HITL_TIMEOUT_MS
    intent_ttl_ms: int = DEFAULT_INTENT_TTL_MS
    approval_channel: str = DEFAULT_APPROVAL_CHANNEL
    max_escalations: int = 0
    on_timeout: TimeoutPolicy = deny

    def __post_init__(self) -> None:
        if self.timeout_ms <= 0:
            raise ValueError(f"HitlPolicy.timeout_ms must be above 0 milliseconds, not {self.timeout_ms}")
        if self.intent_ttl_ms <= 0:
            raise ValueError(f"HitlPolicy.intent_ttl_ms must be above 0 milliseconds, not {self.intent_ttl_ms}")
        if self.max_escalations < 0:
            raise ValueError(f"HitlPolicy.max_escalations must be 0 or more, not {self.max_escalations}")
        if not self.approval_channel:
            raise ValueError("HitlPolicy.approval_channel must name a channel, not be empty")


def intent_expired(intent: ToolIntent, now_ms: int) -> bool:
    """Whether an intent may no longer be acted on; one without an expiry never may."""
    return intent.expires_at_ms <= 0 or now_ms >= intent.expires_at_ms


def refuse_expired(intent: ToolIntent, now_ms: int) -> ToolResult | None:
    """The EXPIRED result that an effector answers an expired intent with; None while it is live."""
    if not intent_expired(intent, now_ms):
        return None
    return ToolResult(
        intent_id=intent.intent_id,
        entity_key=intent.entity_key,
        seq=intent.seq,
        status=ToolResult.EXPIRED,
        error_message=f"the intent expired at {intent.expires_at_ms} and it is {now_ms}",
        completed_at_ms=now_ms,
    )
