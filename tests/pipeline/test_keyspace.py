"""Many keys: which timer fires when, and how far event time has come."""

import pytest

from app.pipeline.keyed import Stream, Timer
from app.pipeline.keyspace import EVENT_TIME, PROCESSING_TIME, Keyspace
from app.pipeline.watermark import EventTimeWatermark
from app.wire.records import AgentEnvelope
from tests.pipeline import scripted
from tests.pipeline.scripted import NOW, WALL


@pytest.fixture
def keys():  # type: ignore[no-untyped-def]
    made = Keyspace(scripted.settings(ttl_ms=1000), wall=lambda: WALL)
    yield made
    made.close()


def element(key: bytes, at: int, *operations: tuple) -> AgentEnvelope:  # type: ignore[type-arg]
    envelope = scripted.start(*operations, at=at)
    envelope.entity_key = key
    return envelope


WAIT = (("approve", 9_000), ("suspend", 50))


class TestTimers:
    def test_in_the_order_of_their_times(self, keys: Keyspace) -> None:
        for key, at in ((b"a", 30), (b"b", 10), (b"c", 20), (b"d", 10)):
            keys.process(key, element(key, at))
        assert keys.next_due(EVENT_TIME) == 1010
        fired = list(keys.fire_due(EVENT_TIME, 1020))
        assert [turned.key for turned in fired] == [b"b", b"d", b"c"]
        assert list(keys.states) == [b"a"], "a wiped key is not kept"
        assert keys.next_due(EVENT_TIME) == 1030
        assert keys.next_due(PROCESSING_TIME) is None

    def test_only_the_latest_setting_counts(self, keys: Keyspace) -> None:
        keys.process(b"a", element(b"a", 10))
        keys.process(b"a", element(b"a", 500))
        assert list(keys.fire_due(EVENT_TIME, 1499)) == []
        keys.process(b"a", element(b"a", 20))
        assert [turned.key for turned in keys.fire_due(EVENT_TIME, 1499)] == [b"a"]

    def test_a_busy_key_does_not_fill_the_heap(self, keys: Keyspace) -> None:
        for at in range(3000):
            keys.process(b"a", element(b"a", at))
        assert len(keys._due[Timer.TTL]) <= 1026
        assert [turned.key for turned in keys.fire_due(EVENT_TIME, None)] == [b"a"]

    def test_the_two_times_are_kept_apart(self, keys: Keyspace) -> None:
        keys.process(b"a", element(b"a", NOW, *WAIT))
        assert list(keys.fire_due(EVENT_TIME, NOW + 1000)) == []
        (turned,) = keys.fire_due(PROCESSING_TIME, NOW + 50)
        assert [emission.stream for emission in turned.step.emissions] == [Stream.OUTPUTS, Stream.TRACES]

    def test_they_are_set_from_kept_states(self, keys: Keyspace) -> None:
        keys.process(b"a", element(b"a", NOW, *WAIT))
        again = Keyspace(keys.settings, lambda: WALL, keys.states)
        fired = list(again.fire_due(PROCESSING_TIME, NOW + 50))
        assert fired == list(keys.fire_due(PROCESSING_TIME, NOW + 50))
        assert again.states == keys.states
        again.close()

    def test_what_fails_is_still_due(self, keys: Keyspace) -> None:
        async def refuse(*_: object) -> None:
            raise ConnectionError

        keys.settings = scripted.settings(ttl_ms=1000, longterm_memory="memory://", on_expire=refuse)
        keys.process(b"a", element(b"a", 10, ("set", "a", "1")))
        for _ in range(2):
            with pytest.raises(ConnectionError):
                list(keys.fire_due(EVENT_TIME, None))
        assert list(keys.states) == [b"a"]


class TestWatermark:
    def test_the_slowest_partition_decides(self) -> None:
        mark = EventTimeWatermark([0, 1])
        mark.saw(0, 100)
        assert mark.value(WALL) == 0, "nothing is known of partition 1"
        mark.saw(1, 40)
        mark.saw(1, 30)
        assert mark.value(WALL) == 40
        mark.drained(1)
        assert mark.value(WALL) == 100
        mark.saw(1, 60)
        assert mark.value(WALL) == 100, "it never goes back"

    def test_quiet_partitions_hold_nothing_back(self) -> None:
        mark = EventTimeWatermark([0, 1])
        mark.saw(0, 100)
        mark.drained(1)
        mark.drained(0)
        assert mark.value(WALL) == 100

    def test_nothing_read_nothing_known(self) -> None:
        mark = EventTimeWatermark([0], floor_ms=7)
        mark.drained(0)
        assert mark.value(WALL) == 7

    def test_an_event_from_the_future_waits_for_the_clock(self) -> None:
        mark = EventTimeWatermark([0])
        mark.saw(0, WALL + 5000)
        assert mark.value(WALL) == WALL
        assert mark.value(WALL + 9000) == WALL + 5000
