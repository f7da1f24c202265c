"""The verdict on one input: was it fed with everything, does it differ, can what it rests on be trusted.

A missing answer that follows from a difference takes nothing from that difference. Where the first difference is the
very request that nothing answers, what this build would have done is not known, and the run is irreproducible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.flink.inside.messages import Call, Ending, Outcome
from app.flink.inside.messages import canonical as canonical_json
from app.flink.rerun.case import ENGINE, Case, Proof, Source
from app.flink.rerun.recorded import from_wire
from app.flink.rerun.requests import Near, nearest, said, whole
from app.flink.rerun.rows import Aligned, aligned, changes
from app.flink.rerun.sides import EVENTS, MEMORY, OUTPUTS, REQUESTS, TOOLS, recorded_side, replayed_side
from app.flink.rerun.told import for_page, ledger, products, served
from app.replay.compare import differences
from app.replay.events import Event
from app.replay.verdict import (
    AttemptRef,
    Reason,
    Report,
    Row,
    RowState,
    Surface,
    SurfaceState,
    Verdict,
)
from app.replay.verdict import Outcome as Found

VERSION: Final = "1"
AFTER_MISSING: Final = "next_missing"  # it came out as recorded, and the next run that the log has is not the next one


@dataclass(frozen=True)
class _Stop:
    outcome: Found
    reason: Reason


def judge(case: Case) -> Report:
    """Judge a run that was carried out."""
    return _Judge(case).report()


def unjudged(case: Case, outcome: Found, reason: Reason) -> Report:
    """The verdict on an input that was not, or not usefully, run."""
    verdict = replace(_Judge(case).base(), outcome=outcome, headline=reason.text, reason=reason)
    return Report(verdict)


class _Judge:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.recorded = case.recorded
        self.result = case.result
        self.knows_calls = case.reference is not None and case.vouched
        left = recorded_side(case.recorded, case.reference if self.knows_calls else None)
        right = replayed_side(case.result, calls=self.knows_calls)
        self.found: Aligned = aligned(left, right, case.result)

    def report(self) -> Report:
        rows = [*self.found.rows, *self._memory_rows()]
        stop = self._stop(rows)
        first = next((row for row in rows if row.differs), None)
        verdict = replace(
            self.base(),
            outcome=stop.outcome,
            headline=stop.reason.text,
            reason=stop.reason if stop.outcome is not Found.REPRODUCED else None,
            surfaces=tuple(self._surfaces(rows)),
            differences=tuple(differences(rows)),
            counts=_counts(rows),
            first_divergence=None if first is None else first.ordinal,
        )
        return Report(verdict, tuple(rows), tuple(ledger(self.case, self.found)))

    # The verdict ----------------------------------------------------------------------------------------------------

    def _stop(self, rows: Sequence[Row]) -> _Stop:
        first = next((row for row in rows if row.differs), None)
        early = self._unfit(first)
        if early is not None:
            return early
        live, missed = self.case.live, self.result.ending is Ending.MISSED
        if missed and live:
            return self._not_asked()
        if missed and (first is None or self._is_the_miss(first)):
            return self._missed()
        if self._kept_out():
            return self._confined()
        if live:
            return self._what_if(rows)
        if first is not None:
            return self._differs(first)
        # Equal by chance, or because nothing that is compared shows it: that it is the same run nobody can say.
        unsure = self._unvouched_reads() if self.case.memory in (Source.GAP, Source.CARRIED) else []
        return self._memory_unknown("It did what was recorded", unsure) if unsure else self._same()

    def _kept_out(self) -> bool:
        """Whether the sandbox is why it failed; in a what-if, why something that was allowed did not answer."""
        asked = self.result.calls if self.case.live else ()
        failed = any(call.outcome is Outcome.EXECUTED and call.detail for call in asked)
        return bool(self.case.ran.refusals) and (failed or self.result.ending is Ending.FAILED)

    def _confined(self) -> _Stop:
        kept_from = f"It failed where the sandbox kept it from something: {self.case.ran.refusals[0]}"
        if self.case.live:
            return _irreproducible(
                "confined",
                f"{kept_from}. So this what-if says nothing of what it would have done.",
                "A model behind a network is asked only where it is allowed: sandbox.allow_network for workers,"
                " --allow-network in a terminal.",
            )
        return _irreproducible(
            "confined",
            f"{kept_from}; recorded, it was not kept from it.",
            "Put what it reads into the build's paths, or make the call a resource with a recorded answer.",
        )

    def _unfit(self, first: Row | None) -> _Stop | None:
        """What makes any comparison worthless, or the engine's own limits."""
        case, ending, detail = self.case, self.result.ending, self.result.detail
        if ending is Ending.UNSUPPORTED:
            return _irreproducible(
                "unsupported",
                f"{_sentence(detail)} It was not skipped: the run ended there.",
                "docs/flink.md lists it.",
            )
        if ending is Ending.REFUSED:
            return _irreproducible("blocked", _sentence(detail), "Set another policy for it in hindcast.toml.")
        models = [call for call in self.result.calls if call.kind == "model" and call.outcome is Outcome.ANSWERED]
        if models and case.proof is Proof.NONE and not case.live:
            return _irreproducible(
                "request_unproven",
                f"{len(models)} model answers of the log were used, and the log does not hold the prompt, tools and"
                " parameters that they answered.",
                "Say which build made this log: --recorded-by NAME, or live_from and live_to of that build.",
            )
        if case.reference is not None and not case.vouched and not case.live:
            if case.lost and case.reference.reads:
                what = "The build that made the record does not come out as recorded either"
                return self._lost(what, case.reference.reads)
            return _irreproducible(
                "record_unproven",
                f"The build that made the record, {case.reference_build}, does not come out as recorded itself, so"
                " nothing vouches for the memory and the requests that this run was held against.",
                f"See why first: replay it with --build {case.reference_build}.",
            )
        processed = next((call for call in models if call.processed), None)
        if processed is not None and case.proof is Proof.COMPARED and not case.live:
            return _irreproducible(
                "processed_answer",
                f"The model set-up behind {processed.name} works on answers itself, and the log holds only what came"
                " out of it; what another build would make of the original answer is not known.",
                "Only the build that made the record can be re-run, or a what-if.",
            )
        return None

    def _is_the_miss(self, first: Row) -> bool:
        """Whether the first difference is the request that could not be answered, or what never came after it."""
        missed = self._missed_call()
        if missed is None:
            return False
        index = self.result.calls.index(missed)
        asked = self.found.of_call.get(index, -1 if missed.event is None else self.found.of_event.get(missed.event, -1))
        if missed.kind == "model" and first.ordinal == asked:
            return True
        return first.state is RowState.RECORDED_ONLY and first.ordinal > asked

    def _missed_call(self) -> Call | None:
        return next((call for call in reversed(self.result.calls) if call.outcome is Outcome.MISSED), None)

    def _missed(self) -> _Stop:
        call = self._missed_call()
        assert call is not None, "a missed run has a missed call"
        # No record ever holds the result of a function: that it is missing says nothing of where the record ends.
        ends_here = self.found.first is None and not self.recorded.finished and call.kind != "function"
        if call.detail or ends_here:
            what = "a model request" if call.kind == "model" else f"a call of the {call.kind} {call.name}"
            return _irreproducible(
                "unfinished",
                f"The record ends at {what} that got no answer; up to there the re-run did the same.",
                "Nothing more can be said of a run that did not go on; hand in the rest of the log, if there is more.",
            )
        unknown = self._unvouched_reads()
        if unknown:
            return self._memory_unknown("It asks what nothing recorded answers", unknown)
        if call.kind == "function":
            return self._no_result(call)
        if call.kind != "model":
            return _irreproducible(
                "no_answer",
                f"{_sentence(self.result.detail)} The log does not hold what it gave.",
                "Hand in its answers with --tool-answers, or give it a stand-in `answer` in hindcast.toml.",
                {"call": call.name, "arguments": call.request},
            )
        return self._model_missed(call)

    def _no_result(self, call: Call) -> _Stop:
        """A durable function whose result the job kept elsewhere; it was not run in place of that."""
        return _irreproducible(
            "no_answer",
            f"{_sentence(self.result.detail)} It was not run in place of its result.",
            f'Hand in its result with the tool answers ("tool": "{call.name}"), or, if it may run again inside the'
            f' sandbox, set "function:{call.name}" = "allow" in hindcast.toml.',
            {"call": call.name, "arguments": call.request},
        )

    def _not_asked(self) -> _Stop:
        """A what-if that ended where something was asked that may not be asked: it did not run."""
        call = self._missed_call()
        assert call is not None, "a missed run has a missed call"
        if call.kind == "model":
            return self._model_missed(call)
        if call.kind == "function":
            return self._no_result(call)
        return _irreproducible(
            "no_answer",
            f"{_sentence(self.result.detail)} What this build would have made of it is not known.",
            "Hand in its answers, give it a stand-in `answer`, or allow it in hindcast.toml, if it may be repeated.",
            {"call": call.name, "arguments": call.request},
        )

    def _model_missed(self, call: Call) -> _Stop:
        asked = dict(whole(call))
        near = self._near(call, asked)
        details: dict[str, Any] = {"cache_key": call.full, "step_index": 0, "request": for_page(asked)}
        changed = "no request of this run was recorded"
        if near is not None:
            part = near.parts[0].name if near.parts else ""
            top = part.partition(".")[0].partition("[")[0]
            details |= {
                "nearest": {"cache_key": "", "source": "the record of this run"},
                "differs": "sampling" if top == "parameters" else top,
                "recorded": near.request.get(top),
                "changes": near.as_json(),
            }
            changed = "; ".join(said(one) for one in near.parts[:3]) or "it was asked more often than recorded"
        text, remedy = "", "Take it as a what-if with a model that may be asked, or replay the build that ran."
        if self.case.live:
            text = ", and this build's resources do not allow to ask it"
            remedy = f'Set "chat_model_connection:{call.name}" = "allow" in hindcast.toml, if it may be asked.'
        return _irreproducible(
            "model_request",
            f"This build asks {call.name} what nothing recorded answers{text}. Nearest recorded request: {changed}",
            remedy,
            details,
        )

    def _near(self, call: Call, asked: dict[str, Any]) -> Near | None:
        """The nearest among the whole requests, where a run of the recording build tells them, else among the log's."""
        reference = self.case.reference.calls if self.case.reference is not None else ()
        known = [whole(one) for one in reference if one.kind == "model"]
        if known:
            return nearest(asked, known)
        as_logged = {"messages": asked.get("messages", [])}
        return nearest(as_logged, [{"messages": one.request["messages"]} for one in self.recorded.asked])

    def _differs(self, first: Row) -> _Stop:
        ends = self.recorded.failed or self.recorded.finished
        if not ends and all(row.state is RowState.REPLAYED_ONLY for row in self.found.rows if row.differs):
            return _irreproducible(
                "unfinished",
                "The record breaks off before the run ended; as far as it goes the re-run did the same.",
                "Hand in the rest of the log, if there is more.",
            )
        unknown = self._unvouched_reads()
        if unknown:
            return self._memory_unknown("It differs", unknown)
        if first.surface == MEMORY and self._hole_after():
            return self._next_missing()
        doubtful = self._stand_ins_before(first)
        if doubtful:
            return _irreproducible(
                "stand_in",
                f"It differs after a stand-in answer of {_listed(doubtful)} was used, which nothing recorded proves.",
                "Hand in the recorded answers with --tool-answers.",
            )
        event = first.event
        what = event.title if first.state is RowState.CHANGED else f"{event.title}, on one side only"
        fields = f": {first.fields[0].name}" if first.fields else ""
        return _Stop(Found.DIVERGED, Reason("diverged", f"The two part at event {first.ordinal}, {what}{fields}."))

    def _memory_unknown(self, what: str, reads: Sequence[str]) -> _Stop:
        if self.case.lost:
            return self._lost(what, reads)
        if self.case.memory is Source.FORWARD:
            return _irreproducible(
                "memory_unknown",
                f"{what}, and it read {_listed(reads)} from the memory that the inputs before it in the log left. A log"
                " is best effort: whether it lacks one of them nobody can say.",
                "Hand in a capture of the inputs with --capture, which counts them; or a log that holds memory.",
            )
        return _irreproducible(
            "memory_unknown",
            f"{what}, and it read {_listed(reads)} from a memory that nobody vouches for ({self.case.memory}).",
            "Say --begins-empty where the log begins with the job, or hand in the memory with --memory.",
        )

    def _lost(self, what: str, reads: Sequence[str]) -> _Stop:
        whose = f"key {self.recorded.run.key}" if self.recorded.run.key is not None else "its key"
        return _irreproducible(
            "run_missing",
            f"{what}, and it read {_listed(reads)} from the memory of {whose}, to which the log holds no run of"
            f" {_listed(self.case.lost)}: what that left there is not known.",
            "Hand in the part of the log that holds it; the inputs of other keys are judged without it.",
        )

    def _hole_after(self) -> bool:
        """Whether what the next run began with is not even what the build that made the record leaves.

        Then an input between the two may be missing from the log, and the next run says nothing of this one.
        """
        after = self.case.next_memory
        recording = self.case.reference if self.knows_calls else None
        return after is not None and (recording is None or from_wire(recording.memory) != dict(after))

    def _next_missing(self) -> _Stop:
        at = self.recorded.seq
        return _irreproducible(
            AFTER_MISSING,
            "All of its events came out as recorded, but the memory that it leaves is not what the next run of the key"
            f" in the log began with: an input between number {at} and that one may be missing from the log.",
            "Hand in the part of the log between the two, or a capture of the inputs: it counts them.",
        )

    def _unvouched_reads(self) -> list[str]:
        """Reads that nothing vouches for; the recording build, where it came out as recorded, vouches for its own."""
        if self.case.memory.known:
            return []
        vouched = self.case.reference.reads if self.case.reference is not None and self.case.vouched else []
        return [one for one in self.result.reads if one not in vouched]

    def _stand_ins_before(self, first: Row) -> list[str]:
        """Stand-in answers that the first difference may rest on: none where the recording build got the same ones."""
        if self.knows_calls:
            return []
        return sorted(
            {call.name for call in self.result.calls if call.outcome is Outcome.STAND_IN or _is_supplied(call)}
        )

    def _same(self) -> _Stop:
        text = f"The re-run did what was recorded: {len(self.found.rows)} events are equal."
        return _Stop(Found.REPRODUCED, Reason("reproduced", text))

    def _what_if(self, rows: Sequence[Row]) -> _Stop:
        asked = sum(call.kind == "model" and call.outcome is Outcome.EXECUTED for call in self.result.calls)
        differ = sum(row.differs for row in rows)
        ended = "" if self.result.ending is Ending.FINISHED else f" It ended early: {_sentence(self.result.detail)}"
        text = f"What if: {asked} model requests were asked anew, and {differ} of {len(rows)} events differ.{ended}"
        return _Stop(Found.WHAT_IF, Reason("what_if", text))

    # What it is made of ---------------------------------------------------------------------------------------------

    def base(self) -> Verdict:
        case, run = self.case, self.recorded.run
        plan = case.ran.result.plan if case.ran.result is not None else None
        framework = case.ran.result.framework if case.ran.result is not None else ""
        return Verdict(
            outcome=Found.UNUSABLE,
            headline="",
            attempt=AttemptRef(
                entity_key=self.recorded.key.encode("utf-8", "surrogatepass"),
                seq=self.recorded.seq,
                kind="input",
                clock_ms=run.first_ns // 1_000_000,
                entry_step=0,
                trace_id=run.ref,
                status=str(run.status),
            ),
            served=served(case),
            driver={"name": ENGINE, "version": VERSION, "flink-agents": framework},
            confinement=case.ran.confinement,
            plan={
                "row": "",
                "build": case.build,
                "memory": str(case.memory),
                "model requests": str(case.proof),
                "recorded by": case.reference_build or (case.build if case.proof is Proof.OWN else "not said"),
                "plan": "" if plan is None else plan.digest,
                "policies": {}
                if plan is None
                else {f"{r.type} {r.name}": r.policy for r in plan.resources if r.policy},
            },
            replayed=products(case),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        stand_ins = sorted({call.name for call in self.result.calls if call.outcome is Outcome.STAND_IN})
        if stand_ins:
            yield f"Not executed, and answered with a stand-in: {_listed(stand_ins)}."
        if self.case.memory in (Source.ASSUMED, Source.GROWN) and self.result.reads:
            yield f"Memory was taken to be empty at first; it read {_listed(self.result.reads)}."
        if not self.recorded.run.verbose:
            yield "The log was not written at level VERBOSE; values may have been cut short."
        if self.recorded.overlapping:
            yield "Several requests of one model were under way at once; which of them called a tool is a conclusion."
        if self.recorded.run.concluded:
            yield f"Put into this run by conclusion, not by name: {self.recorded.run.concluded} of its records."
        for refusal in self.case.ran.refusals[:10]:
            yield f"The sandbox kept the agent from something: {refusal}"

    def _surfaces(self, rows: Sequence[Row]) -> Iterator[Surface]:
        for name in (EVENTS, REQUESTS, TOOLS, OUTPUTS):
            held = [row for row in rows if row.surface == name]
            state = SurfaceState.DIFFERENT if any(row.differs for row in held) else SurfaceState.EQUAL
            detail = f"{len(held)}, in order within each type" if held else "none on either side"
            if name == TOOLS and not self.knows_calls and any(c.direct and c.kind == "tool" for c in self.result.calls):
                yield Surface(name, SurfaceState.NOT_COMPARED if state is SurfaceState.EQUAL else state,
                              "the log has no event for calls that the agent's own code makes")  # fmt: skip
                continue
            missed = self._missed_call() if name == REQUESTS and self.result.ending is Ending.MISSED else None
            if missed is not None and missed.kind == "model" and not missed.detail:
                yield Surface(name, SurfaceState.DIFFERENT, "one of them, as a whole, is none of the record's")
                continue
            yield Surface(name, state, detail)
        if self.case.next_memory is None:
            yield Surface(MEMORY, SurfaceState.NOT_COMPARED, "no later run of this key says what it began with")
        else:
            differs = any(row.surface == MEMORY for row in rows)
            yield Surface(MEMORY, SurfaceState.DIFFERENT if differs else SurfaceState.EQUAL, "against the next run's")

    def _memory_rows(self) -> Iterator[Row]:
        """What the memory would be after it, against what the next run of the key began with."""
        if self.case.next_memory is None or self.result.ending is not Ending.FINISHED:
            return
        mine, theirs = from_wire(self.result.memory), dict(self.case.next_memory)
        fields = tuple(changes("memory", theirs, mine))
        if fields:
            left = Event("MEMORY", payload={"memory": canonical_json(theirs)})
            right = Event("MEMORY", payload={"memory": canonical_json(mine)})
            first = self.found.first
            cause = None if first is None else first.ordinal
            yield Row(len(self.found.rows), RowState.CHANGED, MEMORY, left, right, fields, cause)


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    tally = Counter(str(row.state) for row in rows)
    return {
        "rows": len(rows),
        **{str(state): tally[str(state)] for state in RowState},
        "consequence": sum(row.cause is not None for row in rows),
    }


def _is_supplied(call: Call) -> bool:
    return call.kind in ("tool", "function") and call.detail == "supplied"


def _irreproducible(code: str, text: str, remedy: str = "", details: dict[str, Any] | None = None) -> _Stop:
    return _Stop(Found.IRREPRODUCIBLE, Reason(code, text, remedy, details or {}))


def _sentence(text: str) -> str:
    head = text.strip() or "it ended early"
    return f"{head[0].upper()}{head[1:]}".rstrip(".") + "."


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
