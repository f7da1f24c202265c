"""Which recorded model answers an attempt may consume, and where each of them comes from.

Answers are the union over the snapshots of one life. An entry that is in the exact pre-image was
there, whatever its stamps say; any other must carry the clock of the attempt itself or of an earlier
attempt of the same seq, for the cache key covers the seq.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.replay.attempts import Attempt
from app.replay.evidence import Snapshot
from app.replay.images import State
from app.replay.rerun_pb2 import Retries, ToolAnswer
from app.replay.select import Unanswerable
from app.replay.verdict import Outcome, Reason
from app.wire import identity
from app.wire.records import EventType, LlmCacheBlob

ATTRIBUTE_ATTEMPTS: Final = "beam_agents.attempts"
CACHE_FIRST: Final = "cache-first"
PROVIDER_SIDE: Final = "provider-side"
MAX_TRIES: Final = 1_000

Entry = LlmCacheBlob.LlmCacheEntry


@dataclass
class Answers:
    """The answers that a re-run is served with, by cache key.

    `found` are those that the cache held, `own` those that the attempt itself obtained: served as hits like the rest,
    or, where `mode` says so, as if the provider gave them. `sources` names the snapshot of each cache key. `withheld`
    are captured entries that this attempt cannot have consumed.
    """

    found: dict[str, Entry] = field(default_factory=dict)
    own: dict[str, Entry] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    mode: str = CACHE_FIRST
    created: dict[str, int] = field(default_factory=dict)  # when, of every captured entry

    def as_obtained(self) -> Answers:
        """The same answers, those that the attempt obtained coming from the provider's side, as they did."""
        return replace(self, mode=PROVIDER_SIDE)

    @property
    def cache(self) -> LlmCacheBlob:
        """What is served as hits."""
        return _blob(self.found if self.mode == PROVIDER_SIDE else {**self.found, **self.own})

    @property
    def provider(self) -> LlmCacheBlob:
        """What the provider's side answers."""
        return _blob(self.own) if self.mode == PROVIDER_SIDE else LlmCacheBlob()


class ToolAnswersError(ValueError):
    """A file of tool answers that cannot be read; names the line and what was expected."""


def read_tool_answers(data: bytes) -> list[ToolAnswer]:
    """Read recorded tool answers, JSON lines of {"tool", "arguments", "value"}; raises ToolAnswersError."""
    expected = 'expected {"tool": name, "arguments": {...}, "value": any JSON}'
    answers = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            answer = ToolAnswer(
                tool=given["tool"],
                args_json=identity.canonical_json(dict(given["arguments"])),
                value_json=identity.canonical_json(given["value"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ToolAnswersError(f"line {number}: {expected} ({type(error).__name__}: {error})") from error
        answers.append(answer)
    return answers


def verify(snapshots: Iterable[Snapshot]) -> None:
    """Refuse tampered caches: raises Unanswerable naming the snapshot and the entry."""
    for snapshot in snapshots:
        seen: set[str] = set()
        for entry in snapshot.record.llm_cache.entries:
            problem = _problem(entry, seen)
            if problem is not None:
                raise Unanswerable(
                    Outcome.UNUSABLE,
                    Reason(
                        "tampered_cache",
                        f"{snapshot.name}: cached response {entry.cache_key[:16]}… {problem}",
                        "Export the key again, or hand in a snapshot that was not altered.",
                        {"snapshot": snapshot.name, "cache_key": entry.cache_key},
                    ),
                )
            seen.add(entry.cache_key)


def _problem(entry: Entry, seen: set[str]) -> str | None:
    if entry.cache_key in seen:
        return "is there twice, which no pipeline writes"
    if entry.digest_only:
        return "is digest-only and has a body, which no pipeline writes" if entry.response else None
    if hashlib.sha256(entry.response).digest() != entry.response_digest:
        return "does not match its own digest: it was altered"
    return None


def provider_side(attempt: Attempt | None) -> bool:
    """Whether the recorded calls tell how often the provider was asked: then it must be asked again."""
    return attempt is not None and any(
        record.event.event_type == EventType.LLM_CALL and ATTRIBUTE_ATTEMPTS in record.event.attributes
        for record in attempt.records
    )


def retries_of(attempt: Attempt | None) -> list[Retries]:
    """How often the provider failed before it answered, by the step and model of the call; fewest first.

    Calls of one step and model have no order; equal ones were collapsed.
    """
    if attempt is None or not provider_side(attempt):
        return []
    told: dict[tuple[int, str], set[str]] = defaultdict(set)
    for record in attempt.records:
        event = record.event
        if event.event_type == EventType.LLM_CALL:
            tries = event.attributes.get(ATTRIBUTE_ATTEMPTS, "1")
            told[event.step_index, event.attributes.get("gen_ai.request.model", "")].add(tries)
    return [
        Retries(step_index=step, model=model, failed=failed)
        for (step, model), tries in told.items()
        if any(failed := sorted(int(n) - 1 for n in tries if n.isdecimal() and 0 < int(n[:9]) <= MAX_TRIES))
    ]


@dataclass(frozen=True)
class Consumer:
    """Who asks: the attempt, its kind and clock, and the earlier attempts of its seq and life."""

    attempt: Attempt | None
    kind: str
    clock_ms: int
    earlier_clocks: frozenset[int]
    start_traced: bool

    @property
    def committed(self) -> bool:
        return self.attempt is not None and self.attempt.committed

    def may_have(self, entry: Entry) -> str | None:
        """None when the entry may be served, else why not."""
        created = entry.created_at_ms
        if self.committed and created == self.clock_ms:
            return None
        if created > self.clock_ms:
            return "created after the attempt's clock"
        if not self.committed:
            return "not in the state that the attempt ran from, and it committed nothing"
        return "created by another activation"


def gather(consumer: Consumer, state: State, snapshots: Sequence[Snapshot]) -> Answers:
    """Collect the answers from the pre-image (when exact) and from the other snapshots."""
    answers = Answers()
    if state.fit.before and state.cache is not None:
        for entry in state.cache.entries:
            answers.found[entry.cache_key] = entry
            answers.sources[entry.cache_key] = state.source
    for snapshot in snapshots:
        for entry in snapshot.record.llm_cache.entries:
            answers.created[entry.cache_key] = entry.created_at_ms
            _consider(consumer, entry, snapshot.name, answers)
    for key in answers.sources:
        answers.withheld.pop(key, None)
    return answers.as_obtained() if provider_side(consumer.attempt) else answers


def _consider(consumer: Consumer, entry: Entry, source: str, answers: Answers) -> None:
    reason = consumer.may_have(entry)
    if reason is not None:
        answers.withheld[entry.cache_key] = f"{reason} ({source})"
    elif consumer.committed and entry.created_at_ms == consumer.clock_ms:
        _take(entry, source, answers.own, answers)
    else:
        _take(entry, source, answers.found, answers)


def _take(entry: Entry, source: str, pool: dict[str, Entry], answers: Answers) -> None:
    """Add an entry to its pool; two different answers of one time cannot both be true."""
    key = entry.cache_key
    known = pool.get(key)
    if known is None or (known.digest_only and known.response_digest == entry.response_digest):
        pool[key] = entry
        answers.sources[key] = source
    elif known.response_digest == entry.response_digest:
        return
    elif known.created_at_ms == entry.created_at_ms:
        raise Unanswerable(
            Outcome.UNUSABLE,
            Reason(
                "conflicting_snapshots",
                f"{answers.sources[key]} and {source} hold different answers for one request ({key[:16]}…) of one time",
                "Find out which of the two snapshots was altered and hand in the other.",
                {"cache_key": key},
            ),
        )
    else:
        answers.notes.append(
            f"two answers were committed for request {key[:16]}…; the one from {answers.sources[key]} is used"
        )


def _blob(entries: Mapping[str, Entry]) -> LlmCacheBlob:
    return LlmCacheBlob(
        state_schema_version=1,
        entries=entries.values(),
        total_response_bytes=sum(len(entry.response) for entry in entries.values()),
    )
