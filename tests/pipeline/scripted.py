"""An agent that does what its event says, and short ways to take turns with one key."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from app.pipeline import keyed
from app.pipeline.keyed import EMPTY, KeySettings, KeyState, Step, Stream, Timer
from app.pipeline.loop import TurnLoop
from app.runtime.config import AgentConfig
from app.runtime.context import ActivationContext
from app.runtime.model.client import LlmRequest, ServerError
from app.runtime.model.fake import FakeLLM, match_any, match_contains, raise_error, respond_with
from app.runtime.model.usage import DecodedResponse, TokenUsage
from app.runtime.outcome import Complete, Outcome, Suspend
from app.wire.records import ActivationErrorRecord, AgentEnvelope, ToolResult, TraceEvent, parse

KEY = b"card-4242"
NOW = 1_700_000_000_000
WALL = 1_750_000_000_000
TTL = 3_600_000

Operation = tuple[Any, ...]


def provider() -> FakeLLM:
    """A model that answers everything but `BOOM`."""
    return FakeLLM([(match_contains("BOOM"), raise_error(ServerError(503))), (match_any(), respond_with(b"pong"))])


def decode(data: bytes) -> DecodedResponse:
    return DecodedResponse(TokenUsage(3, 2, 6), data.decode())


async def agent(ctx: ActivationContext) -> Outcome:
    """Follow the operations of every event, or on a resume those of the suspension's snapshot."""
    script = [ctx.snapshot] if ctx.is_resume else list(ctx.events)
    for part in script:
        for name, *arguments in json.loads(part or b"[]"):
            outcome: Outcome | None = await _OPERATIONS[name](ctx, *arguments)
            if outcome is not None:
                return outcome
    return Complete()


async def _ask(ctx: ActivationContext, text: str) -> None:
    await ctx.call_model(LlmRequest(model_id="m", messages=[text], tools_schema=None, sampling_params=None))


async def _set(ctx: ActivationContext, key: str, value: str) -> None:
    ctx.memory.set(key, value.encode())


async def _append(ctx: ActivationContext, key: str, value: str) -> None:
    ctx.memory.append(key, value.encode(), max_items=3)


async def _get(ctx: ActivationContext, key: str) -> None:
    ctx.memory.get(key)


async def _save(ctx: ActivationContext, key: str, value: str) -> None:
    ctx.memory.longterm.save(key, value.encode())


async def _act(ctx: ActivationContext, name: str, ttl_ms: int | None = None) -> None:
    ctx.act(name, '{"n": 1}', ttl_ms=ttl_ms)


async def _approve(ctx: ActivationContext, ttl_ms: int | None = None) -> None:
    ctx.request_approval("{}", ttl_ms=ttl_ms)


async def _suspend(ctx: ActivationContext, timeout_ms: int | None = None, then: Any = ()) -> Outcome:
    return Suspend(json.dumps(list(then)).encode(), "script", timeout_ms)


async def _hoard(ctx: ActivationContext, size: int) -> Outcome:
    """Wait with so many bytes to remember."""
    return Suspend(b"0123456789abcdef" * (size // 16), "script", None)


async def _out(ctx: ActivationContext, text: str) -> Outcome:
    return Complete(text.encode())


async def _text(ctx: ActivationContext, text: str) -> Outcome:
    return Complete(text)  # type: ignore[arg-type]


async def _fail(ctx: ActivationContext, text: str) -> None:
    raise ValueError(text)


async def _cancel(ctx: ActivationContext) -> None:
    raise asyncio.CancelledError


async def _sleep(ctx: ActivationContext, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _spoil(ctx: ActivationContext) -> None:
    """Change what the runner delivered."""
    if ctx.resume_approval is not None:
        ctx.resume_approval.approver = "somebody else"
    if ctx.resume_result is not None:
        ctx.resume_result.payload = b"other bytes"


async def _exit(ctx: ActivationContext) -> None:
    """Leave from within a task of the agent's own."""

    async def leave() -> None:
        raise SystemExit(3)

    await asyncio.create_task(leave())


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "ask": _ask,
    "set": _set,
    "append": _append,
    "get": _get,
    "save": _save,
    "act": _act,
    "approve": _approve,
    "suspend": _suspend,
    "hoard": _hoard,
    "out": _out,
    "text": _text,
    "fail": _fail,
    "cancel": _cancel,
    "sleep": _sleep,
    "spoil": _spoil,
    "exit": _exit,
}


# Elements


def start(*operations: Operation, at: int = NOW) -> AgentEnvelope:
    return AgentEnvelope(entity_key=KEY, event_time_ms=at, external_event=json.dumps(operations).encode())


def approval(intent_id: str, at: int = NOW, approved: bool = True) -> AgentEnvelope:
    decision = AgentEnvelope.Approval(intent_id=intent_id, approved=approved, approver="ada", decided_at_ms=at)
    return AgentEnvelope(entity_key=KEY, event_time_ms=at, approval=decision)


def result(intent_id: str, at: int = NOW) -> AgentEnvelope:
    done = ToolResult(intent_id=intent_id, entity_key=KEY, status=ToolResult.OK, payload=b"done", completed_at_ms=at)
    return AgentEnvelope(entity_key=KEY, event_time_ms=at, tool_result=done)


def export(request_id: str = "inc-1", at: int = NOW) -> AgentEnvelope:
    request = AgentEnvelope.StateExportRequest(request_id=request_id)
    return AgentEnvelope(entity_key=KEY, event_time_ms=at, export_request=request)


def settings(**options: Any) -> KeySettings:
    """A pipeline around the scripted agent."""
    return KeySettings.open(agent, AgentConfig(provider, **{"decode": decode, **options}))


class Life:
    """One key from its first element on; every turn's step is kept in `steps`."""

    def __init__(self, loop: TurnLoop, state: KeyState = EMPTY, wall_ms: int = WALL, **options: Any) -> None:
        self.loop = loop
        self.state = state
        self.wall_ms = wall_ms
        self.settings = settings(**options)
        self.steps: list[Step] = []

    def take(self, envelope: AgentEnvelope) -> Step:
        return self._keep(keyed.process(KEY, self.state, envelope, self.settings, wall_ms=self.wall_ms))

    def fire(self, timer: Timer, at_ms: int | None = None) -> Step:
        """Fire a timer at the time it is set to, or at another."""
        at_ms = getattr(self.state.marks, timer) if at_ms is None else at_ms
        assert at_ms is not None, f"{timer} is not set"
        return self._keep(keyed.fire(KEY, self.state, timer, at_ms, self.settings, wall_ms=self.wall_ms))

    def _keep(self, turn: Any) -> Step:
        step: Step = self.loop.run(turn)
        self.state = step.state
        self.steps.append(step)
        return step


# What a step sent


def values(step: Step, stream: Stream) -> list[Any]:
    return [emission.value for emission in step.emissions if emission.stream is stream]


def order(step: Step) -> list[str]:
    """The streams in the order of emission, trace events by their type."""
    return [
        TraceEvent.EventType.Name(emission.value.event_type) if emission.stream is Stream.TRACES else emission.stream
        for emission in step.emissions
    ]


def dead_letters(step: Step) -> list[tuple[str, str, int]]:
    """Reason, detail and time of each dead letter, which its envelope has to repeat."""
    found = []
    for envelope in values(step, Stream.ERRORS):
        record = parse(ActivationErrorRecord, envelope.external_event)
        assert (envelope.entity_key, envelope.event_time_ms) == (record.entity_key, record.event_time_ms)
        assert record.entity_key == KEY
        found.append((record.reason, record.detail, record.event_time_ms))
    return found


def errors(step: Step) -> list[dict[str, str]]:
    """The attributes of each ERROR event."""
    return [dict(event.attributes) for event in values(step, Stream.TRACES) if event.event_type == TraceEvent.ERROR]
