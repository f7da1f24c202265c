"""The tickets of the demo's support desk: a short story at the start, then one every few seconds.

Speaks to the broker as the desk's front end would, and to nothing else of ours.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Producer

from app.wire.records import AgentEnvelope, serialize

PIPELINE: Final = "refunds"
TOPICS: Final = {f"refunds.{name}": 2 for name in ("events", "traces", "snapshots", "intents", "outputs", "errors")}
EVENTS: Final = "refunds.events"
PAUSE_S: Final = 8.0
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Ticket:
    """One customer's words, `before_ms` before the story is told."""

    customer: str
    ticket: str
    order: str
    text: str
    before_ms: int = 0

    def envelope(self, now_ms: int) -> AgentEnvelope:
        body = {"ticket": self.ticket, "order": self.order, "text": self.text}
        return AgentEnvelope(
            entity_key=self.customer.encode(),
            event_time_ms=now_ms - self.before_ms,
            external_event=json.dumps(body).encode(),
        )


NEVER_CAME: Final = "The kettle never came. May I have my money back?"
LOUD: Final = "The mill is louder than a train, I want something off."
ODD: Final = "You charged me twice for the grinder!! I want my 48,00 back, today."

STORY: Final = (
    Ticket("customer-7", "T-201", "7740", NEVER_CAME, 9 * MINUTE_MS),
    Ticket("customer-11", "T-202", "7752", LOUD, 8 * MINUTE_MS),
    Ticket("customer-42", "T-218", "7731", ODD, 6 * MINUTE_MS),
    Ticket("customer-58", "T-203", "7760", "It leaks. I send it all back, please refund the machine.", 4 * MINUTE_MS),
    Ticket("customer-63", "T-204", "7771", "Both mugs are chipped. Let me talk to a real person!", 3 * MINUTE_MS),
    Ticket("customer-23", "T-205", "7740", NEVER_CAME, 2 * MINUTE_MS),
)


class Traffic:
    """Sends tickets to the desk's events topic; not for several threads."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": address, "partitioner": "murmur2_random", "linger.ms": 0, "log_level": 2}
        )
        self._later = _later()
        self._due = time.monotonic() + PAUSE_S

    def tell(self) -> None:
        """Send the story; raises `TimeoutError` when the broker does not take it."""
        now = _now_ms()
        for ticket in STORY:
            self._send(ticket.envelope(now))
        if self._producer.flush(10.0):
            raise TimeoutError("the in-process broker does not take the demo's tickets")

    def tick(self) -> None:
        """Send the next ticket when it is time for one; returns at once."""
        self._producer.poll(0)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PAUSE_S
            self._send(next(self._later).envelope(_now_ms()))

    def stop(self) -> None:
        """Forget what was not sent yet."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _send(self, envelope: AgentEnvelope) -> None:
        self._producer.produce(EVENTS, serialize(envelope), envelope.entity_key, timestamp=_now_ms())


def _later() -> Iterator[Ticket]:
    """Ordinary tickets, of a few dozen customers in turn."""
    for number in itertools.count():
        order, text = (("7740", NEVER_CAME), ("7752", LOUD))[number % 2]
        yield Ticket(f"customer-{100 + number % 40}", f"T-{300 + number}", order, text)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
