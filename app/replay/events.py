"""The neutral event: what comparison, pages and tables know, whatever framework wrote the record."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Event(NamedTuple):
    """One event of an attempt, recorded or replayed.

    `type` is what happened, `label` what tells its kind (model, tool, intent kind); alignment goes by these two.
    `about` is what a person wants to read beside them. `attributes` are the framework's own, `identity` holds ids,
    key and times (as text), `payload` what no trace carries (arguments, output, detail). All three are compared; a
    payload only where both sides have it. A tuple, for a timeline has thousands of them.
    """

    type: str
    label: str = ""
    about: str = ""
    step: int | None = None
    span_id: str = ""
    time_ms: int = 0
    attributes: Mapping[str, str] = _NOTHING
    identity: Mapping[str, str] = _NOTHING
    payload: Mapping[str, str] = _NOTHING
    unknown: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The event in a few words."""
        return " ".join(part for part in (self.type, self.label, self.about) if part)

    def as_json(self) -> dict[str, Any]:
        """The form in which an event is stored with a run."""
        return {
            "type": self.type,
            "label": self.label,
            "about": self.about,
            "step": self.step,
            "span_id": self.span_id,
            "time_ms": self.time_ms,
            "attributes": dict(self.attributes),
            "identity": dict(self.identity),
            "payload": dict(self.payload),
            "unknown": list(self.unknown),
        }
