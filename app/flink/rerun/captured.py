"""Inputs from a capture in the place of those that a log tells: whole, in the capture's order, each with its run.

A captured input and a run belong together by key and number. Where the log holds an input whole it must be the captured
one: anything else says that the two are not of the same stretch, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from app.flink.capture import Captured, CaptureError, read_capture, read_manifest
from app.flink.model import Entry, How, Run, RunStatus
from app.flink.records import INPUT, VERBOSE, Form, Record, Stream
from app.flink.rerun.recorded import numbered

_NAMED: Final = 20  # inputs that are named in words
_HEAD: Final = 120


@dataclass(frozen=True)
class Fed:
    """The runs with their captured inputs, `order` (refs) as the capture has it, and what had no counterpart."""

    runs: tuple[Run, ...]
    order: tuple[str, ...]
    inputs: int
    without_run: tuple[tuple[str, int], ...] = ()  # captured inputs: key, number in the capture
    without_input: tuple[tuple[str | None, int, str], ...] = ()  # runs: key, number in the log, ref
    logged: bool = True
    gaps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by ref, what the log lacks just before a run
    unsure: frozenset[str] = frozenset()  # refs of runs before which it may lack an input

    def as_json(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "fed": len(self.order),
            "log": self.logged,
            "without_run": [{"key": key, "seq": seq} for key, seq in self.without_run],
            "without_input": [{"key": key, "seq": seq, "run": ref} for key, seq, ref in self.without_input],
        }

    def lines(self) -> list[str]:
        """The same in words, a line each."""
        told = [f"capture: {self.inputs} inputs, {len(self.order)} of them with a run"]
        if not self.logged:
            told = [f"capture: {self.inputs} inputs; without a log there is nothing to hold them against"]
        told += _named("captured, but not in the log, and not fed", [f"{key} #{seq}" for key, seq in self.without_run])
        runs = [f"{key if key is not None else ref} #{seq}" for key, seq, ref in self.without_input]
        return told + _named("in the log, but not captured, and not fed", runs)


def read_inputs(folder: Path) -> list[Captured]:
    """Read a capture to its end. Raises `CaptureError` where it is not whole, or holds no JSON that can be fed."""
    about = read_manifest(folder).about
    if about.payload.encoding != "json":
        raise CaptureError(
            f"{folder}/manifest.json",
            f"its payloads are {about.payload.encoding} of {about.payload.serializer}, which only its job can read",
            "Capture them with the encoding json.",
        )
    inputs = list(read_capture(folder))
    texts: dict[str, Any] = {}
    for one in inputs:
        other = texts.setdefault(key_text(one.key), one.key)
        if type(other) is not type(one.key) or other != one.key:
            raise CaptureError(str(folder), f"the keys {other!r} and {one.key!r} are written alike in an event log")
    return inputs


def alone(inputs: Sequence[Captured]) -> Fed:
    """Captured inputs of which no log says what the agent did with them."""
    runs = []
    last = 0
    for index, one in enumerate(inputs):
        last = max(last + 1, (one.event_time or 0) * 1_000_000)  # in the capture's order, whatever its event times
        key = key_text(one.key)
        record = Record(Form.FLAT, last, VERBOSE, INPUT, f"capture-{index}", {"input": one.payload}, b"", key=key)
        entries = (Entry(record, How.INPUT),)
        ref = f"captured-{key}-{one.seq}"
        runs.append(Run(ref, Form.FLAT, Stream(), key, None, RunStatus.UNFINISHED, entries, ()))
    return Fed(tuple(runs), tuple(run.ref for run in runs), len(inputs), logged=False)


def matched(runs: Sequence[Run], inputs: Sequence[Captured]) -> Fed:
    """Give each run its captured input; what the log lacks between is told. Raises `ValueError` where the two are not
    of one stretch."""
    jobs = sorted({run.stream.job for run in runs})
    if len(jobs) > 1:
        raise ValueError(f"the logs are of {len(jobs)} jobs ({', '.join(jobs)}), but a capture is of one")
    logged = {(one.run.key, one.seq): one.run for one in numbered(runs)}
    by_key: dict[str, dict[int, Captured]] = {}
    for one in inputs:
        by_key.setdefault(key_text(one.key), {})[one.seq] = one
    placed = {key: _placed(key, held, logged) for key, held in by_key.items()}
    order: list[str] = []
    loose: list[tuple[str, int]] = []
    for one in inputs:
        key = key_text(one.key)
        run = placed[key].runs.get(one.seq)
        if run is None:
            loose.append((key, one.seq))
        else:
            order.append(run.ref)
    given = {ref: payload for each in placed.values() for ref, payload in each.payloads.items()}
    gaps = {ref: names for each in placed.values() for ref, names in each.gaps.items()}
    whole = tuple(_with_input(run, given[run.ref]) if run.ref in given else run for run in runs)
    paired = set(order)
    lacking = tuple((key, seq, run.ref) for (key, seq), run in logged.items() if run.ref not in paired)
    unsure = frozenset(ref for each in placed.values() for ref in each.unsure)
    return Fed(whole, tuple(order), len(inputs), tuple(loose), lacking, gaps=gaps, unsure=unsure)


def key_text(key: Any) -> str:
    """A captured key as logs write it."""
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class _Placed:
    """The runs of a key by their captured numbers, the input of each (by ref), and what the log lacks before it.

    `unsure` are runs before which it may lack an input, for equal ones were captured later.
    """

    runs: Mapping[int, Run]
    payloads: Mapping[str, Any]
    gaps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()


def _placed(key: str, held: Mapping[int, Captured], logged: Mapping[tuple[str | None, int], Run]) -> _Placed:
    """Put the runs of a key to its captured inputs: one by one, else around what the log lacks."""
    first, wrong = _first(key, held, logged)
    own = [run for (whose, _), run in sorted(logged.items(), key=lambda item: item[0][1]) if whose == key]
    around = _around_gaps(own, [held[seq] for seq in sorted(held)])
    if first is not None:
        runs = {seq: run for seq in held if (run := logged.get((key, seq - first))) is not None}
        unsure = around.unsure if around is not None else frozenset()
        return _Placed(runs, {run.ref: held[seq].payload for seq, run in runs.items()}, unsure=unsure)
    if around is None:
        raise ValueError(wrong)
    return around


def _around_gaps(runs: Sequence[Run], inputs: Sequence[Captured]) -> _Placed | None:
    """Put runs to inputs, both in order, where some inputs have no run; None where they do not fit so either.

    Equal inputs leave it open which of them is missing. A run gets the input that all its possible places agree on.
    """
    soonest, latest = _walk(runs, inputs), _walk(runs[::-1], inputs[::-1])
    if soonest is None or latest is None:
        return None
    latest = [len(inputs) - 1 - at for at in reversed(latest)]
    found, payloads, gaps, unsure = {}, {}, {}, set()
    before, certain = -1, True
    for number, (run, low, high) in enumerate(zip(runs, soonest, latest, strict=True)):
        found[inputs[low].seq] = run
        # Whole in the log, it is what the log says; else every captured one between may be it.
        if _whole(run) or all(one.payload == inputs[low].payload for one in inputs[low + 1 : high + 1]):
            payloads[run.ref] = inputs[low].payload
        if low > before + 1 and certain and low == high:
            gaps[run.ref] = tuple(f"captured input {one.seq}" for one in inputs[before + 1 : low])
        elif low > before + 1:  # even where all come as soon as they can, some are missing
            begin, end = inputs[before + certain], inputs[high - (low == high)]
            gaps[run.ref] = (f"some of the captured inputs {begin.seq} to {end.seq}",)
        elif low == number < high:
            unsure.add(run.ref)
        before, certain = low, low == high
    return _Placed(found, payloads, gaps, frozenset(unsure))


def _walk(runs: Sequence[Run], inputs: Sequence[Captured]) -> list[int] | None:
    """For each run the first input after that of the run before that it can have begun with."""
    places: list[int] = []
    at = -1
    for run in runs:
        at = next((n for n in range(at + 1, len(inputs)) if _fits(run, inputs[n].payload)), len(inputs))
        if at == len(inputs):
            return None
        places.append(at)
    return places


def _first(
    key: str, held: Mapping[int, Captured], logged: Mapping[tuple[str | None, int], Run]
) -> tuple[int | None, str]:
    """The captured number of the log's first input of a key: 0, else the capture's first; what the inputs fit.

    None, and why, where neither fits.
    """
    wrong = ""
    for first in dict.fromkeys((0, min(held))):
        found = [(seq, logged.get((key, seq - first))) for seq in held]
        differ = [(seq, run) for seq, run in found if run is not None and not _fits(run, held[seq].payload)]
        if differ:
            seq, run = differ[0]
            wrong = wrong or (
                f"key {key}, number {seq}: the capture holds {_short(held[seq].payload)}, but run {run.ref} of the log"
                f" got {_short(_logged(run))}; the two are not of the same stretch"
            )
        elif any(run is not None for _, run in found):
            return first, ""
    return (None, wrong) if wrong else (0, "")


def _given(run: Run) -> Record | None:
    return next((record for record in run.records if record.type == INPUT), None)


def _logged(run: Run) -> Any:
    record = _given(run)
    return None if record is None else record.attributes.get("input")


def _fits(run: Run, payload: Any) -> bool:
    """Whether a run can have begun with a payload: what the log left out contradicts nothing."""
    return not _whole(run) or _logged(run) == payload


def _whole(run: Run) -> bool:
    """Whether the log holds the input of a run, and all of it."""
    record = _given(run)
    return record is not None and not record.truncations


def _with_input(run: Run, payload: Any) -> Run:
    """The same run, begun by the captured input."""
    record = _given(run)
    if record is not None:
        whole = record._replace(attributes={**record.attributes, "input": payload}, truncations=())
        entries: Iterable[Entry] = (
            entry._replace(record=whole) if entry.record is record else entry for entry in run.entries
        )
        return replace(run, entries=tuple(entries), input_missing=False)
    start = run.entries[0].record
    made = Record(start.form, start.time_ns, start.level, INPUT, f"captured-{run.ref}", {"input": payload}, b"",
                  start.stream, start.run_id, run.key, run.agent)  # fmt: skip
    return replace(run, entries=(Entry(made, How.INPUT), *run.entries), input_missing=False)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _HEAD else f"{text[:_HEAD]}…"


def _named(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more, in the JSON" if len(names) > _NAMED else ""
    return [f"  {what} ({len(names)}): {', '.join(names[:_NAMED])}{more}"]
