"""What evidence says of the attempt that it selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Facts:
    """What the evidence says about the attempt it selects; None where it selects none, with the `problem` told."""

    entity_key: bytes | None = None
    seq: int | None = None
    kind: str | None = None
    clock_ms: int | None = None
    recorded_status: str | None = None
    attempt: dict[str, Any] | None = None
    problem: str | None = None
