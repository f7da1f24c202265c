"""Puts each record of a stream into its run: by what the record names, else by what it answers, else by conclusion.

A log of 0.4 with tracing names the run. Without tracing, the event that led to each event is followed back to its
input. A log of 0.3.1 names nothing: a response names its request, and for the rest there is what only one run can have
sent. What two runs can have sent is put into neither. Memory is bounded however long the log is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.flink.keys import Path
from app.flink.model import How, Placed
from app.flink.nested import NestedRuns
from app.flink.records import INPUT, Form, Record, Stream, run_ref

LINEAGE_KEPT: Final = 50_000  # event ids whose run is remembered, of one subtask without tracing
_LINEAGE_SAVED: Final = 2_000
_STREAMS: Final = 1_024  # subtasks that are followed at once


class Placer:
    """Places records one by one, in the order of the log; `state` and `resume` carry it over a restart."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._paths = tuple(paths)
        self._nested: OrderedDict[Stream, NestedRuns] = OrderedDict()
        self._lineage: OrderedDict[Stream, OrderedDict[str, str]] = OrderedDict()

    def place(self, record: Record) -> Placed:
        """Say which run a record is of."""
        if record.form is Form.NESTED:
            return self._runs(record.stream).place(record)
        if record.run_id is not None:
            return Placed(record, record.run_id, How.RUN_ID)
        return self._by_lineage(record)

    def _runs(self, stream: Stream) -> NestedRuns:
        runs = self._nested.get(stream)
        if runs is None:
            runs = self._nested[stream] = NestedRuns(self._paths)
            if len(self._nested) > _STREAMS:
                self._nested.popitem(last=False)
        self._nested.move_to_end(stream)
        return runs

    def _by_lineage(self, record: Record) -> Placed:
        known = self._lineage.setdefault(record.stream, OrderedDict())
        self._lineage.move_to_end(record.stream)
        if len(self._lineage) > _STREAMS:
            self._lineage.popitem(last=False)
        if record.type == INPUT and record.upstream_event_id is None:
            run, how = run_ref(record), How.INPUT
        elif (led := known.get(record.upstream_event_id or "")) is not None:
            run, how = led, How.LINEAGE
        else:
            return Placed(record, None, None)
        known[record.event_id] = run
        if len(known) > LINEAGE_KEPT:
            known.popitem(last=False)
        return Placed(record, run, how)

    def state(self) -> list[dict[str, Any]]:
        """What must be known to go on placing after a restart, or in the next file, as JSON: one object a stream."""
        told: dict[Stream, dict[str, Any]] = {}
        for stream, runs in self._nested.items():
            told.setdefault(stream, {"stream": list(stream)})["nested"] = runs.state()
        for stream, known in self._lineage.items():
            told.setdefault(stream, {"stream": list(stream)})["lineage"] = list(known.items())[-_LINEAGE_SAVED:]
        return list(told.values())

    def resume(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Go on from a `state`, or from those of its streams that are wanted."""
        for told in state:
            job, task, subtask = told["stream"]
            stream = Stream(job, task, subtask)
            if "nested" in told:
                self._nested[stream] = NestedRuns(self._paths)
                self._nested[stream].resume(told["nested"])
            if "lineage" in told:
                self._lineage[stream] = OrderedDict((event, run) for event, run in told["lineage"])
