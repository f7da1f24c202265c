"""The parts of the OpenAPI document that cannot be read off a function: streamed bodies, problems, files."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string"}

_PROBLEM: Final = {
    "type": "object",
    "required": ["title", "status", "detail", "what", "expected", "remedy", "problems"],
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "what": {**_TEXT, "description": "what is wrong"},
        "expected": {**_TEXT, "description": "what was expected"},
        "remedy": {**_TEXT, "description": "what to do"},
        "problems": {
            "type": "array",
            "description": "one entry per file that is at fault",
            "items": {
                "type": "object",
                "required": ["name", "role", "what", "expected", "remedy"],
                "properties": {"name": _TEXT, "role": _TEXT, "what": _TEXT, "expected": _TEXT, "remedy": _TEXT},
            },
        },
    },
}

_MEANINGS: Final = {
    400: "The request is malformed.",
    401: "The token is missing or wrong.",
    403: "A role that does not allow this, or a browser's request without its page's CSRF token.",
    404: "There is no such thing, or it is of a pipeline in which the token has no role.",
    409: "The thing is not in a state that allows this.",
    413: "Too large.",
    415: "Wrong content type.",
    422: "The content is refused; `problems` names the files.",
    429: "Too often; `Retry-After` says when again.",
}

PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": text, "content": {"application/problem+json": {"schema": _PROBLEM}}}
    for status, text in _MEANINGS.items()
}

ZIP: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bundle.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}

JSON_LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The ledger; empty until the run is done, or where nothing was run.",
        "content": {"application/jsonl": {"schema": {"type": "string"}}},
    }
}

_FILES: Final = {"type": "array", "items": {"type": "string", "format": "binary"}}

IMPORT_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "description": "Either the files by role, each role repeatable, or one `bundle`.",
                    "properties": {
                        "snapshot": {**_FILES, "description": "one serialized StateSnapshot each"},
                        "traces": {**_FILES, "description": "varint-framed TraceEvent records"},
                        "event": {
                            **_FILES,
                            "description": "the serialized AgentEnvelope that triggered the activation",
                        },
                        "snapshots": {**_FILES, "description": "varint-framed StateSnapshot records"},
                        "events": {**_FILES, "description": "varint-framed AgentEnvelope records: the surroundings"},
                        "intents": {**_FILES, "description": "varint-framed ToolIntent records"},
                        "outputs": {**_FILES, "description": "varint-framed outputs"},
                        "errors": {**_FILES, "description": "varint-framed dead letters"},
                        "bundle": {"type": "string", "format": "binary", "description": "a bundle.zip"},
                        "title": _TEXT,
                        "seq": {"type": "string", "pattern": "^[0-9]+$", "description": "narrows the attempt"},
                    },
                }
            }
        },
    }
}

_BUILD: Final = {**_TEXT, "minLength": 1, "maxLength": 64, "examples": ["refunds-v1"]}

REPLAY_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "oneOf": [{"required": ["build"]}, {"required": ["builds"]}],
                    "additionalProperties": False,
                    "properties": {
                        "build": _BUILD,
                        "builds": {
                            "type": "array",
                            "description": "several at once, to be compared",
                            "minItems": 1,
                            "maxItems": 6,
                            "items": _BUILD,
                        },
                        "tool_answers": {
                            "type": ["array", "null"],
                            "description": "recorded answers of read-only tools, served in place of running them",
                            "maxItems": 500,
                            "items": {
                                "type": "object",
                                "required": ["tool", "arguments", "value"],
                                "additionalProperties": False,
                                "properties": {
                                    "tool": {**_TEXT, "minLength": 1},
                                    "arguments": {"type": "object"},
                                    "value": {"description": "any JSON"},
                                },
                            },
                        },
                        "decision": {
                            "type": ["object", "null"],
                            "description": "what if this pending intent were decided; nothing is sent anywhere",
                            "minProperties": 1,
                            "maxProperties": 1,
                            "additionalProperties": False,
                            "properties": {
                                "approve": {**_TEXT, "description": "id of the intent"},
                                "reject": {**_TEXT, "description": "id of the intent"},
                                "result": {**_TEXT, "description": "base64 of a serialized ToolResult"},
                            },
                        },
                        "what_if": {
                            "type": "boolean",
                            "description": "of a recorded run of Flink Agents: ask the models that the build allows",
                        },
                    },
                }
            }
        },
    }
}
