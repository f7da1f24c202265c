"""Decodes records with a hook of the agent's author, inside the sandbox: it is code that nobody vouches for.

The request's `code.agent` names the hook; each of its `envelopes` carries one record, the key as `entity_key` and the
value as `external_event`. Each of the result's `outputs` is one answer, in the same order (`read_answer`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from app.replay.code import BadCode, load_code
from app.replay.rerun_pb2 import AgentCode, RerunRequest, RerunResult
from app.wire.records import AgentEnvelope, RecordError, parse

_NOTHING: Final = b"\x00"
_ENVELOPE: Final = b"\x01"
_ERROR: Final = b"\x02"
_LONGEST_ERROR: Final = 500


def requested(code: AgentCode, records: Iterable[tuple[bytes, bytes | None]]) -> RerunRequest:
    """Ask for the decoding of some records, given as (value, key); a record without a key has an empty one."""
    envelopes = [AgentEnvelope(entity_key=key or b"", external_event=value) for value, key in records]
    return RerunRequest(code=code, envelopes=envelopes)


def run(request: RerunRequest) -> RerunResult:
    """Call the hook with each record; a hook that cannot be loaded is a refusal, one that raises an answer."""
    result = RerunResult(outcome=RerunResult.COMPLETED)
    try:
        hook = load_code(request.code).agent
    except BadCode as error:
        return RerunResult(outcome=RerunResult.REFUSED, refusal=str(error).replace("--agent", "the hook"))
    for record in request.envelopes:
        result.outputs.append(_answer(hook, record.external_event, record.entity_key))
    return result


def _answer(hook: Any, value: bytes, key: bytes) -> bytes:
    try:
        told = hook(value, key)
        if told is None:
            return _NOTHING
        data = told if isinstance(told, bytes) else told.SerializeToString(deterministic=True)
        parse(AgentEnvelope, data)
    except Exception as error:  # noqa: BLE001  whatever it does with one record, the others are decoded
        return _ERROR + f"{type(error).__name__}: {error}"[:_LONGEST_ERROR].encode("utf-8", "replace")
    return _ENVELOPE + data


def read_answer(answer: bytes) -> tuple[bytes | None, str | None]:
    """Take one of the result's outputs apart: (envelope, error), both None where the hook said that it is none."""
    kind, rest = answer[:1], answer[1:]
    if kind == _ERROR:
        return None, rest.decode("utf-8", "replace")
    if kind != _ENVELOPE:
        return None, None
    try:
        parse(AgentEnvelope, rest)
    except RecordError as error:
        return None, str(error)
    return rest, None
