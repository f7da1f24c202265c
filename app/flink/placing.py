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
        self._lineage: OrderedDict[str, str] = OrderedDict()

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
        if record.type == INPUT and record.upstream_event_id is None:
            run = run_ref(record)
            self._remember(record.event_id, run)
            return Placed(record, run, How.INPUT)
        run_of = self._lineage.get(record.upstream_event_id or "")
        if run_of is None:
            return Placed(record, None, None)
        self._remember(record.event_id, run_of)
        return Placed(record, run_of, How.LINEAGE)

    def _remember(self, event_id: str, run: str) -> None:
        self._lineage[event_id] = run
        self._lineage.move_to_end(event_id)
        if len(self._lineage) > LINEAGE_KEPT:
            self._lineage.popitem(last=False)

    def state(self) -> dict[str, Any]:
        """What must be known to go on placing after a restart, as JSON."""
        return {
            "nested": [[list(stream), runs.state()] for stream, runs in self._nested.items()],
            "lineage": list(self._lineage.items())[-_LINEAGE_SAVED:],
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        for (job, task, subtask), runs in state.get("nested", ()):
            held = self._nested[Stream(job, task, subtask)] = NestedRuns(self._paths)
            held.resume(runs)
        self._lineage.update((event, run) for event, run in state.get("lineage", ()))
