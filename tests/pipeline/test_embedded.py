"""The embedded host: whatever kills it, nothing is lost, and what is sent again has the same bytes."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from app.demo.broker import EmbeddedBroker
from app.pipeline.embedded import EmbeddedPipeline, PipelineStopped, Topics
from app.pipeline.emission import NotBytes
from app.pipeline.keyed import Stream, encode
from app.pipeline.keyspace import Keyspace
from app.runtime.config import AgentConfig
from app.wire import identity
from app.wire.records import AgentEnvelope, StateSnapshot, parse, serialize
from tests.pipeline import scripted
from tests.pipeline.dying import POINTS
from tests.pipeline.topics import Reader, Writer, first_occurrences, make
from tests.waiting import PATIENCE_S, ended, joined, until

NOW = time.time_ns() // 1_000_000
HOUR_MS = 3_600_000
TOPICS = Topics.below("desk")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        make(started, TOPICS)
        yield started


def pipeline(
    broker: EmbeddedBroker, folder: Path, *, wall: Callable[[], int] | None = None, **options: object
) -> EmbeddedPipeline:
    """A pipeline around the scripted agent, by a clock of the test's where one is given."""
    config = AgentConfig(scripted.provider, **options)  # type: ignore[arg-type]
    kafka = {"bootstrap.servers": broker.address, "reconnect.backoff.max.ms": 200}
    clock = {} if wall is None else {"wall": wall}
    return EmbeddedPipeline(scripted.agent, config, TOPICS, kafka, folder / "journal", **clock)


def go_on(host: EmbeddedPipeline) -> None:
    """Take elements until that fails."""

    def poll() -> bool:
        host.poll(1.0)
        return False

    until(poll, "a failure", pause_s=0)


def life(number: int) -> list[AgentEnvelope]:
    """A key's elements, each leaving records that no other leaves."""
    key = b"key-%d" % number
    at = NOW + 1000 * number
    pause = ("sleep", 0.002)
    approval = identity.intent_id(key, 1, 0)
    envelopes = [
        scripted.start(("append", "log", "a"), ("ask", "hi"), ("act", "pay"), pause, ("out", f"{number} one"), at=at),
        scripted.start(
            ("approve",), pause, ("suspend", None, [("append", "log", "b"), ("out", f"{number} two")]), at=at + 1
        ),
        scripted.export(f"inc-{number}", at=at + 2),
        scripted.start(("act", "pay"), ("fail", "no"), at=at + 3),
        scripted.approval(approval, at=at + 4),
        scripted.approval(approval, at=at + 5),
        scripted.start(pause, ("out", f"{number} three"), at=at + 6),
        scripted.export(f"end-{number}", at=at + 7),
    ]
    for envelope in envelopes:
        envelope.entity_key = key
    return envelopes


def everything(keys: int) -> list[AgentEnvelope]:
    """Many lives, interleaved."""
    lives = [life(number) for number in range(keys)]
    return [envelope for turn in zip(*lives, strict=True) for envelope in turn]


def expected(envelopes: list[AgentEnvelope]) -> dict[Stream, list[bytes]]:
    """What the bare processor makes of them."""
    keys = Keyspace(scripted.settings(decode=None), wall=lambda: NOW)
    streams: dict[Stream, list[bytes]] = {stream: [] for stream in Stream}
    for envelope in envelopes:
        for emission in keys.process(envelope.entity_key, envelope).step.emissions:
            streams[emission.stream].append(encode(emission))
    keys.close()
    return streams


class Process:
    """The pipeline's own command in a process of its own."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, module: str = "app.pipeline", *dying: str) -> None:
        scripted_agent = ["--agent", "tests.pipeline.scripted:agent", "--provider", "tests.pipeline.scripted:provider"]
        place = ["--brokers", broker.address, "--topics", "desk", "--journal", str(folder / "journal")]
        command = [sys.executable, "-m", module, *dying, *scripted_agent, *place]
        self._errors = (folder / "errors").open("ab")
        self._process = subprocess.Popen(command, cwd=ROOT, stderr=self._errors)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return ended(self._process)

    def wait(self) -> int:
        return ended(self._process)


def ends(broker: EmbeddedBroker, wanted: dict[Stream, list[bytes]]) -> dict[Stream, list[bytes]]:
    """Read until all that is wanted has been seen at least once."""
    reader = Reader(broker.address, TOPICS)
    sets = {stream: set(values) for stream, values in wanted.items()}
    reader.read_until(lambda: all(sets[stream] <= set(values) for stream, values in reader.values().items()))
    reader.read_up()
    reader.close()
    return reader.values()


def check(wanted: dict[Stream, list[bytes]], sent: dict[Stream, list[bytes]]) -> int:
    """Nothing lost, nothing else, in order; returns how many records were sent again."""
    for stream, values in wanted.items():
        assert len(set(values)) == len(values), "each record is to be told from any other"
        assert first_occurrences(sent[stream]) == values, stream
    return sum(len(sent[stream]) - len(values) for stream, values in wanted.items())


def seen(reader: Reader, traces: int) -> bool:
    return len(set(reader.values()[Stream.TRACES])) >= traces


class TestKill:
    def test_at_any_moment(self, broker: EmbeddedBroker, tmp_path: Path) -> None:
        """SIGKILL again and again while it works; the last one is left to finish."""
        envelopes = everything(40)
        wanted = expected(envelopes)
        Writer(broker.address).send(TOPICS.events, *envelopes)
        reader = Reader(broker.address, TOPICS)
        moments = random.Random(7)
        for number in range(6):
            process = Process(broker, tmp_path)
            aim = len(wanted[Stream.TRACES]) * (number + 1) // 8
            reader.read_until(partial(seen, reader, aim))
            time.sleep(moments.uniform(0, 0.05))
            process.kill()
        process = Process(broker, tmp_path)
        sent = ends(broker, wanted)
        assert process.end() == 0
        check(wanted, sent)
        reader.close()

    @pytest.mark.parametrize("point", POINTS)
    def test_at_the_worst_moments(self, broker: EmbeddedBroker, tmp_path: Path, point: str) -> None:
        envelopes = everything(6)
        wanted = expected(envelopes)
        Writer(broker.address).send(TOPICS.events, *envelopes)
        for times in ("2", "1"):
            assert Process(broker, tmp_path, "tests.pipeline.dying", point, times).wait() == -signal.SIGKILL
        process = Process(broker, tmp_path)
        again = check(wanted, ends(broker, wanted))
        assert process.end() == 0
        if point == "arrived, not written":
            assert again > 0

    def test_while_a_suspension_waits_for_its_deadline(self, broker: EmbeddedBroker, tmp_path: Path) -> None:
        """The timer is part of the state: it fires in a later process, at the time it was set to."""
        at = time.time_ns() // 1_000_000
        envelope = scripted.start(("approve",), ("suspend", HOUR_MS), at=at)
        Writer(broker.address).send(TOPICS.events, envelope)
        process = Process(broker, tmp_path)
        reader = Reader(broker.address, TOPICS)
        reader.read_until(lambda: bool(reader.records[Stream.INTENTS]))
        process.kill()
        # Whoever takes over fires it not a moment before its time, and then at once.
        now = [at + HOUR_MS - 1]
        with pipeline(broker, tmp_path, wall=lambda: now[0]) as host:
            host.fire_due()
            reader.read_up()
            assert reader.records[Stream.OUTPUTS] == []
            now[0] += 1
            host.fire_due()
        reader.read_until(lambda: bool(reader.records[Stream.OUTPUTS]))
        assert reader.records[Stream.OUTPUTS] == [(scripted.KEY, b"__hitl_timeout__")]
        reader.close()


def test_a_start_after_an_orderly_end_sends_nothing_again(broker: EmbeddedBroker, tmp_path: Path) -> None:
    envelopes, later = everything(3), life(9)[:1]
    Writer(broker.address).send(TOPICS.events, *envelopes[:10])
    # What the second one sends for the later element comes after all that it would send again.
    for part, taken in ((envelopes[10:], envelopes), (later, [*envelopes, *later])):
        process = Process(broker, tmp_path)
        Writer(broker.address).send(TOPICS.events, *part)
        wanted = expected(taken)
        sent = ends(broker, wanted)
        assert process.end(signal.SIGINT) == 0
        assert sent == wanted


def test_told_to_stop_while_it_starts_it_ends_in_good_order(broker: EmbeddedBroker, tmp_path: Path) -> None:
    host = pipeline(broker, tmp_path)
    host.stop()
    with host:
        host.run()
    Writer(broker.address).send(TOPICS.events, scripted.start(("out", "later"), at=NOW))
    with pipeline(broker, tmp_path) as again:
        while not again.poll(1.0):
            pass


def test_keys_and_exports(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Every record carries the entity key; an answer to an export is the state of that moment."""
    envelopes = life(1)
    Writer(broker.address).send(TOPICS.events, *envelopes)
    with pipeline(broker, tmp_path) as host:
        taken = 0
        while taken < len(envelopes):
            taken += host.poll(1.0)
    reader = Reader(broker.address, TOPICS)
    reader.read_up()
    reader.close()
    assert {key for pairs in reader.records.values() for key, _ in pairs} == {b"key-1"}
    snapshots = [parse(StateSnapshot, value) for value in reader.values()[Stream.SNAPSHOTS]]
    assert [(one.request_id, one.seq) for one in snapshots] == [("inc-1", 2), ("end-1", 4)]


def test_what_is_no_envelope_is_passed_over(
    broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(broker.address)
    writer.send_bytes(TOPICS.events, b"k", b"\xff\xff\xff")
    writer.send_bytes(TOPICS.events, b"k", None)
    writer.send(TOPICS.events, scripted.start(("out", "after"), at=NOW))
    with pipeline(broker, tmp_path) as host:
        while not host.poll(1.0):
            pass
        assert host.unreadable == 1
    assert "desk.events[0] offset 0: not an AgentEnvelope: 3 bytes do not parse as one" in caplog.text
    reader = Reader(broker.address, TOPICS)
    reader.read_up()
    reader.close()
    assert reader.values()[Stream.OUTPUTS] == [b"after"]


def test_a_broker_that_is_away_for_a_while(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Down while there is something to send: it waits, and sends it once."""
    envelopes = everything(2)
    wanted = expected(envelopes)
    writer = Writer(broker.address)
    with pipeline(broker, tmp_path) as host:
        worker = threading.Thread(target=host.run)
        worker.start()
        writer.send(TOPICS.events, *envelopes[:4])
        reader = Reader(broker.address, TOPICS)
        reader.read_until(lambda: bool(reader.records[Stream.TRACES]))
        broker.take_down()
        time.sleep(0.5)
        broker.bring_up()
        writer.send(TOPICS.events, *envelopes[4:])
        sets = {stream: set(values) for stream, values in wanted.items()}
        reader.read_until(lambda: all(sets[stream] <= set(values) for stream, values in reader.values().items()))
        host.stop()
        joined(worker)
        reader.close()
    assert reader.values() == wanted


def test_a_stop_while_the_broker_is_away_keeps_what_was_not_sent(broker: EmbeddedBroker, tmp_path: Path) -> None:
    writer = Writer(broker.address)
    with pipeline(broker, tmp_path) as host:
        writer.send(TOPICS.events, scripted.start(("out", "kept"), at=NOW))
        producing = host._producer.produce
        turned = threading.Event()

        class Away:
            """The producer, with the broker taken down between the journal and the first record."""

            def __getattr__(self, name: str) -> object:
                return getattr(producer, name)

            def produce(self, *arguments: object, **named: object) -> None:
                if not turned.is_set():
                    broker.take_down()
                    turned.set()
                producing(*arguments, **named)  # type: ignore[arg-type]

        producer, host._producer = host._producer, Away()  # type: ignore[assignment]
        worker = threading.Thread(target=host.run)
        worker.start()
        assert turned.wait(PATIENCE_S)
        time.sleep(0.3)
        host.stop()
        joined(worker)
    broker.bring_up()
    with pipeline(broker, tmp_path):
        pass
    reader = Reader(broker.address, TOPICS)
    reader.read_up()
    reader.close()
    assert first_occurrences(reader.values()[Stream.OUTPUTS]) == [b"kept"]


def test_an_output_that_is_no_bytes_ends_it(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Nothing of that turn is written or sent, and it is met again after a restart."""
    Writer(broker.address).send(TOPICS.events, scripted.start(("text", "no bytes"), at=NOW))
    for _ in range(2):
        with pipeline(broker, tmp_path) as host, pytest.raises(NotBytes, match="card-4242"):
            go_on(host)
    reader = Reader(broker.address, TOPICS)
    reader.read_up()
    reader.close()
    assert not any(reader.values().values())


def test_a_record_the_broker_cannot_take(broker: EmbeddedBroker, tmp_path: Path) -> None:
    Writer(broker.address).send(TOPICS.events, scripted.start(("out", "x" * 5000), at=NOW))
    host = pipeline(broker, tmp_path)
    host._kafka["message.max.bytes"] = 3000
    with host, pytest.raises(PipelineStopped, match=r"record of 5000 bytes to desk.outputs: .*message.max.bytes"):
        go_on(host)
    with pipeline(broker, tmp_path):
        pass
    reader = Reader(broker.address, TOPICS)
    reader.read_up()
    reader.close()
    assert reader.values()[Stream.OUTPUTS] == [b"x" * 5000], "with a higher limit it goes out, from the journal"


def test_a_topic_made_anew_is_for_a_person_to_decide(tmp_path: Path) -> None:
    for number in range(2):
        with EmbeddedBroker() as broker:
            make(broker, TOPICS)
            if number == 0:
                Writer(broker.address).send(TOPICS.events, *everything(2))
                with pipeline(broker, tmp_path) as host:
                    while not host.poll(1.0):
                        pass
            else:
                with pipeline(broker, tmp_path) as host, pytest.raises(PipelineStopped, match="remove the journal"):
                    go_on(host)


def test_a_missing_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:
        host = EmbeddedPipeline(
            scripted.agent,
            AgentConfig(scripted.provider),
            TOPICS,
            {"bootstrap.servers": broker.address, "allow.auto.create.topics": False},
            tmp_path / "journal",
        )
        with monkeypatch.context() as short:
            short.setattr("app.pipeline.embedded._START_S", 0.5)
            with pytest.raises(PipelineStopped, match=r"cannot read the topic desk\.events"):
                host.open()
        # And the journal is free again.
        make(broker, TOPICS)
        host.open()
        host.close()


def test_event_time_goes_by_all_partitions(tmp_path: Path) -> None:
    """A partition that lags holds the wipes back; an export request's stamp moves nothing."""
    with EmbeddedBroker() as broker:
        make(broker, TOPICS, events_partitions=2)
        writer = Writer(broker.address)
        late = scripted.start(("set", "a", "1"), at=NOW - 9_000)
        late.entity_key = b"late"
        writer.send(TOPICS.events, late, partition=1)
        writer.send(TOPICS.events, scripted.start(("set", "a", "1"), at=NOW - 8_500))
        with pipeline(broker, tmp_path, ttl_ms=1000) as host:
            taken = 0
            while taken < 2:
                taken += host.poll(1.0)
            host.fire_due()
            assert set(host._keys.states) == {b"late", scripted.KEY}
            request = scripted.export("inc", at=NOW + 9_000)
            writer.send(TOPICS.events, request)
            while not host.poll(1.0):
                pass
            host.fire_due()
            assert set(host._keys.states) == {b"late", scripted.KEY}
            writer.send(TOPICS.events, scripted.start(at=NOW - 7_900))
            while not host.poll(1.0):
                pass

            def wiped() -> bool:
                host.poll(0.05)  # to the end of both partitions
                host.fire_due()
                return b"late" not in host._keys.states

            until(wiped, pause_s=0)
            assert set(host._keys.states) == {scripted.KEY}


def test_sinks_of_a_beam_pipeline_are_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"AgentConfig\.traces_to is for a Beam pipeline"):
        pipeline(broker, tmp_path, traces_to="kafka://broker:9092/traces")


def test_envelopes_are_told_apart() -> None:
    """The comparison rests on it: every element of the kill tests leaves bytes of its own."""
    envelopes = everything(40)
    assert len({serialize(envelope) for envelope in envelopes}) == len(envelopes)
