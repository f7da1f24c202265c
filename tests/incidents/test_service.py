"""Importing evidence: everything is kept exactly as it came, or nothing is kept at all."""

import hashlib
from dataclasses import dataclass

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.incidents import kept as kept_files
from app.incidents import service
from app.incidents.columns import plain
from app.incidents.models import AuditEvent
from app.incidents.service import EvidenceFile, Role, Store
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording


async def count(store: Store, *tables: str) -> list[int]:
    async with await psycopg.AsyncConnection.connect(
        store.url.set(drivername="postgresql").render_as_string(False)
    ) as c:
        return [(await (await c.execute(f"SELECT count(*) FROM {table}")).fetchone())[0] for table in tables]


async def test_an_import_keeps_every_byte_and_says_which_attempt_it_is(store: Store) -> None:
    files = recording("a05_suspended_start")
    async with store.write() as session:
        incident = await service.import_evidence(session, files, who="ada")
    async with store.read() as session:
        loaded = await service.get_incident(session, incident.id)
        kept = await service.evidence_of(session, loaded)
        assert [(file.role, file.name, file.sha256, file.size) for file in kept] == [
            (file.role, file.name, hashlib.sha256(file.data).hexdigest(), len(file.data)) for file in files
        ]
        assert [await service.evidence_bytes(session, file) for file in kept] == [file.data for file in files]
        assert await service.evidence_files(session, loaded, [file.id for file in kept]) == files
    assert [file.source for file in kept] == [{"kind": "upload", "file": file.name} for file in files]
    assert (loaded.problem, loaded.kind, loaded.recorded_status) == (None, "start", "suspended")
    assert loaded.attempt is not None
    assert loaded.attempt["clock_ms"] == loaded.clock_ms
    assert bytes.fromhex(loaded.attempt["entity_key"]["hex"]) == loaded.entity_key
    assert loaded.created_by == "ada"
    assert len(loaded.id) >= 16


@pytest.mark.parametrize("along", [0, 600, 1 << 20])
async def test_evidence_is_read_whole_whether_along_with_its_description_or_by_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch, along: int
) -> None:
    monkeypatch.setattr(kept_files, "_ALONG_BYTES", along)
    files = recording("a05_suspended_start")
    sizes = [len(file.data) for file in files]
    assert min(sizes) < 600 < max(sizes), "of either kind one"
    async with store.write() as session:
        incident = await service.import_evidence(session, files, who="ada")
    async with store.read() as session:
        kept = await service.evidence_of(session, incident)
        read = await service.evidence_read(session, incident, [file.id for file in kept])
        assert [file for _, file in read] == files
        assert [described.source for described, _ in read] == [file.source for file in kept]
        some = await service.evidence_read(session, incident, [kept[1].id])
        assert [file for _, file in some] == files[1:2]
        assert await service.evidence_read(session, incident, []) == []


async def test_the_import_is_in_the_audit_trail(store: Store) -> None:
    async with store.write() as session:
        incident = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
    async with store.read() as session:
        events = (await session.scalars(AuditEvent.__table__.select().with_only_columns(AuditEvent.what))).all()
        assert events == ["incident.imported"]
        event = await session.get(AuditEvent, 1)
    assert event is not None
    assert (event.who, event.subject) == ("ada", incident.id)
    assert event.detail["files"] == [file.sha256 for file in recording("a01_fraud_completed")]


async def test_equal_bytes_are_stored_once(store: Store) -> None:
    files = recording("a01_fraud_completed")
    for _ in range(2):
        async with store.write() as session:
            await service.import_evidence(session, files, who="ada")
    assert await count(store, "incidents", "evidence", "blobs") == [2, 6, 3]


async def test_bytes_that_do_not_compress_are_kept_as_they_are(store: Store) -> None:
    noise = hashlib.shake_256(b"noise").digest(50_000)
    file = EvidenceFile(Role.OUTPUTS, "outputs.bin", b"\xd0\x86\x03" + noise)
    async with store.write() as session:
        incident = await service.import_evidence(session, [file], who="ada")
    async with store.read() as session:
        (kept,) = await service.evidence_of(session, incident)
        assert await service.evidence_bytes(session, kept) == file.data


async def test_one_bad_file_refuses_the_whole_import_and_every_bad_file_is_named(store: Store) -> None:
    snapshot, traces, event = recording("a01_fraud_completed")
    swapped = EvidenceFile(Role.SNAPSHOT, "state.pb", event.data)
    empty = EvidenceFile(Role.TRACES, "empty.bin", b"")
    with pytest.raises(service.ImportRefused) as caught:
        async with store.write() as session:
            await service.import_evidence(session, [snapshot, swapped, traces, empty, event], who="ada")
    assert [(problem.name, problem.role) for problem in caught.value.problems] == [
        ("state.pb", "snapshot"),
        ("empty.bin", "traces"),
    ]
    assert "StateSnapshot" in caught.value.problems[0].expected
    assert "event" in caught.value.problems[0].remedy
    assert await count(store, "incidents", "evidence", "blobs", "audit_events") == [0, 0, 0, 0]


async def test_nothing_at_all_is_refused(store: Store) -> None:
    with pytest.raises(service.ImportRefused, match="nothing was handed in"):
        async with store.write() as session:
            await service.import_evidence(session, [], who="ada")


async def test_evidence_that_selects_no_attempt_is_kept_with_the_reason(store: Store) -> None:
    files = [file for file in recording("a01_fraud_completed") if file.role is not Role.EVENT]
    async with store.write() as session:
        incident = await service.import_evidence(session, files, who="ada", title="at night")
    assert incident.title == "at night"
    assert incident.problem is not None
    assert "envelope" in incident.problem
    assert incident.attempt is None
    assert incident.entity_key is not None  # all files speak of one key, so it is known all the same


async def test_the_list_goes_through_all_incidents_once_newest_first(store: Store) -> None:
    made = []
    for _ in range(7):
        async with store.write() as session:
            made.append((await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")).id)
    seen: list[str] = []
    cursor = None
    while True:
        async with store.read() as session:
            page = await service.list_incidents(session, after=cursor, limit=3)
        seen += [incident.id for incident in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert seen == made[::-1]


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "MS5pbmNf", "!!", "é", "MTIzLjtEUk9Q"])
async def test_a_foreign_cursor_is_refused(store: Store, cursor: str) -> None:
    async with store.read() as session:
        if cursor == "MS5pbmNf":  # well-formed, of no incident: an empty page
            assert (await service.list_incidents(session, after=cursor)).items == ()
            return
        with pytest.raises(service.IncidentError, match="not a position"):
            await service.list_incidents(session, after=cursor)


async def test_what_is_not_there_is_not_found(store: Store) -> None:
    async with store.write() as session:
        incident = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
        other = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
    async with store.read() as session:
        (first, *_) = await service.evidence_of(session, incident)
        for missing in (
            service.get_incident(session, "inc_none"),
            service.get_run(session, "run_none"),
            service.get_run_by_number(session, incident, 1),
            service.get_evidence(session, other, first.id),  # belongs to another incident
        ):
            with pytest.raises(service.NotFound):
                await missing


async def test_damaged_bytes_are_never_handed_out(store: Store, database: Database) -> None:
    async with store.write() as session:
        incident = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
    with psycopg.connect(database.superuser) as connection:
        connection.execute("SET session_replication_role = replica")  # what a bad disk does, past the triggers
        connection.execute("UPDATE blobs SET codec = 'raw'")
    async with store.read() as session:
        (first, *_) = await service.evidence_of(session, incident)
        with pytest.raises(service.IncidentError, match="no longer have the sha256"):
            await service.evidence_bytes(session, first)


async def test_a_read_session_cannot_write(store: Store) -> None:
    async with store.read() as session:
        with pytest.raises(Exception, match="read-only transaction"):
            await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")  # type: ignore[arg-type]
    # The connection went back to the pool: the next one writes.
    async with store.write() as session:
        await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")


async def test_a_name_may_hold_anything(store: Store) -> None:
    first, *others = recording("a01_fraud_completed")
    files = [EvidenceFile(first.role, "a\0b\ud800.pb", first.data), *others]
    async with store.write() as session:
        incident = await service.import_evidence(session, files, who="ad\0a", title="t\0")
    async with store.read() as session:
        assert (await service.evidence_of(session, incident))[0].name == "a\u2400b\ufffd.pb"


@given(st.text(st.characters(), max_size=50))
def test_plain_text_is_text_that_postgresql_takes(text: str) -> None:
    cleaned = plain(text)
    cleaned.encode("utf-8")
    assert "\0" not in cleaned
    assert plain(cleaned) == cleaned


@dataclass(frozen=True)
class Lived:
    name: str
    live_from_ms: int | None = None
    live_to_ms: int | None = None


async def test_the_build_that_was_live_at_the_clock_is_offered(store: Store) -> None:
    async with store.write() as session:
        incident = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
    clock = incident.clock_ms
    assert clock is not None
    old, ran, new = Lived("old", 0, clock), Lived("ran", clock, clock + 1), Lived("new", clock + 1)
    assert service.suggest_build([old, ran, new], incident) == "ran"
    assert service.suggest_build([old, new, Lived("never")], incident) is None
    assert service.suggest_build([Lived("long", 0), Lived("later", clock - 5)], incident) == "later"
    incident.build_hint = "new"
    assert service.suggest_build([old, ran, new], incident) == "new"
    assert service.suggest_build([old, ran], incident) == "ran"
