"""Rules that freeze a key by themselves: evidence decays within hours, and people sleep.

A rule looks at each attempt as it is stored. What it finds is written down in the same transaction; opening the
incident and asking for the state comes after, and survives every crash in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from sqlalchemy import Connection, text

from app.incidents.columns import plain
from app.incidents.projection import Facts
from app.replay.verdict import key_text

_HOUR_S: Final = 3600


class Rule(Protocol):
    """One `[[freeze]]` table: all conditions that are given must hold.

    `per_key_s` is how long a key stays alone after it was frozen; `per_hour` how many keys of a pipeline it may freeze.
    """

    @property
    def name(self) -> str: ...
    @property
    def pipelines(self) -> Sequence[str]: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def tool(self) -> str | None: ...
    @property
    def status(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def per_key_s(self) -> float: ...
    @property
    def per_hour(self) -> int: ...


def why(rule: Rule, facts: Facts) -> str | None:
    """Say in words why a rule takes an attempt; None where it does not."""
    shape = facts.shape
    held = []
    if rule.reason is not None:
        if shape.reason != rule.reason:
            return None
        held.append(f"it failed with reason {shape.reason}" + (f" ({shape.error_type})" if shape.error_type else ""))
    if rule.status is not None:
        if shape.status != rule.status:
            return None
        held.append(f"its status is {shape.status}")
    if rule.tool is not None:
        steps = [mark.step for mark in shape.intents if mark.tool == rule.tool]
        if not steps:
            return None
        held.append(f"it emitted an intent of {rule.tool} at step {', '.join(map(str, steps))}")
    if rule.key is not None:
        key = key_text(facts.entity_key) or facts.entity_key.hex()
        if not fnmatchcase(key, rule.key):
            return None
        held.append(f"its key is like {rule.key}")
    return " and ".join(held) or None


@dataclass
class Gate:
    """Applies one pipeline's rules inside a transaction that stores attempts, and holds them to their limits."""

    pipeline: str
    rules: Sequence[Rule]
    _mine: list[Rule] = field(init=False)

    def __post_init__(self) -> None:
        self._mine = [rule for rule in self.rules if not rule.pipelines or self.pipeline in rule.pipelines]

    def apply(self, connection: Connection, stored: Iterable[Facts]) -> int:
        """Write down what the rules take of these attempts; returns how many are to be frozen."""
        if not self._mine:
            return 0
        hits: dict[str, list[tuple[Facts, str]]] = defaultdict(list)
        for facts in stored:
            for rule in self._mine:
                reason = why(rule, facts)
                if reason is not None:
                    hits[rule.name].append((facts, reason))
        return sum(self._take(connection, rule, hits[rule.name]) for rule in self._mine if rule.name in hits)

    def _take(self, connection: Connection, rule: Rule, hits: list[tuple[Facts, str]]) -> int:
        names = {"pipeline": self.pipeline, "rule": plain(rule.name)}
        recent = connection.execute(_RECENT, names | {"seconds": max(rule.per_key_s, _HOUR_S)}).all()
        keys = {bytes(row.entity_key) for row in recent if row.age_s < rule.per_key_s}
        room = rule.per_hour - sum(row.age_s < _HOUR_S for row in recent)
        taken = suppressed = 0
        for facts, reason in hits:
            if taken >= room:
                suppressed += 1  # without a look: in a storm there are thousands
                continue
            values: dict[str, Any] = names | {
                "entity_key": facts.entity_key,
                "seq": facts.seq,
                "kind": plain(facts.shape.kind or facts.shape.category),
                "clock_ms": facts.clock_ms,
                "why": plain(reason),
            }
            if connection.execute(_KNOWN, values).first() is not None:
                continue  # the same attempt, delivered again
            if facts.entity_key in keys:
                suppressed += 1
                continue
            connection.execute(_FREEZE, values)
            keys.add(facts.entity_key)
            taken += 1
        if suppressed:
            connection.execute(_SUPPRESSED, names | {"more": suppressed})
        return taken


_RECENT: Final = text(
    "SELECT entity_key, extract(epoch FROM clock_timestamp() - at) AS age_s FROM freezes"
    " WHERE pipeline = :pipeline AND rule = :rule AND at > clock_timestamp() - make_interval(secs => :seconds)"
)
_KNOWN: Final = text(
    "SELECT 1 FROM freezes WHERE rule = :rule AND pipeline = :pipeline AND entity_key = :entity_key AND seq = :seq"
    " AND kind = :kind AND clock_ms = :clock_ms"
)
_FREEZE: Final = text(
    "INSERT INTO freezes (rule, pipeline, entity_key, seq, kind, clock_ms, why, suppressed)"
    " VALUES (:rule, :pipeline, :entity_key, :seq, :kind, :clock_ms, :why, 0)"
)
# Told at the rule's last freeze: there a person sees how much more of the same there was.
_SUPPRESSED: Final = text(
    "UPDATE freezes SET suppressed = suppressed + :more WHERE id = ("
    "SELECT id FROM freezes WHERE pipeline = :pipeline AND rule = :rule ORDER BY id DESC LIMIT 1)"
)
