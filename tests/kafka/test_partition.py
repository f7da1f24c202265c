"""The partition of a key is the one that each family of producers would choose."""

import random
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Message

from app.kafka.partition import Partitioner, fitting, murmur2, partition_of
from scripts.kafka import KafkaMissing, jars
from tests.fixtures.kafka import Broker

chance = random.Random(11)
KEYS = [chance.randbytes(length) for length in range(40)] + [
    b"\x00",
    b"\x80\xff\xfe",
    b"customer-42",
    b"card-4242",
    "ключ-€-🔑".encode(),
    b"\xff" * 17,
]


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # What Apache Kafka's own murmur2 gives, as Java's signed integers.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_values_of_murmur2(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.timeout(1200)  # it may have to fetch Kafka's jars
def test_java_agrees() -> None:
    # complaint 31
    if shutil.which("javac") is None:
        pytest.skip("no Java compiler; run: sudo apt-get install default-jdk-headless")
    try:
        libraries = jars()
    except KafkaMissing as error:
        pytest.skip(str(error))
    source = Path(__file__).with_name("Partitions.java")
    counts = (1, 2, 7, 96)
    # An `x` before the hex, since an empty argument would get lost.
    command = [
        "java",
        "-cp",
        f"{libraries}/*",
        str(source),
        ",".join(map(str, counts)),
        *(f"x{key.hex()}" for key in KEYS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = list(map(int, done.stdout.split()))
    assert theirs == [partition_of(key, count, Partitioner.MURMUR2) for count in counts for key in KEYS]


def note(found: dict[bytes, set[int]], error: object, message: Message) -> None:  # type: ignore[type-arg]
    assert error is None
    found.setdefault(message.key() or b"", set()).add(message.partition() or 0)


@pytest.mark.parametrize("partitioner", list(Partitioner))
def test_librdkafka_agrees(mock_broker: Broker, partitioner: Partitioner) -> None:
    # complaint 31
    for partitions in (2, 17):
        topic = mock_broker.topic(partitions)
        producer = mock_broker.producer(partitioner=partitioner.value)
        found: dict[bytes, set[int]] = {}
        for _ in range(3):
            for key in KEYS:
                producer.produce(topic, b"", key=key, on_delivery=partial(note, found))
            producer.flush(60)
        for key in KEYS:
            own = partition_of(key, partitions, partitioner)
            assert own is None or found[key] == {own}, key


def test_the_empty_key() -> None:
    # complaint 31
    assert partition_of(b"", 9, Partitioner.CONSISTENT_RANDOM) is None
    assert partition_of(b"", 9, Partitioner.CONSISTENT) == 0
    assert partition_of(b"", 9, Partitioner.MURMUR2) == (murmur2(b"") & 0x7FFFFFFF) % 9
    with pytest.raises(ValueError, match="at least one partition, not 0"):
        partition_of(b"k", 0, Partitioner.MURMUR2)


@pytest.mark.parametrize("partitioner", [Partitioner.MURMUR2, Partitioner.CONSISTENT_RANDOM, Partitioner.FNV1A])
def test_the_partitioner_can_be_told_from_where_keys_are(partitioner: Partitioner) -> None:
    placed = [(key, own) for key in KEYS if (own := partition_of(key, 12, partitioner)) is not None]
    fits = fitting(placed, 12)
    assert partitioner in fits
    assert len({partition_of(b"customer-42", 12, one) for one in fits}) == 1
    assert fitting([*placed, (b"customer-42", (placed[-1][1] + 1) % 12), (b"customer-42", placed[-1][1])], 12) == ()


def test_nothing_is_told_from_nothing() -> None:
    assert fitting([], 12) == ()
    assert fitting([(b"k", 0)], 1) == ()
