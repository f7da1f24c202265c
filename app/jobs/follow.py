"""Follows one pipeline in a thread: what the broker sends goes into the database, batch by batch, exactly once.

Whatever goes wrong, the thread goes on from what is stored. Only one process follows a pipeline; others stand by.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy.exc import DBAPIError

from app.incidents.collecting import Fenced, Hold, Intake, Outcome, Prepared, Stored
from app.incidents.deliveries import mark_of
from app.incidents.freeze import Rule
from app.kafka.client import Reader
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError
from app.kafka.intake import Batch, Follower, Gap, GapReason, Start
from app.kafka.records import record_of
from app.kafka.topics import Stream

_LOG: Final = logging.getLogger(__name__)

# Small batches cost more each record, so a trickle is gathered for a moment; an answer to an export never waits.
_LINGER_S: Final = 0.2
_MOST_RECORDS: Final = 20_000
# From so many at once on, fetching goes on while they are written.
_BUSY_RECORDS: Final = 1_000
_MOST_BYTES: Final = 32 * 1024 * 1024
_WAIT_S: Final = 0.25
_AGAIN_S: Final = 1.0
_STAND_BY_S: Final = 2.0
# Long enough for a broker that is only slow: whoever goes on unsure may pass over what a topic made anew holds.
_LOOK_BACK_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Condition:
    """How following goes at the moment; `caught_up` says that everything there was is stored."""

    holding: bool = False
    caught_up: bool = False
    trouble: str | None = None
    lags: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Follow:
    """One pipeline's thread. `told` is called, from the thread, with what each stored batch came to."""

    url: str
    pipeline: Pipeline
    rules: Sequence[Rule] = ()
    start: Start = Start.BEGINNING
    told: Callable[[str, Outcome], None] = lambda pipeline, outcome: None
    condition: Condition = Condition()
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def begin(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"follow {self.pipeline.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have it end after the batch that it is storing."""
        self._stopping.set()

    def join(self, timeout_s: float = 30.0) -> None:
        """Wait until it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        hold = Hold(self.url, self.pipeline.name)
        try:
            while not self._stopping.is_set():
                try:
                    if hold.take():
                        self.condition = Condition(holding=True)
                        self._follow(hold)
                    else:
                        self.condition = Condition(trouble="another collector follows this pipeline; standing by")
                        self._stopping.wait(_STAND_BY_S)
                except (DBAPIError, OSError) as error:
                    self._lament(f"the database is away: {_first_line(error)}")
                    hold.let_go()
                except Fenced as error:
                    self._lament(str(error))
                except BrokerError as error:
                    self._lament(str(error))
                except Exception as error:  # noqa: BLE001  whatever it was, following goes on from what is stored
                    _LOG.exception("pipeline %s: following failed, and begins anew", self.pipeline.name)
                    self._lament(f"following failed, and begins anew: {type(error).__name__}: {error}")
        finally:
            hold.let_go()
            self.condition = Condition()

    def _lament(self, trouble: str) -> None:
        _LOG.warning("pipeline %s: %s", self.pipeline.name, trouble)
        self.condition = Condition(holding=self.condition.holding, trouble=trouble)
        self._stopping.wait(_AGAIN_S)

    def _follow(self, hold: Hold) -> None:
        """Store what comes, until told to stop or until something breaks."""
        intake = Intake(self.url, self.pipeline.name, self.rules)
        try:
            stored = self._look_back(intake, intake.positions())
            places = {place: one.next_offset for place, one in stored.items()}
            # While one batch is written, the next is fetched, decoded and compressed.
            with (
                ThreadPoolExecutor(1, thread_name_prefix=f"write {self.pipeline.name}") as writer,
                Follower(
                    self.pipeline, places, start=self.start, most_records=_MOST_RECORDS, most_bytes=_MOST_BYTES
                ) as follower,
            ):
                self._loop(intake, follower, writer, hold)
        finally:
            intake.close()

    def _loop(self, intake: Intake, follower: Follower, writer: ThreadPoolExecutor, hold: Hold) -> None:
        writing: Future[Outcome] | None = None
        held = time.monotonic()
        while not self._stopping.is_set():
            found = self._pull(follower)
            for prepared in self._prepare(intake, found):
                if writing is not None:
                    self._tell(writing.result())
                writing = writer.submit(intake.write, prepared)
            if writing is not None and _count(found) < _BUSY_RECORDS:
                self._tell(writing.result())
                writing = None
            condition = _condition(follower)
            self.condition = condition if writing is None else replace(condition, caught_up=False)
            if time.monotonic() - held > _STAND_BY_S:
                held = time.monotonic()
                if not hold.take():
                    break
        if writing is not None:
            self._tell(writing.result())

    def _pull(self, follower: Follower) -> list[Batch | Gap]:
        """Take what has come; wait a little for more while there is little, unless somebody waits for it."""
        found = follower.pull(_WAIT_S)
        deadline = time.monotonic() + _LINGER_S
        while found and not _urgent(found) and not self._stopping.is_set():
            left = deadline - time.monotonic()
            if left <= 0 or _count(found) >= _MOST_RECORDS // 2:
                break
            found += follower.pull(left)
        return found

    def _prepare(self, intake: Intake, found: Sequence[Batch | Gap]) -> Iterator[Prepared]:
        """Prepare batches and gaps in the order in which they came; gaps are rare, and are written by themselves."""
        batches: list[Batch] = []
        for one in found:
            if isinstance(one, Batch):
                batches.append(one)
                continue
            if batches:
                yield intake.prepare(batches)
                batches = []
            _LOG.warning(
                "pipeline %s: offsets %d to %d of %s/%d are lost to us: %s",
                self.pipeline.name, one.expected, one.next_offset - 1, one.topic, one.partition, one.reason,
            )  # fmt: skip
            yield intake.prepare((), [(one, one.reason is GapReason.ANEW)])
        if batches:
            yield intake.prepare(batches)

    def _tell(self, outcome: Outcome) -> None:
        self.told(self.pipeline.name, outcome)

    def _look_back(self, intake: Intake, stored: Mapping[tuple[str, int], Stored]) -> Mapping[tuple[str, int], Stored]:
        """Compare the last stored record of each partition with the log: a topic may have been made anew since.

        Where the log no longer holds it, or does not answer in time, nothing is known, and reading goes on.
        """
        places = {place: one for place, one in stored.items() if one.mark is not None and one.next_offset > 0}
        if not places:
            return stored
        anew = []
        with Reader(self.pipeline, extra={"fetch.wait.max.ms": 20}) as reader:
            reader.assign({place: one.next_offset - 1 for place, one in places.items()})
            waiting = dict(places)
            deadline = time.monotonic() + _LOOK_BACK_S
            while waiting and time.monotonic() < deadline and not self._stopping.is_set():
                for message in reader.batch(1000, 0.1):
                    place = (message.topic() or "", message.partition() or 0)
                    one = waiting.pop(place, None)
                    if one is None or message.error() is not None:
                        continue
                    record = record_of(message)
                    if record.offset == one.next_offset - 1 and mark_of(record) != one.mark:
                        anew.append(place)
            if waiting and not self._stopping.is_set():
                _LOG.warning("pipeline %s: of %s the broker does not say whether it was made anew; reading goes on",
                             self.pipeline.name, ", ".join(f"{topic}/{n}" for topic, n in sorted(waiting)))  # fmt: skip
            begins = {topic: reader.earliest(topic, [n for t, n in anew if t == topic]) for topic, _ in anew}
        for topic, partition in anew:
            stream = self.pipeline.topics.stream_of(topic)
            if stream is not None:
                _LOG.warning("pipeline %s: %s/%d was made anew; it is read from its beginning",
                             self.pipeline.name, topic, partition)  # fmt: skip
                intake.begin_anew(topic, partition, str(stream), begins[topic][partition])
        return intake.positions() if anew else stored


def _count(found: Sequence[Batch | Gap]) -> int:
    return sum(len(one.records) for one in found if isinstance(one, Batch))


def _urgent(found: Sequence[Batch | Gap]) -> bool:
    return any(one.stream is Stream.SNAPSHOTS for one in found)


def _condition(follower: Follower) -> Condition:
    lags = {f"{topic}/{partition}": lag for (topic, partition), lag in follower.lags().items() if lag}
    return Condition(True, follower.caught_up, follower.trouble, lags, dict(follower.missing))


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", error)).strip().splitlines()[0]
