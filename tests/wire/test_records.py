"""Bytes in, records out: deterministic bytes, unknown fields by name, and schema versions step by step."""

import pytest

from app.wire import migration
from app.wire.framing import varint
from app.wire.records import (
    AgentEnvelope,
    EventType,
    LlmCacheBlob,
    MemoryBlob,
    RecordError,
    StateSnapshot,
    TraceEvent,
    parse,
    serialize,
    unknown_fields,
)


def test_the_documented_envelope_is_byte_equal() -> None:
    envelope = AgentEnvelope(entity_key=b"card-4242", event_time_ms=1_700_000_005_000)
    envelope.export_request.request_id = "inc-1"
    assert serialize(envelope).hex() == "0a09636172642d34323432" + "1088f795ffbc31" + "32070a05696e632d31"


def test_map_entries_are_written_in_order() -> None:
    names = [f"attribute-{n}" for n in range(50)]
    one = TraceEvent(attributes=dict.fromkeys(names, ""))
    other = TraceEvent(attributes=dict.fromkeys(reversed(names), ""))
    assert serialize(one) == serialize(other)


def test_an_unknown_field_is_kept_and_named() -> None:
    extra = varint(100 << 3 | 2) + varint(3) + b"new"
    snapshot = parse(StateSnapshot, serialize(StateSnapshot(seq=3)) + extra)
    assert list(unknown_fields(snapshot)) == ["#100 (length-delimited)"]
    assert serialize(snapshot).endswith(extra)
    outer = StateSnapshot(memory=parse(MemoryBlob, extra))
    assert list(unknown_fields(outer)) == ["memory.#100 (length-delimited)"]


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x05ab", b"\x0b"])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="not an AgentEnvelope"):
        parse(AgentEnvelope, data)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(RecordError):
        parse(StateSnapshot, varint(9 << 3 | 2) + varint(1) + b"\xff")


@pytest.fixture
def schema_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "CURRENT_STATE_SCHEMA_VERSION", 3)
    monkeypatch.setattr(migration, "_steps", {})


def _lift(blob: MemoryBlob) -> MemoryBlob:
    lifted = MemoryBlob()
    lifted.CopyFrom(blob)
    lifted.state_schema_version = migration.version_of(blob) + 1
    lifted.total_value_bytes += 1
    return lifted


@pytest.mark.parametrize("stamp", [0, 1])
def test_a_blob_at_the_current_version_comes_back_as_it_is(stamp: int) -> None:
    blob = MemoryBlob(state_schema_version=stamp)
    assert migration.migrate_to_current(blob) is blob
    assert migration.migrate_to_current(None) is None


@pytest.mark.usefixtures("schema_3")
def test_steps_are_applied_one_after_the_other() -> None:
    migration.migration(MemoryBlob, from_version=1)(_lift)
    migration.migration(MemoryBlob, from_version=2)(_lift)
    lifted = migration.migrate_to_current(MemoryBlob(total_value_bytes=5))
    assert lifted is not None
    assert (lifted.state_schema_version, lifted.total_value_bytes) == (3, 7)


@pytest.mark.usefixtures("schema_3")
def test_a_gap_names_both_versions_and_the_remedy() -> None:
    migration.migration(MemoryBlob, from_version=1)(_lift)
    with pytest.raises(migration.MissingMigrationError, match=r"version 2.*writes 3.*register the missing step"):
        migration.migrate_to_current(MemoryBlob())


def test_a_newer_blob_names_both_versions_and_the_remedy() -> None:
    with pytest.raises(migration.StateSchemaFromFutureError, match=r"version 7.*reads up to 1.*upgrade") as caught:
        migration.migrate_to_current(LlmCacheBlob(state_schema_version=7))
    assert (caught.value.found_version, caught.value.current_version) == (7, 1)


@pytest.mark.usefixtures("schema_3")
def test_a_step_that_does_not_step_is_refused() -> None:
    migration.migration(MemoryBlob, from_version=1)(lambda blob: blob)
    with pytest.raises(migration.MigrationStepError, match="produced version 1, not 2"):
        migration.migrate_to_current(MemoryBlob())


@pytest.mark.usefixtures("schema_3")
def test_a_step_is_registered_once() -> None:
    migration.migration(MemoryBlob, from_version=1)(_lift)
    with pytest.raises(ValueError, match="already registered"):
        migration.migration(MemoryBlob, from_version=1)
    with pytest.raises(ValueError, match="starts at 1"):
        migration.migration(MemoryBlob, from_version=0)


def test_event_types_are_those_of_the_schema() -> None:
    for name, number in TraceEvent.EventType.items():
        assert getattr(EventType, name.removeprefix("EVENT_TYPE_")) == number
