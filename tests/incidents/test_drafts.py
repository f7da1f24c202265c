"""The import form keeps what was right: sound files wait in a draft while a person mends the others."""

import psycopg
import pytest

from app.incidents import drafts, service
from app.incidents.service import EvidenceFile, Role, Store
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording


async def hold(store: Store, files: list[EvidenceFile], draft_id: str | None = None) -> drafts.Held:
    async with store.write() as session:
        return await drafts.check_and_hold(session, files, who="ada", draft_id=draft_id)


async def test_the_sound_files_wait_for_the_mended_one(store: Store) -> None:
    snapshot, traces, event = recording("a01_fraud_completed")
    first = await hold(store, [snapshot, EvidenceFile(Role.TRACES, "traces.pb", b"\xff" * 11), event])
    assert [file.name for file in first.files] == ["snapshot.pb", "event.pb"]
    assert [problem.name for problem in first.problems] == ["traces.pb"]
    second = await hold(store, [traces], first.draft_id)
    assert (second.draft_id, second.problems) == (first.draft_id, ())
    async with store.write() as session:
        incident = await drafts.import_held(session, first.draft_id, who="ada", title="mended")
    assert (incident.title, incident.problem) == ("mended", None)
    async with store.read() as session:
        files = await service.evidence_files(
            session, incident, [f.id for f in await service.evidence_of(session, incident)]
        )
        assert files == [snapshot, event, traces]
        with pytest.raises(service.NotFound):
            await drafts.held_files(session, first.draft_id)


async def test_a_held_file_can_be_dropped(store: Store) -> None:
    held = await hold(store, recording("a01_fraud_completed"))
    other = await hold(store, recording("a01_fraud_completed"))
    async with store.write() as session:
        await drafts.drop_held(session, held.draft_id, [held.files[0].id, other.files[0].id])
    async with store.read() as session:
        assert [file.name for file in await drafts.held_files(session, held.draft_id)] == ["traces.pb", "event.pb"]
        assert len(await drafts.held_files(session, other.draft_id)) == 3  # an id of another draft does nothing


async def test_an_expired_draft_is_gone_and_swept(store: Store, database: Database) -> None:
    held = await hold(store, recording("a01_fraud_completed"))
    with psycopg.connect(database.owner, autocommit=True) as connection:
        connection.execute("UPDATE drafts SET expires_at = now() - interval '1 second'")
    for attempt in (hold(store, [], held.draft_id), hold(store, [], "dra_none")):
        with pytest.raises(service.NotFound, match="draft of an import"):
            await attempt
    live = await hold(store, recording("a01_fraud_completed"))
    async with store.write() as session:
        assert await drafts.sweep_drafts(session) == 1
    async with store.read() as session:
        assert len(await drafts.held_files(session, live.draft_id)) == 3
    with psycopg.connect(database.app) as connection:
        assert connection.execute("SELECT count(*) FROM draft_files").fetchone() == (3,)


async def test_an_empty_draft_is_refused_and_stays(store: Store) -> None:
    held = await hold(store, [])
    with pytest.raises(service.ImportRefused, match="nothing was handed in"):
        async with store.write() as session:
            await drafts.import_held(session, held.draft_id, who="ada")
    async with store.read() as session:
        assert await drafts.held_files(session, held.draft_id) == ()


async def test_a_draft_holds_a_bounded_number_of_files(store: Store) -> None:
    file = EvidenceFile(Role.OUTPUTS, "o", b"")
    held = await hold(store, [file] * 150)
    with pytest.raises(service.IncidentError, match="at most 200 files"):
        await hold(store, [file] * 60, held.draft_id)
