"""The in-process broker is a real one to everybody else, and gone with the process that made it."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from app.demo.broker import EmbeddedBroker
from tests.waiting import PATIENCE_S, until

OWNER = """
import sys, time
from app.demo.broker import EmbeddedBroker
print(EmbeddedBroker({"events": 6, "traces": 2}).start(), flush=True)
time.sleep(600)
"""


def test_topics_have_the_partitions_asked_for() -> None:
    with EmbeddedBroker({"events": 6, "traces": 2}) as broker:
        broker.create("later", 9)
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "look"})
        topics = consumer.list_topics(timeout=PATIENCE_S).topics
        consumer.close()
    assert {name: len(one.partitions) for name, one in topics.items()} == {"events": 6, "traces": 2, "later": 9}


def test_other_processes_use_it_and_it_dies_with_its_owner() -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        producer = Producer({"bootstrap.servers": address})
        producer.produce(
            "events", b"value", key=b"key", partition=5, headers=[("h", b"1")], timestamp=1_700_000_000_000
        )
        assert producer.flush(PATIENCE_S) == 0
        consumer = Consumer({"bootstrap.servers": address, "group.id": "look", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("events", 5, 0)])
        message = consumer.poll(PATIENCE_S)
        consumer.close()
        assert message is not None
        assert (message.key(), message.value(), message.headers()) == (b"key", b"value", [("h", b"1")])
        assert message.timestamp()[1] == 1_700_000_000_000
        owner.send_signal(signal.SIGKILL)
        (server,) = listeners(address)
    until(lambda: server not in listeners(address), "the end of its socket")


def listeners(address: str) -> set[str]:
    """The sockets that listen at an address of this machine, by the kernel's numbers, which are used once.

    Whether the address answers says less: somebody else may be given its port the moment that it is free.
    """
    host, port = address.split(":")
    wanted = f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{int(port):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[1] == wanted and row[3] == "0A"}


def test_starting_and_stopping_leaves_nothing_behind() -> None:
    for _ in range(5):
        with EmbeddedBroker({"events": 1}) as broker:
            address = broker.address
            (server,) = listeners(address)
        assert server not in listeners(address)
