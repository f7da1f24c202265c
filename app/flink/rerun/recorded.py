"""What a recorded run lends to its re-run: the input, and an answer for everything that it asked.

The log has a model request before prompt, tools and parameters are added, and a model's call for tools without the
words beside it; both are completed only from what the log itself says elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.flink.inside.messages import (
    Exchange,
    Retrieval,
    ToolAnswer,
    digest,
    message_as_logged,
    query_digest,
    request_as_logged,
    tool_digest,
)
from app.flink.model import Run, RunStatus
from app.flink.records import CHAT_REQUEST, CHAT_RESPONSE, INPUT, RUN_BEGIN, TOOL_REQUEST, TOOL_RESPONSE, Record

RETRIEVAL_REQUEST: Final = "_context_retrieval_request_event"
RETRIEVAL_RESPONSE: Final = "_context_retrieval_response_event"
_SENSORY_WRITE: Final = "_sensory_write_event"
_TOOL_CONTEXT: Final = "_TOOL_CALL_CONTEXT"
# What the framework notes about a run; its events say nothing of what the agent did.
NOTES: Final = frozenset(
    {RUN_BEGIN, _SENSORY_WRITE, "_sensory_read_event", "_short_term_write_event", "_short_term_read_event"}
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One recorded model request: as the log has it, its digest, and which event asked first."""

    digest: str
    request: Mapping[str, Any]
    answered: bool


@dataclass(frozen=True)
class Recorded:
    """One run as a re-run needs it; `seq` counts the inputs of its key in what was handed in.

    `memory` is the short-term memory that it began with, where the log has it. `cut` are values that the log left out.
    """

    run: Run
    seq: int
    records: tuple[Record, ...]
    value: Any = None
    memory: list[Any] | None = None
    exchanges: tuple[Exchange, ...] = ()
    asked: tuple[Asked, ...] = ()
    tools: tuple[ToolAnswer, ...] = ()
    retrievals: tuple[Retrieval, ...] = ()
    cut: tuple[str, ...] = ()
    overlapping: bool = False
    call_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.run.key or ""

    @property
    def finished(self) -> bool:
        """Whether the log shows the end of the run: nothing asked for is missing, and it did not fail."""
        return self.run.status is RunStatus.COMPLETED and all(one.answered for one in self.asked)

    @property
    def failed(self) -> bool:
        return self.run.status is RunStatus.FAILED


def recorded(run: Run, seq: int) -> Recorded:
    """Take a run apart."""
    records = tuple(one for one in run.records if not one.life_cycle and one.type not in NOTES)
    begins = [one for one in run.records if one.type == RUN_BEGIN]
    given = next((one for one in records if one.type == INPUT), None)
    talk = _Talk(list(run.records))
    return Recorded(
        run=run,
        seq=seq,
        records=records,
        value=None if given is None else given.attributes.get("input"),
        memory=_begun(begins[0]) if begins else None,
        exchanges=tuple(talk.exchanges()),
        asked=tuple(talk.asked),
        tools=tuple(talk.tools),
        retrievals=tuple(_retrievals(records)),
        cut=tuple(_cuts(records)),
        overlapping=talk.overlapping,
        call_names=talk.names,
    )


def numbered(runs: Sequence[Run]) -> list[Recorded]:
    """Runs in order of time, each with its place among those of its job and key."""
    seen: dict[tuple[str, str | None], int] = {}
    found = []
    for run in sorted(runs, key=lambda one: (one.first_ns, one.ref)):
        whose = (run.stream.job, run.key)
        seq = seen.get(whose, 0)
        seen[whose] = seq + 1
        found.append(recorded(run, seq))
    return found


def _begun(record: Record) -> list[Any] | None:
    """Short-term memory as the log has it at the beginning; a name with dots is a path."""
    value = record.attributes.get("value")
    return to_wire(value) if isinstance(value, Mapping) and not record.truncations else None


def to_wire(fields: Mapping[str, Any]) -> list[Any]:
    """A memory given as values by path, as the child takes it."""
    root: dict[str, Any] = {}
    for path, value in fields.items():
        *way, name = path.split(".")
        here = root
        for step in way:
            held = here.setdefault(step, ["o", {}])
            if held[0] != "o":
                held = here[step] = ["o", {}]
            here = held[1]
        here[name] = ["v", value]
    return ["o", root]


def from_wire(wire: Sequence[Any], prefix: str = "") -> dict[str, Any]:
    """The reverse of `to_wire`: values by path."""
    if not wire:
        return {}
    kind, held = wire
    if kind == "v":
        return {prefix: held}
    found: dict[str, Any] = {}
    for name, inner in held.items():
        found |= from_wire(inner, f"{prefix}.{name}" if prefix else name)
    return found


def _retrievals(records: Sequence[Record]) -> Iterator[Retrieval]:
    asked = {one.event_id: one.attributes for one in records if one.type == RETRIEVAL_REQUEST}
    for one in records:
        told = asked.get(one.request_id or "") if one.type == RETRIEVAL_RESPONSE else None
        documents = one.attributes.get("documents")
        if told is not None and isinstance(documents, list):
            store = str(told.get("vector_store"))
            limit = told.get("max_results")
            key = query_digest(store, str(told.get("query")), limit if isinstance(limit, int) else 3)
            yield Retrieval(store=store, digest=key, documents=[d for d in documents if isinstance(d, dict)])


def _cuts(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        for cut in record.truncations:
            yield f"{cut.omitted} {cut.unit} of {record.type} at {cut.path}"


@dataclass(slots=True)
class _Thread:
    """One chat request and all rounds that it led to."""

    setup: str
    messages: list[dict[str, Any]]
    prompt_args: Any
    waits: str | None = None  # the tool request that it waits for
    over: bool = False


class _Talk:
    """Follows the models' talk through the records of a run."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.asked: list[Asked] = []
        self.tools: list[ToolAnswer] = []
        self.names: dict[str, str] = {}
        self.overlapping = False
        self._answers: list[tuple[int, dict[str, Any], int]] = []
        self._threads: dict[str, _Thread] = {}
        self._calls: dict[str, list[Mapping[str, Any]]] = {}
        self._last: dict[str, int] = {}
        self._said = dict(_said(records))
        hear = {
            CHAT_REQUEST: self._request,
            TOOL_REQUEST: self._tool_request,
            TOOL_RESPONSE: self._tool_response,
            CHAT_RESPONSE: self._response,
        }
        for record in records:
            if record.type in hear:
                hear[record.type](record)

    def exchanges(self) -> Iterator[Exchange]:
        """Every request, with its answer where the log has one."""
        answers = {index: (answer, failures) for index, answer, failures in self._answers}
        for index, asked in enumerate(self.asked):
            answer, failures = answers.get(index, (None, 0))
            yield Exchange(digest=asked.digest, answer=answer, failures=failures)

    def _request(self, record: Record) -> None:
        told = record.attributes
        messages = told.get("messages")
        held = [message_as_logged(one) for one in messages] if isinstance(messages, list) else []
        thread = _Thread(str(told.get("model")), held, told.get("prompt_args") or {})
        self._threads[record.event_id] = thread
        self._ask(record.event_id, thread)

    def _ask(self, of: str, thread: _Thread) -> None:
        request = request_as_logged(thread.setup, thread.messages, thread.prompt_args)
        self._last[of] = len(self.asked)
        self.asked.append(Asked(digest(request), request, False))

    def _answer(self, of: str, answer: dict[str, Any], failures: int = 0) -> None:
        index = self._last[of]
        self.asked[index] = Asked(self.asked[index].digest, self.asked[index].request, True)
        self._answers.append((index, answer, failures))

    def _tool_request(self, record: Record) -> None:
        of = self._thread_of(record)
        calls = record.attributes.get("tool_calls")
        held = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        self._calls[record.event_id] = list(held)
        for call in held:
            self.names[str(call.get("id"))] = _function(call)[0]
        if of is None:
            return
        thread = self._threads[of]
        said = next((self._said[str(call.get("id"))] for call in held if str(call.get("id")) in self._said), None)
        answer = said or message_as_logged({"role": "assistant", "tool_calls": held})
        self._answer(of, answer)
        thread.messages = [*thread.messages, answer]
        thread.waits = record.event_id

    def _thread_of(self, record: Record) -> str | None:
        """Which chat a call for tools belongs to: by lineage, else the one of its model that waits for an answer."""
        upstream = record.upstream_event_id
        if upstream in self._threads:
            return upstream
        setup = str(record.attributes.get("model"))
        waiting = [of for of, one in self._threads.items() if one.setup == setup and not one.over and not one.waits]
        self.overlapping |= len(waiting) > 1
        return waiting[0] if waiting else None

    def _tool_response(self, record: Record) -> None:
        asked = record.request_id or ""
        told = record.attributes
        responses = told.get("responses") if isinstance(told.get("responses"), dict) else {}
        external = told.get("external_ids") if isinstance(told.get("external_ids"), dict) else {}
        success, errors = _mapping(told.get("success")), _mapping(told.get("error"))
        for call in self._calls.get(asked, ()):
            name, arguments = _function(call)
            ident = str(call.get("id"))
            if responses and ident in responses:
                failed = success.get(ident) is False
                error = str(errors.get(ident) or "the call failed") if failed else None
                answer = ToolAnswer(tool=name, digest=tool_digest(name, arguments), value=responses[ident], error=error)
                self.tools.append(answer)
        of = next((of for of, one in self._threads.items() if one.waits == asked and asked), None)
        if of is None:
            return
        thread = self._threads[of]
        thread.waits = None
        for ident, value in (responses or {}).items():
            extra = {"external_id": external[ident]} if external and external.get(ident) else {}
            thread.messages = [
                *thread.messages,
                message_as_logged({"role": "tool", "content": str(value), "extra_args": extra}),
            ]
        self._ask(of, thread)

    def _response(self, record: Record) -> None:
        of = record.request_id
        response, retries = record.attributes.get("response"), record.attributes.get("retry_count")
        if of in self._threads and isinstance(response, dict):
            self._threads[of].over = True
            self._answer(of, message_as_logged(response), retries if isinstance(retries, int) else 0)


def _said(records: Sequence[Record]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole answers that call for tools, by the id of each call: memory writes hold what the request leaves out."""
    for record in records:
        context = _mapping(_mapping(record.attributes.get("value")).get(_TOOL_CONTEXT))
        if record.type != _SENSORY_WRITE or record.truncations:
            continue
        for messages in context.values():
            for message in messages if isinstance(messages, list) else ():
                told = _mapping(message)
                calls = told.get("tool_calls")
                for call in calls if isinstance(calls, list) and told.get("role") == "assistant" else ():
                    yield str(_mapping(call).get("id")), message_as_logged(message)


def _function(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = _mapping(call.get("function"))
    return str(function.get("name", "")), function.get("arguments") or {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
