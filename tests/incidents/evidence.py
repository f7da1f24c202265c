"""Real recordings as evidence files, and made-up reports of any size."""

from pathlib import Path

from app.incidents.service import EvidenceFile, Report, Role
from app.replay.events import Event
from app.replay.verdict import FieldPair, FieldState, Outcome, Row, RowState, Verdict
from tests.golden import corpus

FILES = {Role.SNAPSHOT: "snapshot.pb", Role.TRACES: "traces.pb", Role.EVENT: "event.pb"}


def recording(scenario: str) -> list[EvidenceFile]:
    """Read a golden scenario's snapshot, traces and triggering envelope."""
    folder: Path = corpus() / "corpus" / scenario
    return [EvidenceFile(role, name, (folder / name).read_bytes()) for role, name in FILES.items()]


def report(rows: int, *, different: frozenset[int] = frozenset()) -> Report:
    """Make a report of many rows, of which those in `different` differ."""
    lines = tuple(_row(ordinal, differs=ordinal in different) for ordinal in range(rows))
    first = min(different, default=None)
    outcome = Outcome.DIVERGED if different else Outcome.REPRODUCED
    verdict = Verdict(outcome, "a made-up run", counts={"rows": rows}, first_divergence=first)
    return Report(verdict, lines)


def _row(ordinal: int, *, differs: bool) -> Row:
    event = Event(
        type="LLM_CALL",
        label="gpt",
        step=ordinal,
        span_id=f"{ordinal:016x}",
        time_ms=1000 + ordinal,
        attributes={"prompt": "hello \0 \ud800 \t\\N \n" + "x" * 200},
    )
    fields = (FieldPair("prompt", "a", None, FieldState.CHANGED),) if differs else ()
    return Row(ordinal, RowState.CHANGED if differs else RowState.EQUAL, "trace", event, event, fields)
