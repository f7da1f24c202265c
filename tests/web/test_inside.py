"""Files of evidence on pages: decoded and as bytes, of bounded size whatever lies in them, and in the audit trail."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import select

from app.incidents import service
from app.incidents.models import AuditEvent
from app.incidents.service import EvidenceFile, Incident, Role, Store
from app.wire.framing import write_frames
from app.wire.records import AgentEnvelope, StateSnapshot
from tests.golden.scenarios import scenario
from tests.web.conftest import Browser
from tests.web.test_pages import D01, U01, opened, page


async def places(store: Store, incident: Incident) -> dict[str, str]:
    """The address of each file by its role."""
    async with store.read() as session:
        files = await service.evidence_of(session, incident)
    return {file.role: f"/incidents/{incident.id}/evidence/{file.id}" for file in files}


async def test_a_stream_is_listed_and_each_frame_opens(person: Browser, store: Store) -> None:
    incident = await opened(store, U01, level="full")
    traces = (await places(store, incident))["traces"]
    assert f'href="{traces}/inside"' in (await page(person, f"/incidents/{incident.id}")).html
    listed = await page(person, f"{traces}/inside")
    assert re.search(r"\b0 0 \d+ .*entity_key card-4242", listed.text)
    opened_frame = await page(person, f"{traces}/inside?frame=1")
    for words in ("frame 1 at byte", "entity_key", "event_type", "TOOL_CALL", "start_ms", "number"):
        assert words in opened_frame.text
    assert re.search(r"\d{13} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", opened_frame.text), "a time is told as one"
    assert "The stream has no frame 9999." in (await page(person, f"{traces}/inside?frame=9999", 404)).text


async def test_a_record_is_told_by_fields_and_bytes(person: Browser, store: Store) -> None:
    incident = await opened(store, D01)
    snapshot = (await places(store, incident))["snapshot"]
    decoded = await page(person, f"{snapshot}/inside")
    for words in ("state_schema_version 1", "entity_key 2 text card-4242", "MemoryBlob", "LlmCacheBlob"):
        assert words in decoded.text
    data = next(file.data for file in scenario(D01).bundle() if file.role is Role.SNAPSHOT)
    raw = await page(person, f"{snapshot}/inside?view=hex")
    assert f"00000000  {data[:8].hex(' ')}  {data[8:16].hex(' ')}" in raw.html
    assert "bytes 0 to" in raw.text or len(data) <= 4096
    last = await page(person, f"{snapshot}/inside?view=hex&at=99999999")
    assert f"{(len(data) - 1) // 16 * 16:08x}" in last.html
    piece = await person.get(f"{snapshot}/range?at=2&size=5")
    assert piece.content == data[2:7]
    assert (await person.get(f"{snapshot}/range?at=2&size=99999999")).status_code == 404


# row 34: the page is small whatever it shows
async def test_a_value_of_twenty_megabytes_makes_no_large_page(person: Browser, store: Store) -> None:
    big = AgentEnvelope(entity_key=b"k", event_time_ms=1, external_event=b"x" * 20_000_000)
    many = StateSnapshot(state_schema_version=1, entity_key=b"k", seq=1)
    for number in range(3000):
        many.memory.entries.add(key=f"key {number}", value=b"\0" + b"v" * 2000)
    files = [
        EvidenceFile(Role.EVENT, "big.pb", big.SerializeToString()),
        EvidenceFile(Role.SNAPSHOT, "many.pb", many.SerializeToString()),
        EvidenceFile(Role.EVENTS, "stream.bin", write_frames([big.SerializeToString()] * 2)),
        EvidenceFile(Role.OUTPUTS, "outputs.bin", write_frames([b"o" * n for n in range(2000)])),
    ]
    async with store.write() as session:
        incident = await service.import_evidence(session, files, who="ada")
    for role, address in (await places(store, incident)).items():
        for query in ("", "?view=hex", "?start=100", "?frame=1", "?view=hex&at=1000000"):
            answer = await person.get(f"{address}/inside{query}")
            assert len(answer.content) < 300 * 1024, (role, query, len(answer.content))
            if answer.status_code == 200:
                shown = await page(person, f"{address}/inside{query}")
                assert shown.elements <= 1500, (role, query, shown.elements)
                assert "The file is larger than 32 KiB" in shown.text
    event = (await places(store, incident))["event"]
    told = await page(person, f"{event}/inside")
    assert re.search(r"… 19 999 760 more bytes · sha256 [0-9a-f]{12}… copy · download", told.text)


@pytest.mark.parametrize("query", ["?frame=-1", "?start=x", "?at=99999999999999"])
async def test_an_odd_address_is_refused_in_words(person: Browser, store: Store, query: str) -> None:
    traces = (await places(store, await opened(store, D01)))["traces"]
    assert (await person.get(f"{traces}/inside{query}")).status_code == 422


async def test_looking_is_in_the_trail(person: Browser, store: Store) -> None:
    incident = await opened(store, D01)
    snapshot = (await places(store, incident))["snapshot"]
    for path in ("/inside", "/inside?view=hex", "/range?at=0&size=1"):
        await person.get(snapshot + path)
    async with store.read() as session:
        events = (await session.scalars(select(AuditEvent).where(AuditEvent.what == "evidence.read"))).all()
    assert [event.detail.get("inside") or event.detail["bytes"] for event in events] == ["decoded", "hex", 1]
