"""Watch one re-run: what it asked, what it was served, which memory it read, which tools it ran."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from app.replay import refusals
from app.replay.ledger import Ledger, memory_value, readable
from app.replay.rerun_pb2 import (
    CacheMiss,
    MemoryRead,
    RerunRequest,
    RerunResult,
    ToolRun,
)
from app.runtime.probe import Answer, Probe
from app.wire import identity

TOOL_LIMIT: Final = 10_000

_OPERATIONS: Final[dict[str, MemoryRead.Operation]] = {
    "get": MemoryRead.GET,
    "ring": MemoryRead.RING,
    "keys": MemoryRead.KEYS,
    "entry_size": MemoryRead.ENTRY_SIZE,
    "size_bytes": MemoryRead.SIZE_BYTES,
    "kind": MemoryRead.KIND,
}

_MISS_REASONS: Final[dict[str, CacheMiss.Reason]] = {
    "digest_only": CacheMiss.DIGEST_ONLY,
    "expired": CacheMiss.EXPIRED,
}

_CONFINED_ERRNOS: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENETUNREACH, errno.ENETDOWN, errno.EROFS})


class Recorder(Probe):
    """Writes what it sees into a RerunResult."""

    def __init__(self, request: RerunRequest, result: RerunResult, decode: Callable[[bytes], Any] | None) -> None:
        self._result = result
        self._decode = decode
        self._responses: dict[str, bytes] = {}
        self._ledger = Ledger(request.ledger_bytes) if request.ledger_bytes else None
        self._supplied = {(answer.tool, answer.args_json): answer.value_json for answer in request.tool_answers}
        self._own: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._unusable: dict[str, str] = {}
        self._requests: dict[str, tuple[str, str]] = {}
        self._steps: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any] | None] = set()
        self._arguments = ""
        self._refused = 0

    def memory_read(self, operation: str, key: str, value: object) -> None:
        if self._ledger is not None and operation != "kind":
            self._ledger.add("memory", operation=operation, key=key, value=_shown(value))
        if (operation, key) in self._seen:
            return
        self._seen.add((operation, key))
        self._result.reads.append(
            MemoryRead(
                operation=_OPERATIONS[operation],
                key=encodable(key),
                present=value is not None and value != (),
                own_write=key in self._own,
            )
        )

    def memory_write(self, operation: str, key: str, before: bytes | None, after: bytes | None) -> None:
        if self._ledger is not None:
            self._ledger.add(
                "memory", operation=operation, key=key, before=memory_value(before), after=memory_value(after)
            )
        # An append keeps what was there, so the value stays the earlier one's in part.
        if operation in ("set", "delete") and key not in self._own:
            self._own.add(key)
            self._result.overwritten.append(encodable(key))

    def model_request(self, request: Any, cache_key: str, material: str, step_index: int) -> None:
        self._requests[cache_key] = (str(request.model_id), material)
        self._steps[cache_key] = step_index
        self._tasks.add(asyncio.current_task())
        self._result.concurrent = len(self._tasks) > 1

    def serving_seen(self, what: str) -> None:
        if what == "cache":
            self._result.cache_seen = True
        elif self._requests:
            self._result.tallied = True

    def model_answer(self, cache_key: str, response: bytes, from_cache: bool, step_index: int) -> None:
        model, material = self._requests.get(cache_key, ("", "null"))
        self._result.served.add(cache_key=cache_key, from_cache=from_cache, step_index=step_index, model=model)
        if self._ledger is not None:
            self._responses[cache_key] = response
            self._ledger.add(
                "model",
                step=step_index,
                cache_key=cache_key,
                from_cache=from_cache,
                request=material,
                response=readable(response),
            )

    def cache_unusable(self, cache_key: str, reason: str) -> None:
        self._unusable[cache_key] = reason

    def miss_reason(self, cache_key: str) -> CacheMiss.Reason:
        return _MISS_REASONS.get(self._unusable.get(cache_key, ""), CacheMiss.NOT_CACHED)

    def step_of(self, cache_key: str) -> int:
        """The step at which a request was last made."""
        return self._steps.get(cache_key, 0)

    def tool_answer(self, name: str, arguments: Mapping[str, object]) -> Answer | None:
        self._refused = len(refusals.noted())
        # Taken before the tool runs, for it may change what it is given.
        self._arguments = _arguments(arguments)
        value = self._supplied.get((name, self._arguments))
        return None if value is None else Answer(json.loads(value))

    def tool_done(
        self,
        name: str,
        arguments: Mapping[str, object],
        value: object,
        error: BaseException | None,
        refused: bool,
        supplied: bool,
        step_index: int,
    ) -> None:
        outcome = ToolRun.EXECUTED
        if refused:
            outcome = ToolRun.REFUSED
        elif supplied:
            outcome = ToolRun.SUPPLIED
        elif error is not None:
            kept = len(refusals.noted()) > self._refused or _confined(error)
            outcome = ToolRun.CONFINED if kept else ToolRun.FAILED
        detail = "" if error is None else _said(error)
        if len(self._result.tools) < TOOL_LIMIT:
            self._result.tools.add(
                tool=encodable(name),
                args_json=self._arguments,
                outcome=outcome,
                detail=detail[:500],
                step_index=step_index,
            )
        if self._ledger is not None:
            ending = {"value": _shown(value)} if error is None else {"error": detail}
            self._ledger.add(
                "tool",
                step=step_index,
                tool=name,
                arguments=self._arguments,
                outcome=ToolRun.Outcome.Name(outcome).lower(),
                **ending,
            )

    def intent(self, intent: Any) -> None:
        if self._ledger is not None:
            self._ledger.add(
                "intent",
                step=intent.step_index,
                intent_id=intent.intent_id,
                tool=intent.tool_name,
                args=intent.args_json,
            )

    def finish(self) -> None:
        """Write the ledger into the result; the activation is over, so asking the decode hook changes nothing."""
        if self._ledger is None:
            return
        for cache_key, response in self._responses.items():
            if self._decode is not None:
                self._ledger.add("decoded", cache_key=cache_key, **_decoded(self._decode, response))
        self._result.ledger = self._ledger.dump()

    def longterm_read(self, operation: str, key: str) -> None:
        self._result.longterm_read = True


def encodable(value: object) -> str:
    """Any value as text that a record can hold: an agent may use keys and names that are none."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - an agent's own __repr__ may raise anything
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _decoded(decode: Callable[[bytes], Any], response: bytes) -> dict[str, Any]:
    """What the decode hook makes of a response, or that it fails."""
    try:
        answer = decode(response)
        usage = answer.usage
        return {"text": str(answer.text), "tokens": [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]}
    except Exception as error:  # noqa: BLE001 - the hook is the agent's own code
        return {"error": _said(error)}


def _said(error: BaseException) -> str:
    try:
        return encodable(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - an agent's own __str__ may raise anything
        return encodable(type(error).__name__)


def _shown(value: object) -> Any:
    """A value for the ledger: bytes as text, a container's items too, anything else as it is."""
    if isinstance(value, bytes):
        return readable(value)
    if isinstance(value, (tuple, list)):
        return [readable(item) if isinstance(item, bytes) else item for item in value]
    return value


def _arguments(arguments: Mapping[str, object]) -> str:
    try:
        return encodable(identity.canonical_json(dict(arguments)))
    except (TypeError, ValueError):
        return encodable(repr(arguments)[:2000])


def _confined(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is how the sandbox says no."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, socket.gaierror):
            return True
        if isinstance(error, OSError) and error.errno in _CONFINED_ERRNOS:
            return True
        error = error.__cause__ or error.__context__
    return False
