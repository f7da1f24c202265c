"""What the host and the child say to each other about a re-run, as JSON of fixed fields inside the driver's payload.

The child executes code that nobody vouches for: its answer is checked against these models before anybody reads it.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

Json = Any
FORMAT: Final = 1


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Policy(StrEnum):
    """What becomes of a call to a resource; no policy but `allow` ever executes it."""

    RECORD = "record"  # written down, answered from the record where it has the same call
    RECORDED = "recorded"  # answered from the record, or the run ends
    ALLOW = "allow"  # executed, inside the sandbox
    BLOCK = "block"  # the run ends


class Handling(_Message):
    """A policy, and the answer that stands in where the record has none (only of `record`)."""

    policy: Policy = Policy.RECORD
    answer: Json = None
    has_answer: bool = False


class Exchange(_Message):
    """One model call of the record: the request as the log has it (its digest), and what came back.

    `full` is the digest of the whole request where it is known. `failures` are tries that failed before the answer;
    without an answer the record ends there.
    """

    digest: str
    answer: dict[str, Json] | None = None
    full: str | None = None
    failures: int = 0


class ToolAnswer(_Message):
    """The recorded answer of one tool call; a text in `error` means that the call failed with it."""

    tool: str
    digest: str
    value: Json = None
    error: str | None = None
    supplied: bool = False  # by an operator, not read off the log


class Retrieval(_Message):
    """What a vector store gave for a query."""

    store: str
    digest: str
    documents: list[dict[str, Json]]


class Input(_Message):
    """One input of one key. `memory` is the short-term memory it had (see `memory`), None to go on with the key's."""

    key: str
    seq: int
    value: Json
    memory: list[Json] | None = None
    exchanges: list[Exchange] = []
    tools: list[ToolAnswer] = []
    retrievals: list[Retrieval] = []


class Request(_Message):
    """Inputs to feed, in order. `handling` is by `type:name`, then by `type`; what has none is `record`."""

    format: int = FORMAT
    live: bool = False  # a what-if: allowed models may be asked what the record cannot answer
    handling: dict[str, Handling] = {}
    inputs: list[Input]


class Sent(_Message):
    """One event: what it is, and the event and action that it came from (None for the input)."""

    type: str
    attributes: dict[str, Json]
    parent: int | None = None
    action: str | None = None


class Outcome(StrEnum):
    """What became of one call."""

    EXECUTED = "executed"
    ANSWERED = "answered"  # from the record
    STAND_IN = "stand-in"  # with the configured answer, or in a what-if with a note
    MISSED = "missed"  # the run ended here for want of an answer
    REFUSED = "refused"


class Call(_Message):
    """One call of a resource: the ledger. `event` is the index of the event that was being handled, `sent` how many
    events had been sent by then.

    `request` of a model call is the whole request as its connection saw it, `digest` the digest of the request as the
    log would have it, `full` that of `request`.
    """

    kind: str
    name: str
    outcome: Outcome
    request: Json = None
    digest: str = ""
    full: str = ""
    value: Json = None
    detail: str = ""
    event: int | None = None
    action: str | None = None
    sent: int = 0
    direct: bool = False  # called by the agent's own code: no event of the log tells of it
    processed: bool = False  # by a model set-up that does more than ask its connection


class Ending(StrEnum):
    """How the run of one input ended."""

    FINISHED = "finished"
    FAILED = "failed"  # agent code raised
    MISSED = "missed"  # something was asked that nothing recorded can answer
    REFUSED = "refused"  # by policy
    UNSUPPORTED = "unsupported"  # the engine cannot do what the agent asks


class InputResult(_Message):
    """What came of one input; `memory` is the short-term memory after it, `reads` what it read and had not written."""

    key: str
    seq: int
    ending: Ending
    detail: str = ""
    error_type: str = ""
    error_message: str = ""
    action: str | None = None
    events: list[Sent] = []
    calls: list[Call] = []
    memory: list[Json] = []
    reads: list[str] = []


class Resource(_Message):
    """One resource of the plan and how it was handled."""

    type: str
    name: str
    policy: str


class Plan(_Message):
    """What the framework compiled; equal digests mean equal prompts, tools, set-ups and actions by name."""

    digest: str
    actions: dict[str, list[str]]
    resources: list[Resource]


class Result(_Message):
    """What came of a request; a `refusal` means that nothing ran."""

    format: int = FORMAT
    framework: str = ""
    python: str = ""
    plan: Plan | None = None
    refusal: str = ""
    refusal_kind: Literal["", "import", "agent", "plan", "unsupported"] = ""
    inputs: list[InputResult] = []


def canonical(value: Json) -> str:
    """The one JSON text of a value: keys in order, no blanks; what JSON has no form for becomes its text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def digest(value: Json) -> str:
    """`sha256:…` of a value's canonical JSON."""
    return f"sha256:{hashlib.sha256(canonical(value).encode('utf-8', 'surrogatepass')).hexdigest()}"


def request_as_logged(setup: str, messages: Json, prompt_args: Json) -> dict[str, Json]:
    """A model request as the event log has it: before prompt, tools and parameters are added."""
    return {"model": setup, "messages": [message_as_logged(one) for one in messages], "prompt_args": prompt_args or {}}


def message_as_logged(message: Json) -> dict[str, Json]:
    """One message with all its fields, whether the log wrote the empty ones or not."""
    told = message if isinstance(message, dict) else {}
    return {
        "role": told.get("role", "user"),
        "content": told.get("content") or "",
        "tool_calls": told.get("tool_calls") or [],
        "extra_args": told.get("extra_args") or {},
    }


def tool_digest(tool: str, arguments: Json) -> str:
    """The digest of a tool call by name."""
    return digest({"tool": tool, "arguments": arguments})


def query_digest(store: str, text: str, limit: int) -> str:
    """The digest of a question to a vector store."""
    return digest({"store": store, "query": text, "limit": limit})
