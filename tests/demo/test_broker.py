"""The in-process broker is a real one to everybody else, and gone with the process that made it."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from app.demo.broker import EmbeddedBroker

OWNER = """
import sys, time
from app.demo.broker import EmbeddedBroker
print(EmbeddedBroker({"events": 6, "traces": 2}).start(), flush=True)
time.sleep(60)
"""


def test_topics_have_the_partitions_asked_for() -> None:
    with EmbeddedBroker({"events": 6, "traces": 2}) as broker:
        broker.create("later", 9)
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "look"})
        topics = consumer.list_topics(timeout=5).topics
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
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": address, "group.id": "look", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("events", 5, 0)])
        message = consumer.poll(60)
        consumer.close()
        assert message is not None
        assert (message.key(), message.value(), message.headers()) == (b"key", b"value", [("h", b"1")])
        assert message.timestamp()[1] == 1_700_000_000_000
        owner.send_signal(signal.SIGKILL)
    host, port = address.split(":")
    deadline = time.monotonic() + 60
    with socket.socket() as probe:
        while probe.connect_ex((host, int(port))) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_starting_and_stopping_leaves_nothing_behind() -> None:
    addresses = set()
    for _ in range(5):
        with EmbeddedBroker({"events": 1}) as broker:
            addresses.add(broker.address)
    assert len(addresses) == 5
    for address in addresses:
        host, port = address.split(":")
        with socket.socket() as probe:
            assert probe.connect_ex((host, int(port))) != 0
