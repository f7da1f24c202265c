"""What a person supplies to a run beside the evidence: recorded tool answers, a decision to try out, a what-if.

Checked before anything is queued, in words that name the entry at fault; kept with the run as JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.errors import IncidentError
from app.replay.answers import ToolAnswersError, read_tool_answers
from app.replay.evidence import EvidenceFile, UnusableEvidence
from app.replay.rerun_pb2 import ToolAnswer
from app.replay.whatif import Decision, NothingPends, Waiting, with_decision
from app.wire.records import RecordError, ToolResult, parse, serialize

MAX_ANSWERS: Final = 500
MAX_BYTES: Final = 1024 * 1024
STATUSES: Final = ("OK", "ERROR", "EXPIRED", "REJECTED")

_ANSWER: Final = 'a JSON object {"tool": name, "arguments": {...}, "value": any JSON}, one a line or in one array'
_DECISION: Final = '{"approve": intent}, {"reject": intent}, or {"result": base64 of a serialized ToolResult}'


class InputRefused(IncidentError):
    """Something supplied cannot be used; nothing was queued. `field` names the input."""

    def __init__(self, field: str, problem: str, expected: str, remedy: str) -> None:
        self.field = field
        self.problem = problem
        self.expected = expected
        self.remedy = remedy
        super().__init__(f"{problem}; expected {expected}. {remedy}")


Decided = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Checked inputs. `tool_answers` are objects of tool, arguments and value; `decision` is None for a plain replay.

    A decision is `{"intent", "approved"}`, or `{"intent", "result"}` with a serialized `ToolResult` in base64. With
    `what_if` (of a recorded run of Flink Agents) models that the build allows are asked what the record cannot answer.
    """

    tool_answers: tuple[Mapping[str, Any], ...] = ()
    decision: Mapping[str, Any] | None = None
    what_if: bool = False


NOTHING: Final = RunInputs()


def answers_of(text: str) -> tuple[Mapping[str, Any], ...]:
    """Read recorded tool answers as a person pastes them: JSON lines or one JSON array. Raises `InputRefused`."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise _answers("they are larger than 1 MiB together", "Keep those that the activation asked for.")
    if not text.strip():
        return ()
    return checked_answers(_array(text) if text.lstrip().startswith("[") else list(_lines(text)))


def _array(text: str) -> list[Any]:
    try:
        given: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _answers(f"the array is not JSON ({error})", "Look for a comma or a quote too many.") from error
    return given


def _lines(text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _answers(f"line {number} is not JSON ({error})", "Write each answer on one line.") from error


def checked_answers(given: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Check parsed tool answers: each whole, and no call answered in two ways. Raises `InputRefused`."""
    if len(given) > MAX_ANSWERS:
        raise _answers(f"there are {len(given)} of them", f"Supply {MAX_ANSWERS} at most.")
    known: dict[tuple[str, str], str] = {}
    for number, answer in enumerate(given, 1):
        what = _fault(answer)
        if what is not None:
            raise _answers(f"answer {number} {what}", "Correct it, or leave it out.")
        try:
            (read,) = read_tool_answers(json.dumps(answer).encode())
        except (ToolAnswersError, ValueError, RecursionError) as error:
            raise _answers(f"answer {number} cannot be used ({error})", "Correct it, or leave it out.") from error
        earlier = known.setdefault((read.tool, read.args_json), read.value_json)
        if earlier != read.value_json:
            raise _answers(f"answer {number} contradicts an earlier one for the same call", "Keep the right one.")
    return tuple({name: answer[name] for name in ("tool", "arguments", "value")} for answer in given)


def _fault(answer: Any) -> str | None:
    if not isinstance(answer, dict):
        return f"is a JSON {type(answer).__name__}"
    missing = [name for name in ("tool", "arguments", "value") if name not in answer]
    if missing:
        return f"has no {' and no '.join(missing)}"
    unknown = sorted(set(answer) - {"tool", "arguments", "value"})
    if unknown:
        return f"has {unknown[0]!r}, which means nothing here"
    if not isinstance(answer["tool"], str) or not answer["tool"]:
        return "names no tool"
    return None if isinstance(answer["arguments"], dict) else "has arguments that are no object"


def _answers(problem: str, remedy: str) -> InputRefused:
    return InputRefused("tool_answers", f"the tool answers cannot be used: {problem}", _ANSWER, remedy)


def engine_answers(answers: Sequence[Mapping[str, Any]]) -> list[ToolAnswer]:
    """Checked tool answers as the replay takes them."""
    return read_tool_answers(answers_text(answers).encode())


def call_of(answer: Mapping[str, Any]) -> tuple[str, str]:
    """The call that a checked answer is for, as a run names it: the tool, and its arguments as canonical JSON."""
    (read,) = engine_answers([answer])
    return read.tool, read.args_json


def answers_text(answers: Sequence[Mapping[str, Any]]) -> str:
    """Tool answers as the command reads them, one a line."""
    return "".join(json.dumps(answer) + "\n" for answer in answers)


def decision_of(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read a decision as the API takes it. Raises `InputRefused`."""
    if len(given) != 1 or not given.keys() <= {"approve", "reject", "result"}:
        raise _decision("it names no single decision")
    ((kind, value),) = given.items()
    if not isinstance(value, str) or not value:
        raise _decision(f"{kind!r} is empty or no text")
    if kind != "result":
        return {"intent": value, "approved": kind == "approve"}
    try:
        result = parse(ToolResult, base64.b64decode(value, validate=True))
    except binascii.Error as error:
        raise _decision("the result is no base64") from error
    except RecordError as error:
        raise _decision(f"the result is {error}") from error
    if not result.intent_id:
        raise _decision("the result names no intent")
    if len(value) > MAX_BYTES:
        raise _decision("the result is larger than 1 MiB")
    return {"intent": result.intent_id, "result": value}


def result_decision(wait: Waiting, key: bytes, status: str, text: str) -> Mapping[str, Any]:
    """Make the decision that a tool's result comes in: its payload when it went well, else its error message."""
    if status not in STATUSES:
        raise _decision(f"{status[:40]!r} is no status of a result")
    result = ToolResult(
        intent_id=wait.intent,
        entity_key=key,
        seq=wait.seq,
        status=status,
        completed_at_ms=wait.moment_ms,
    )
    if status == "OK":
        result.payload = text.encode("utf-8", "surrogateescape")
    else:
        result.error_message = text.encode("utf-8", "replace").decode()
    return {"intent": wait.intent, "result": base64.b64encode(serialize(result)).decode("ascii")}


def decided(files: Sequence[EvidenceFile], decision: Mapping[str, Any]) -> list[EvidenceFile]:
    """Put a decision where the triggering envelope would be. Raises `InputRefused` when nothing waits for it."""
    try:
        return with_decision(files, as_decision(decision))
    except (NothingPends, UnusableEvidence) as error:
        raise InputRefused(
            "decision", f"the decision cannot be tried: {error}", "an intent that the snapshot waits for", "Load the"
            " incident's page again: it lists what waits.",
        ) from error  # fmt: skip


def as_decision(decision: Mapping[str, Any]) -> Decision:
    """A stored decision as the replay takes it."""
    if "result" in decision:
        return Decision(result=base64.b64decode(decision["result"]))
    return Decision(decision["intent"], bool(decision["approved"]))


def result_bytes(decision: Mapping[str, Any]) -> bytes | None:
    """The serialized result that a decision brings, as `--result` takes it; None for approvals and rejections."""
    return base64.b64decode(decision["result"]) if "result" in decision else None


def result_told(decision: Mapping[str, Any]) -> dict[str, str] | None:
    """A decision's result in words: status, and payload or error message as text."""
    data = result_bytes(decision)
    if data is None:
        return None
    result = parse(ToolResult, data)
    text = result.payload.decode("utf-8", "replace") if result.payload else result.error_message
    return {"status": ToolResult.Status.Name(result.status), "text": text}


def _decision(problem: str) -> InputRefused:
    return InputRefused("decision", f"the decision cannot be used: {problem}", _DECISION, "Correct it and send again.")
