"""The questions of an investigation find the right records among look-alikes."""

import pytest

from app.kafka.queries import by_clock, by_intent, by_request, of_key, starts_of
from app.kafka.scan import scan
from app.kafka.topics import RecordKind
from app.wire.identity import intent_id
from app.wire.records import AgentEnvelope, StateSnapshot, ToolIntent, ToolResult, TraceEvent, serialize
from tests.fixtures.kafka import Broker

NOW = 1_700_000_000_000
KEY = b"customer-42"
INTENT = intent_id(KEY, 3, 1)


def envelope(key: bytes = KEY, at: int = NOW, **payload: object) -> bytes:
    return serialize(AgentEnvelope(entity_key=key, event_time_ms=at, **payload))  # type: ignore[arg-type]


def found(broker: Broker, topic: str, query: object) -> list[int]:
    return [one.record.offset for one in scan(broker.pipeline(topics={"events": topic}), topic, query).matches]  # type: ignore[arg-type]


def test_a_trigger_by_intent(broker: Broker) -> None:
    topic = broker.topic(1)
    answer = ToolResult(intent_id=INTENT, entity_key=KEY, status=1)
    values = [
        envelope(external_event=INTENT.encode()),  # speaks of it, and answers nothing
        envelope(tool_result=ToolResult(intent_id=intent_id(KEY, 3, 2))),
        envelope(tool_result=answer),
        envelope(approval=AgentEnvelope.Approval(intent_id=INTENT, approved=True)),
    ]
    broker.write(topic, [(KEY, value, NOW) for value in values])
    assert found(broker, topic, by_intent(INTENT, RecordKind.ENVELOPE, around_ms=NOW)) == [2, 3]
    bare = broker.topic(1)
    other = ToolResult(intent_id="other", payload=INTENT.encode())
    broker.write(bare, [(None, serialize(other)), (None, serialize(answer))])
    assert found(broker, bare, by_intent(INTENT, RecordKind.TOOL_RESULT)) == [1]
    approvals = broker.topic(1)
    broker.write(approvals, [(None, serialize(AgentEnvelope.Approval(intent_id=INTENT)))])
    assert found(broker, approvals, by_intent(INTENT, RecordKind.APPROVAL)) == [0]
    intents = broker.topic(1)
    broker.write(intents, [(KEY, serialize(ToolIntent(intent_id=INTENT, entity_key=KEY)))])
    assert found(broker, intents, by_intent(INTENT, RecordKind.INTENT)) == [0]


@pytest.mark.parametrize("key", [KEY, b"", b"\x00\xff"])
def test_a_trigger_by_its_clock_whatever_the_record_is_keyed_by(broker: Broker, key: bytes) -> None:
    topic = broker.topic(1)
    request = AgentEnvelope.StateExportRequest(request_id="r")
    values = [
        envelope(key + b"x", external_event=b"another key"),
        envelope(key, NOW + 1, external_event=b"another time"),
        envelope(key, export_request=request),
        envelope(key, external_event=b"it"),
        envelope(key),  # without a payload it starts an activation, too
    ]
    broker.write(topic, [(b"keyed otherwise", value, NOW) for value in values])
    assert found(broker, topic, by_clock(key, NOW)) == [3, 4]


def test_the_members_of_a_batch(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.write(topic, [(KEY, envelope(at=NOW + n, external_event=b"%d" % n), NOW + n) for n in range(20)])
    assert set(found(broker, topic, starts_of(KEY, NOW + 12, 5))) >= {8, 9, 10, 11, 12}
    assert max(found(broker, topic, starts_of(KEY, NOW + 12, 5))) == 12


def test_what_an_attempt_left_behind(broker: Broker) -> None:
    traces = broker.topic(2)
    broker.write(traces, [(KEY, serialize(TraceEvent(entity_key=KEY, seq=n % 5, step_index=n))) for n in range(50)])
    broker.write(traces, [(KEY, serialize(TraceEvent(entity_key=KEY + b"0", seq=3)))])
    assert len(found(broker, traces, of_key(KEY, RecordKind.TRACE, seq=3))) == 10
    assert len(found(broker, traces, of_key(KEY, RecordKind.TRACE))) == 50
    with pytest.raises(ValueError, match="not found by key and seq"):
        of_key(KEY, RecordKind.SNAPSHOT, seq=3)
    with pytest.raises(ValueError, match="not found by key"):
        of_key(KEY, RecordKind.OUTPUT)
    with pytest.raises(ValueError, match="not found by intent id"):
        by_intent("", RecordKind.INTENT)


def test_all_answers_to_a_request(broker: Broker) -> None:
    topic = broker.topic(1)
    answers = [(KEY, "r", 3), (KEY, "r", 4), (KEY, "s", 4), (b"k", "r", 4)]
    broker.write(
        topic, [(key, serialize(StateSnapshot(entity_key=key, request_id=r, seq=seq))) for key, r, seq in answers]
    )
    assert found(broker, topic, by_request(KEY, "r")) == [0, 1]
