"""Small ways to run one activation in a test."""

from collections.abc import Callable, Iterable
from typing import Any

from app.runtime.activation import ActivationInput, ActivationResult, ActivationSettings, AgentHooks, activate
from app.runtime.model.client import LlmRequest
from app.runtime.model.facade import DecodedResponse, TokenUsage
from app.runtime.model.fake import FakeLLM, match_any, respond_with
from app.runtime.probe import Answer, Probe
from app.runtime.tools import ToolRegistry
from app.wire.records import ToolIntent, TraceEvent

KEY = b"card-4242"
NOW = 1_700_000_000_000


def ask(text: str, model: str = "m-1") -> LlmRequest:
    """A plain request."""
    return LlmRequest(model_id=model, messages=[text], tools_schema=None, sampling_params=None)


def decode(data: bytes) -> DecodedResponse:
    """Six tokens in all, as the provider states them: the sum would be five."""
    return DecodedResponse(TokenUsage(3, 2, 6), data.decode())


def answering(payload: bytes = b"pong") -> FakeLLM:
    """A model with one answer."""
    return FakeLLM([(match_any(), respond_with(payload))])


async def run(
    agent: Callable[..., Any],
    *,
    provider: Any = None,
    registry: ToolRegistry | None = None,
    decode: Any = None,
    probe: Probe | None = None,
    settings: dict[str, Any] | None = None,
    **attempt: Any,
) -> ActivationResult:
    """Run a start of (KEY, 0) at NOW, or whatever `attempt` says instead."""
    inp = ActivationInput(**{"entity_key": KEY, "seq": 0, "now_ms": NOW, "events": (b"event",), **attempt})
    config = ActivationSettings(**(settings or {}))
    hooks = AgentHooks(
        agent=agent,
        provider=answering() if provider is None else provider,
        registry=registry,
        decode=decode,
        config=config,
    )
    return await activate(inp, hooks, probe)


def hooks(agent: Any, **settings: Any) -> AgentHooks:
    """An agent with a one-answer model, for the functions that take hooks."""
    return AgentHooks(agent=agent, provider=answering(), config=ActivationSettings(**settings))


START = ActivationInput(entity_key=KEY, seq=0, now_ms=NOW, events=(b"event",))


def names(events: Iterable[TraceEvent]) -> list[str]:
    """The event types in order."""
    return [TraceEvent.EventType.Name(event.event_type) for event in events]


class Recorder(Probe):
    """Writes down everything that is reported, as (method, arguments)."""

    def __init__(self, answers: dict[str, Answer] | None = None) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.answers = answers or {}

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        """The reports of one kind, without its name."""
        return [report[1:] for report in self.seen if report[0] == kind]

    def memory_read(self, *report: Any) -> None:
        self.seen.append(("memory_read", *report))

    def memory_write(self, *report: Any) -> None:
        self.seen.append(("memory_write", *report))

    def model_request(self, *report: Any) -> None:
        self.seen.append(("model_request", *report))

    def model_answer(self, *report: Any) -> None:
        self.seen.append(("model_answer", *report))

    def cache_unusable(self, *report: Any) -> None:
        self.seen.append(("cache_unusable", *report))

    def tool_answer(self, name: str, arguments: Any) -> Answer | None:
        self.seen.append(("tool_answer", name, dict(arguments)))
        return self.answers.get(name)

    def tool_done(self, *report: Any) -> None:
        self.seen.append(("tool_done", *report))

    def longterm_read(self, *report: Any) -> None:
        self.seen.append(("longterm_read", *report))

    def intent(self, intent: ToolIntent) -> None:
        self.seen.append(("intent", intent.intent_id))
