"""The rules of searches: what the collector looks for in the topics when an incident lacks it, and how it tells.

The search itself is in `app.jobs.gather`. What it has read is data, per partition, and "not found" is said only when
every offset in range was read. Functions take the caller's session and never commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.incidents import live_repository as live
from app.incidents.audit import Action, record_event
from app.incidents.errors import IncidentError, WrongState, found
from app.incidents.live_models import Gathering, GatheringState
from app.incidents.models import NOW, Incident
from app.incidents.store import ReadSession, WriteSession

LEASE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """What was read of one partition: the log held `low` up to `high`, `start` up to `end` of it was read.

    `complete` says that every offset was read; `stop` why reading ended, in words.
    """

    partition: int
    low: int
    high: int
    start: int
    end: int
    scanned: int
    matched: int
    undecodable: int
    tombstones: int
    absent: int
    removed: int
    complete: bool
    stop: str


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """How far the search of one topic has come; `partitions` are told when it has ended.

    `outcome` is empty while it goes on, then `found`, `not_found`, `incomplete` or `failed`. `read` of `total` offsets
    are behind it. `order` says which partitions came first, and why.
    """

    topic: str
    looking_for: str
    records: str
    outcome: str
    order: str
    scanned: int
    matched: int
    undecodable: int
    read: int
    total: int
    seconds: float | None
    problem: str | None
    partitions: tuple[PartitionProgress, ...]


@dataclass(frozen=True, slots=True)
class GatheringView:
    """A search as a page shows it. `outlook` is where an export of the key would go, and how far the pipeline lags."""

    gathering: Gathering
    topics: tuple[TopicProgress, ...]
    notes: tuple[str, ...]
    outlook: Mapping[str, Any] | None

    @classmethod
    def of(cls, gathering: Gathering) -> GatheringView:
        told = gathering.progress
        topics = tuple(
            TopicProgress(
                **{name: value for name, value in topic.items() if name != "partitions"},
                partitions=tuple(PartitionProgress(**one) for one in topic["partitions"]),
            )
            for topic in told.get("topics", ())
        )
        return cls(gathering, topics, tuple(told.get("notes", ())), told.get("outlook"))

    def as_json(self) -> dict[str, Any]:
        """The object that the API shows under an incident's `gathering`."""
        gathering = self.gathering
        return {
            "id": gathering.id,
            "state": gathering.state,
            "started_at_ms": gathering.started_at,
            "finished_at_ms": gathering.finished_at,
            "problem": gathering.problem,
            **gathering.progress,
        }


def empty_progress() -> dict[str, Any]:
    """What a search has to tell before it begins."""
    return {"outlook": None, "topics": [], "notes": []}


async def request_gathering(session: WriteSession, incident: Incident, *, who: str) -> Gathering:
    """Have the collector look for what an incident lacks. Raises `IncidentError` for an incident of no pipeline."""
    if incident.pipeline is None:
        raise IncidentError("this incident came from files: no pipeline is known whose topics could be searched")
    for one in await live.gatherings_of(session, incident.id):
        if not one.gathering_state.finished:
            return one  # it is being looked for already
    gathering = Gathering(
        incident_id=incident.id, pipeline=incident.pipeline, created_by=who, progress=empty_progress()
    )
    session.add(gathering)
    await session.flush()
    record_event(session, Action.SEARCH_REQUESTED, who=who, subject=gathering.id, detail={"incident": incident.id})
    return gathering


async def cancel_gathering(session: WriteSession, gathering_id: str, *, who: str) -> Gathering:
    """Have a search end; what it found before is kept. Raises `NotFound`, `WrongState`."""
    gathering = found(await live.gathering(session, gathering_id, lock=True), "search", gathering_id)
    if gathering.gathering_state.finished:
        raise WrongState("cancel", gathering.state, "queued or running", "a search")
    gathering.cancel = True
    gathering.version += 1
    if gathering.gathering_state is GatheringState.QUEUED:
        gathering.state = GatheringState.CANCELLED
    record_event(session, Action.SEARCH_CANCELLED, who=who, subject=gathering.id)
    await session.flush()
    return gathering


async def get_gathering(session: ReadSession, gathering_id: str) -> GatheringView:
    """Load one search. Raises `NotFound`."""
    return GatheringView.of(found(await live.gathering(session, gathering_id), "search", gathering_id))


async def gatherings_of(session: ReadSession, incident: Incident) -> list[GatheringView]:
    """List an incident's searches, newest first."""
    return [GatheringView.of(one) for one in await live.gatherings_of(session, incident.id)]


# The collector's side ------------------------------------------------------------------------------------------------


async def claim_gathering(session: WriteSession, pipeline: str, *, lease_s: float = LEASE_S) -> Gathering | None:
    """Take the oldest search that waits, or that a collector left behind when it died; None when there is none."""
    return await live.claim_gathering(session, pipeline, lease_s)


async def note_progress(
    session: WriteSession, gathering: Gathering, progress: Mapping[str, Any], *, lease_s: float = LEASE_S
) -> bool:
    """Note how far a search has come; False when it is to end: cancelled, or no longer ours."""
    values = {"progress": dict(progress), "lease_until": live.in_seconds(lease_s)}
    return await live.change_gathering(session, gathering.id, gathering.attempt, values) is False


async def finish_gathering(
    session: WriteSession,
    gathering: Gathering,
    state: GatheringState,
    progress: Mapping[str, Any],
    problem: str | None = None,
) -> bool:
    """Note how a search ended; False, and nothing noted, when it was no longer ours."""
    values = {
        "state": state, "progress": dict(progress), "problem": problem, "lease_until": None, "finished_at": NOW,
    }  # fmt: skip
    return await live.change_gathering(session, gathering.id, gathering.attempt, values) is not None


async def put_back(session: WriteSession, gathering: Gathering) -> bool:
    """Let another collector begin a search anew, because this one ends; False when it was no longer ours."""
    values = {"state": GatheringState.QUEUED, "progress": empty_progress(), "lease_until": None}
    return await live.change_gathering(session, gathering.id, gathering.attempt, values) is not None
