"""The state of one input's run that everything contained writes to: its events, its calls, and whether it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from app.flink.inside.messages import (
    Call,
    Ending,
    Exchange,
    Handling,
    Input,
    Outcome,
    Request,
    Sent,
    ToolAnswer,
    canonical,
)
from app.flink.inside.stops import Stopped

_CALLS: Final = 10_000
_EVENTS: Final = 10_000
_DEFAULT: Final = Handling()


@dataclass(slots=True)
class Frame:
    """A model call under way: which set-up, and its request as the log would have it."""

    setup: str
    digest: str
    request: dict[str, Any]
    processed: bool
    asked: int = 0
    answer: dict[str, Any] | None = None


@dataclass(slots=True)
class Run:
    """One input at work; `at` is the event that is being handled and `action` by what."""

    request: Request
    given: Input
    sent: list[Sent] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    queue: deque[tuple[int, Any]] = field(default_factory=deque)
    stopped: Stopped | None = None
    at: int | None = None
    action: str | None = None
    frame: Frame | None = None
    builtin: bool = False
    _exchanges: dict[str, deque[Exchange]] = field(default_factory=dict)
    _tools: dict[str, deque[ToolAnswer]] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    _documents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for exchange in self.given.exchanges:
            self._exchanges.setdefault(exchange.digest, deque()).append(exchange)
        for answer in self.given.tools:
            self._tools.setdefault(answer.digest, deque()).append(answer)
        self._documents = {one.digest: one.documents for one in self.given.retrievals}

    def handling(self, kind: str, name: str) -> Handling:
        """How a resource is to be treated: its own line, its type's, or the default."""
        told = self.request.handling
        return told.get(f"{kind}:{name}") or told.get(kind) or _DEFAULT

    def send(self, event: Any, told: dict[str, Any]) -> None:
        """Queue an event that an action sent; `told` are its attributes as JSON."""
        self.check()
        if len(self.sent) >= _EVENTS:
            raise self.stop(Ending.UNSUPPORTED, f"one input led to more than {_EVENTS} events")
        self.sent.append(Sent(type=event.type, attributes=told, parent=self.at, action=self.action))
        self.queue.append((len(self.sent) - 1, event))

    def note(self, kind: str, name: str, outcome: Outcome, **more: Any) -> None:
        """Write a call down."""
        if len(self.calls) >= _CALLS:
            raise self.stop(Ending.UNSUPPORTED, f"one input led to more than {_CALLS} calls")
        direct = more.pop("direct", not self.builtin)
        where = {"event": self.at, "action": self.action, "sent": len(self.sent), "direct": direct}
        self.calls.append(Call(kind=kind, name=name, outcome=outcome, **where, **more))

    def stop(self, ending: Ending, detail: str) -> Stopped:
        """The end of the run, to be raised; whatever agent code makes of it, nothing that comes after counts."""
        if self.stopped is None:
            self.stopped = Stopped(ending, detail)
        return self.stopped

    def check(self) -> None:
        """Go no further where the run is over."""
        if self.stopped is not None:
            raise self.stopped

    def unsupported(self, what: str) -> Stopped:
        """The end of the run, to be raised: by name, what the engine cannot do."""
        return self.stop(Ending.UNSUPPORTED, f"{what} cannot be re-run here")

    @contextmanager
    def asking(self, frame: Frame) -> Iterator[Frame]:
        """Keep in mind which request the connection is asked for."""
        before, self.frame = self.frame, frame
        try:
            yield frame
        finally:
            self.frame = before

    def exchange(self, digest: str) -> Exchange | None:
        """The recorded exchange of a request; of equal requests each once, in order, the last one again."""
        held = self._exchanges.get(digest)
        if not held:
            return None
        found = held[0]
        tried = self._failures.get(id(found), 0)
        if tried < found.failures:
            self._failures[id(found)] = tried + 1
            return found.model_copy(update={"answer": None, "failures": found.failures - tried})
        if len(held) > 1:
            held.popleft()
        return found.model_copy(update={"failures": 0})

    def tool_answer(self, digest: str) -> ToolAnswer | None:
        """The recorded answer of a tool call; of equal calls each once, in order, the last one again."""
        held = self._tools.get(digest)
        if not held:
            return None
        return held.popleft() if len(held) > 1 else held[0]

    def documents(self, digest: str) -> list[dict[str, Any]] | None:
        """What a vector store gave for a query."""
        return self._documents.get(digest)

    def execute(self, kind: str, name: str, told: Any, function: Callable[[], Any]) -> Any:
        """Call something for real, inside the sandbox, and write it down."""
        self.check()
        try:
            value = function()
        except Exception as error:
            self.note(kind, name, Outcome.EXECUTED, request=told, detail=f"{type(error).__name__}: {error}")
            raise
        self.check()
        self.note(kind, name, Outcome.EXECUTED, request=told, value=plain(value))
        return value


def plain(value: Any) -> Any:
    """A value as JSON would have it; models as their fields, everything else that is no JSON as text."""
    import json

    return json.loads(canonical(_dumped(value)))


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): _dumped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_dumped(inner) for inner in value]
    return value
