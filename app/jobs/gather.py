"""Searches a pipeline's topics for what an incident lacks: its triggering envelope, and whatever intake does not have.

Runs in the collector, the only process with the broker's credentials. What it reads is told per partition as it goes;
it may be cancelled at any time, and begins anew after a crash: to search twice is harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.incidents import decodings, service, triggers
from app.incidents import gathering as rules
from app.incidents import live_repository as live
from app.incidents.activations import Activation, attempts_of_key
from app.incidents.live_evidence import Found, Log, add_evidence, record_file, stream_files
from app.incidents.live_models import Gathering, GatheringState
from app.incidents.opening import attempt_of, refresh_incident
from app.incidents.scanned import KEYED, Choice, choose_scanned, key_reader
from app.incidents.segments import Raw
from app.incidents.service import Incident, Role, Store
from app.incidents.triggers import Candidate, Trigger
from app.jobs.scanning import TELL_S, Ended, Scanner, raw_of
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError, Cancelled
from app.kafka.export import Exporter
from app.kafka.query import Query
from app.kafka.topics import EventTopic, RecordKind, Stream

_LOG: Final = logging.getLogger(__name__)

# Records of a key that a hook is to decode, and how long a worker may take for them.
_HOOKED: Final = 100
_DECODING_S: Final = 60.0


@dataclass
class Search:
    """One claimed search, from beginning to end."""

    store: Store
    pipeline: Pipeline
    gathering: Gathering
    _scanner: Scanner = field(init=False)
    _stopped: bool = field(default=False, init=False)
    _decoded_records: list[Candidate] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._scanner = Scanner(self.store, self.pipeline, self.gathering)

    @property
    def progress(self) -> dict[str, Any]:
        """What the page shows of it."""
        return self._scanner.progress

    async def run(self) -> GatheringState:
        """Search, and note how it ended; whatever happens, the search does not stay open."""
        state, problem = GatheringState.FAILED, None
        try:
            state = await self._search()
        except (Ended, Cancelled, BrokerError) as error:
            if self._stopped:
                async with self.store.write() as session:
                    await rules.put_back(session, self.gathering)
                return GatheringState.QUEUED
            if isinstance(error, BrokerError) and not self._scanner.cancelled.is_set():
                state, problem = GatheringState.INCOMPLETE, str(error)
            else:  # a broker that is slow just then changes nothing about why it ends
                state = GatheringState.CANCELLED
        except service.IncidentError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  whatever it was, the page must not wait for ever
            _LOG.exception("search %s of incident %s failed", self.gathering.id, self.gathering.incident_id)
            problem = f"the search failed: {type(error).__name__}: {error}"
        async with self.store.write() as session:
            await rules.finish_gathering(session, self.gathering, state, self.progress, problem)
            await decodings.forget(session, self.gathering.id)
        return state

    def stop(self) -> None:
        """Let it end soon, and be begun anew by the next collector."""
        self._stopped = True
        self._scanner.cancelled.set()

    # What is looked for ----------------------------------------------------------------------------------------------

    async def _search(self) -> GatheringState:
        async with self.store.read() as session:
            incident = await service.get_incident(session, self.gathering.incident_id)
        assert incident.entity_key is not None, "a search is about a key"
        await self._look_out(incident.entity_key)
        about = await self._about(incident)
        choice = None
        if about is None:
            choice = await self._scan_streams(incident)
            if choice is None:
                return self._conclude(found=False)
        trigger = await self._trigger(incident, about, choice)
        async with self.store.read() as session:
            roles = {file.role for file in await service.evidence_of(session, incident)}
        if "event" in roles:
            return GatheringState.FOUND
        return self._conclude(found=await self._find_envelope(incident, trigger))

    def _conclude(self, *, found: bool) -> GatheringState:
        """Say "not found" only when every topic was read through."""
        if found:
            return GatheringState.FOUND
        outcomes = {topic["outcome"] for topic in self.progress["topics"]}
        read = bool(outcomes) and outcomes <= {"found", "not_found"}
        return GatheringState.NOT_FOUND if read else GatheringState.INCOMPLETE

    async def _about(self, incident: Incident) -> Activation | None:
        async with self.store.write() as session:
            about = await attempt_of(session, incident)
            if about is not None:
                await refresh_incident(session, incident, about)
        return about

    async def _trigger(self, incident: Incident, about: Activation | None, choice: Choice | None) -> Trigger:
        if about is None:
            assert choice is not None
            return choice.trigger
        async with self.store.read() as session:
            peers = await attempts_of_key(
                session, about.pipeline, about.entity_key, seqs=(about.seq, about.seq), near_ms=about.clock_ms, limit=50
            )
            records = await live.raw_records(session, about.ranges)
        sent = [raw.timestamp_ms for run in records.values() for raw in run if raw.timestamp_ms is not None]
        return Trigger.of(about, peers, max(sent, default=None))

    async def _look_out(self, key: bytes) -> None:
        """See where an export of the key would go, and how far the pipeline lags."""

        def look() -> dict[str, Any]:
            with Exporter(self.pipeline) as exporter:
                return outlook_of(exporter.prepare(key, cancelled=self._scanner.cancelled))

        try:
            self.progress["outlook"] = await asyncio.to_thread(look)
        except BrokerError as error:
            self.progress["outlook"] = {"problem": str(error)}
        await self._scanner.tell()

    # Streams that intake has nothing of ------------------------------------------------------------------------------

    async def _scan_streams(self, incident: Incident) -> Choice | None:
        """Find the traces of the key in their topic, choose the attempt, and bring what else the key has sent."""
        key = incident.entity_key
        assert key is not None
        if self.pipeline.topics.traces is None:
            self.progress["notes"].append("no traces topic is configured, so no attempt can be told")
            return None
        events = await self._scan_key(Stream.TRACES, key, incident.clock_ms, everything=True)
        choice = await asyncio.to_thread(choose_scanned, key, events, incident.wanted_seq, incident.clock_ms)
        if choice is None:
            return None
        files = self._stream_files(Stream.TRACES, Role.TRACES, events)
        for stream, role in ((Stream.INTENTS, Role.INTENTS), (Stream.ERRORS, Role.ERRORS)):
            found = await self._scan_key(stream, key, choice.sent_ms, everything=False)
            files += self._stream_files(stream, role, found)
        files += self._snapshot_files(await self._scan_key(Stream.SNAPSHOTS, key, choice.sent_ms, everything=True))
        await self._add(incident, files, choice)
        return choice

    async def _scan_key(
        self, stream: Stream, key: bytes, near_ms: int | None, *, everything: bool
    ) -> list[tuple[int, Raw]]:
        topic = self.pipeline.topics.followed().get(stream)
        if topic is None:
            return []
        read = key_reader(str(stream))
        query: Query[Any] = Query(
            contains=(key,) if key else (),
            decode=read,
            match=lambda record, told: told == key,
            around_ms=near_ms,
            enough=None if everything else 1,
            near_key=key,
        )
        result = await self._scanner.scan(topic, query, f"{stream} of the key", KEYED[str(stream)])
        return [(one.record.partition, raw_of(one.record)) for one in result.matches]

    def _stream_files(self, stream: Stream, role: Role, found: Sequence[tuple[int, Raw]]) -> list[Found]:
        lanes: dict[int, list[Raw]] = {}
        for partition, raw in found:
            lanes.setdefault(partition, []).append(raw)
        log = Log(self.pipeline.topics.followed().get(stream, ""))
        return [file for partition, run in lanes.items() for file in stream_files(log, role, partition, run)]

    def _snapshot_files(self, found: Sequence[tuple[int, Raw]]) -> list[Found]:
        topic = self.pipeline.topics.snapshots or ""
        return [
            record_file(Log(topic), Role.SNAPSHOT, f"snapshot-{topic}-{partition}-{raw.offset}.pb", partition, raw)
            for partition, raw in found
        ]

    async def _add(self, incident: Incident, files: Sequence[Found], choice: Choice | None = None) -> None:
        async with self.store.write() as session:
            kept = await service.get_incident(session, incident.id)
            if choice is not None and kept.clock_ms is None:
                kept.seq = kept.wanted_seq = choice.seq
                kept.kind, kept.clock_ms = choice.trigger.kind or None, choice.trigger.clock_ms
                kept.recorded_status = choice.status
            _, problems = await add_evidence(session, kept, files)
        self.progress["notes"] += [str(problem) for problem in problems]

    # The envelope ----------------------------------------------------------------------------------------------------

    async def _find_envelope(self, incident: Incident, trigger: Trigger) -> bool:
        """Look through the topics that may hold it; a whole envelope ends the search, a bare answer is second best."""
        candidates: list[Candidate] = []
        for topic in self._sources(trigger):
            candidates += await self._candidates(topic, trigger)
            if any(not one.rebuilt for one in candidates):
                break
        chosen, note = triggers.choose(candidates, trigger)
        if chosen is None:
            return False
        if note is not None:
            self.progress["notes"].append(note)
        files = [triggers.envelope_file(chosen)]
        if trigger.is_batch:
            files += triggers.member_files(await self._members(chosen, trigger))
        await self._add(incident, files)
        return True

    def _sources(self, trigger: Trigger) -> list[EventTopic]:
        """The topics to look through, the likeliest first; what a hook decodes comes after what we can read."""
        order = trigger.kinds()
        sources = [
            topic
            for topic in self.pipeline.topics.sources()
            if topic.hook or (topic.records in order and (topic.records == triggers.ENVELOPE or trigger.intents))
        ]
        return sorted(sources, key=lambda topic: len(order) if topic.hook else order.index(topic.records))

    async def _candidates(self, topic: EventTopic, trigger: Trigger) -> list[Candidate]:
        if topic.hook is not None:
            return await self._hooked(topic, topic.hook, trigger)
        whole = topic.kind is RecordKind.ENVELOPE
        query: Query[Any] = Query(
            contains=trigger.needles(topic.records),
            decode=triggers.decoder(topic.records),
            match=lambda record, message: trigger.fits(message) if whole else trigger.answers(message),
            around_ms=trigger.clock_ms if trigger.sent_ms is None else trigger.sent_ms,
            near_key=trigger.entity_key,
        )
        result = await self._scanner.scan(topic.topic, query, trigger.describe(), topic.records)
        return [
            Candidate(
                topic.topic,
                topic.records,
                one.record.partition,
                raw_of(one.record),
                one.message if whole else trigger.rebuild(one.message),
            )
            for one in result.matches
            if one.message is not None
        ]

    async def _hooked(self, topic: EventTopic, hook: str, trigger: Trigger) -> list[Candidate]:
        """Have a worker decode the key's records around the attempt: the collector never runs agent code."""
        query: Query[Any] = Query(
            key=trigger.entity_key,
            around_ms=trigger.clock_ms if trigger.sent_ms is None else trigger.sent_ms,
            enough=_HOOKED,
            most=_HOOKED * 10,
        )
        result = await self._scanner.scan(topic.topic, query, f"{trigger.describe()}, decoded by {hook}", topic.records)
        records = [(one.record.partition, raw_of(one.record)) for one in result.matches if one.record.value is not None]
        line = self._scanner.line
        if not records:
            return []
        if not self.pipeline.builds:
            line |= {"outcome": "incomplete", "problem": f"the pipeline names no build in which {hook} could be found"}
            return []
        async with self.store.write() as session:
            await decodings.ask(
                session,
                self.gathering.id,
                build=self.pipeline.builds[0],
                hook=hook,
                topic=topic.topic,
                records=records,
            )
        found = await self._decoded(topic.topic)
        if found is None:
            line |= {"outcome": "incomplete", "problem": f"no worker has decoded its records; {hook} runs in a worker"}
            return []
        return self._fitting(topic, found, trigger, line)

    async def _decoded(self, topic: str) -> list[decodings.Decoded] | None:
        """Wait for a worker, as long as the search is wanted."""
        for _ in range(round(_DECODING_S / TELL_S)):
            async with self.store.read() as session:
                found = await decodings.answers(session, self.gathering.id, topic)
            if found is not None:
                return found
            await self._scanner.tell()
            if self._scanner.cancelled.is_set():
                raise Ended
            await asyncio.sleep(TELL_S)
        return None

    def _fitting(
        self, topic: EventTopic, found: Sequence[decodings.Decoded], trigger: Trigger, line: dict[str, Any]
    ) -> list[Candidate]:
        errors = [one.error for one in found if one.error is not None]
        line["undecodable"] += len(errors)
        if errors:
            line["problem"] = errors[0]
        read = triggers.decoder(triggers.ENVELOPE)
        self._decoded_records = [
            Candidate(topic.topic, triggers.HOOK, one.partition, one.raw, read(one.envelope))
            for one in found
            if one.envelope is not None
        ]
        fitting = [one for one in self._decoded_records if trigger.fits(one.envelope)]
        whole = not errors and all(one["complete"] for one in line["partitions"])
        line.update(matched=len(fitting), outcome="found" if fitting else "not_found" if whole else "incomplete")
        return fitting

    async def _members(self, anchor: Candidate, trigger: Trigger) -> list[Candidate]:
        """Find the envelopes of the key around the anchor, until they can be the batch in one way only."""
        size = trigger.batch_size or 1
        if anchor.records == triggers.HOOK:
            return [one for one in self._decoded_records if trigger.in_batch(one.envelope)]
        members: list[Candidate] = []
        for enough in (size * 2, None):
            query: Query[Any] = Query(
                contains=(trigger.entity_key,) if trigger.entity_key else (),
                decode=triggers.decoder(triggers.ENVELOPE),
                match=lambda record, message: trigger.in_batch(message),
                around_ms=anchor.raw.timestamp_ms,
                enough=enough,
                partitions=(anchor.partition,),
            )
            what = f"the other envelopes of the batch of {size}"
            result = await self._scanner.scan(anchor.topic, query, what, triggers.ENVELOPE)
            members = [
                Candidate(anchor.topic, triggers.ENVELOPE, anchor.partition, raw_of(one.record), one.message)
                for one in result.matches
                if one.message is not None
            ]
            if triggers.windows(members, anchor, trigger) == 1:
                break
        return members


def outlook_of(target: Any) -> dict[str, Any]:
    """What is worth keeping of an export's target: where it goes, on which clock, how far the pipeline lags."""
    return {
        "topic": target.topic,
        "partition": target.partition,
        "partitions": target.partitions,
        "chosen_by": target.chosen_by,
        "event_time_ms": target.event_time_ms,
        "latest_event_ms": target.latest_event_ms,
        "wall_ms": target.wall_ms,
        "lag_ms": target.lag_ms,
        "behind": target.behind,
    }
