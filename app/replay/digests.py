"""Name inputs and products by sha256, so that two reports can be told to speak of the same bytes."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from app.replay.evidence import Evidence
from app.replay.rerun_pb2 import RerunResult
from app.replay.timeline import committed, shown
from app.wire.records import serialize

HEAD: Final = 2_000


def file_digests(evidence: Evidence) -> list[dict[str, Any]]:
    """Role, name, size and sha256 of every file handed in."""
    return [{"role": str(f.role), "name": f.name, "bytes": len(f.data), "sha256": f.sha256} for f in evidence.files]


def products(result: RerunResult) -> dict[str, Any]:
    """What the re-run produced, compared or not: heads, sizes and digests."""
    data: dict[str, Any] = {
        "outputs": [_bytes(output) for output in result.outputs],
        "intents": [
            {
                "intent_id": intent.intent_id,
                "tool": intent.tool_name,
                "args_json": intent.args_json[:HEAD],
                "sha256": hashlib.sha256(intent.args_json.encode()).hexdigest(),
            }
            for intent in result.intents[:200]
        ],
    }
    if committed(result):
        data["memory"] = _bytes(serialize(result.memory), head=False)
    if result.HasField("continuation"):
        data["continuation"] = _bytes(result.continuation.snapshot)
    if result.HasField("dead_letter"):
        data["error"] = {"type": result.error_type, "detail": result.dead_letter.detail[:HEAD]}
    if result.printed:
        data["printed"] = result.printed[:HEAD]
    return data


def _bytes(value: bytes, *, head: bool = True) -> dict[str, Any]:
    data: dict[str, Any] = {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if head:
        data["text"] = shown(value[:HEAD])
    return data
