"""`python -m app.demo.tickets`: the front end of the example's support desk, at a Kafka of its own.

Makes the desk's topics where they are missing, tells the story once, and then sends an ordinary ticket every few
seconds. It is for the containers of `docker-compose.yml`; `hindcast demo` does the same inside its process.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from app.demo.traffic import EVENTS, TOPICS, Traffic

_PATIENCE_S: Final = 120.0
_ASK_S: Final = 10.0
_TICK_S: Final = 0.25


class NoBroker(Exception):
    """The broker does not answer, or refuses; the text says which."""


def main(arguments: list[str] | None = None) -> int:
    """Send tickets until SIGTERM or SIGINT; 0 then, 1 when the broker does not do its part."""
    options = _parser().parse_args(arguments)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        make_topics(options.brokers, stopping)
        if not options.topics_only and not stopping.is_set():
            work(options.brokers, stopping)
    except (NoBroker, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def make_topics(address: str, stopping: threading.Event) -> None:
    """Make the topics that are missing, waiting for the broker to come up. Raises `NoBroker`."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    deadline = time.monotonic() + _PATIENCE_S
    while not stopping.is_set():
        try:
            there = admin.list_topics(timeout=_ASK_S).topics
            break
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise NoBroker(f"no Kafka answers at {address}: {error.args[0].str()}") from error
    else:
        return
    wanted = [NewTopic(name, partitions, 1) for name, partitions in TOPICS.items() if name not in there]
    for name, made in admin.create_topics(wanted).items() if wanted else ():
        try:
            made.result(_ASK_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody else was faster
                raise NoBroker(f"{address} does not make the topic {name}: {error.args[0].str()}") from error


def work(address: str, stopping: threading.Event) -> None:
    """Tell the story if nobody has, and send tickets until told to stop."""
    traffic = Traffic(address)
    try:
        if _new(address):
            traffic.tell()
        while not stopping.wait(_TICK_S):
            traffic.tick()
    finally:
        traffic.stop()


def _new(address: str) -> bool:
    """Whether nothing was ever sent to the desk. Raises `NoBroker`."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "hindcast-tickets", "log_level": 2})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(EVENTS, partition), timeout=_ASK_S)[1]
            for partition in range(TOPICS[EVENTS])
        ]
    except KafkaException as error:
        raise NoBroker(f"{address} does not say where {EVENTS} ends: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return not any(ends)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app.demo.tickets", description=main.__doc__)
    parser.add_argument("--brokers", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--topics-only", action="store_true", help="make the topics, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
