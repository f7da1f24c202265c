"""What ran and what production runs, side by side. Row 16: a mismatch is the first suspect, in data and in words."""

import pytest

from app.replay import render
from app.replay.provenance import Production, Ran, attributed, first_suspects
from app.replay.verdict import AttemptRef, Outcome, Report, Verdict
from app.sandbox.locks import read_lock, write_lock

RAN = Ran("refunds-v1", "sha256:here", "3.11.7", "sha256:env", {"pydantic": "2.14.4", "protobuf": "6.33.6"})
# 2026-05-01T12:00:00Z
NOON = 1_777_636_800_000


def report(outcome: Outcome = Outcome.DIVERGED) -> Report:
    attempt = AttemptRef(b"k", 0, "start", NOON, 0, "t")
    return Report(Verdict(outcome, "It went another way.", attempt=attempt))


def test_a_lock_is_read_as_tools_write_it() -> None:
    text = (
        "# python==3.12.1\n"
        "# a comment about something==else\n"
        "Pydantic_Core==2.33.2 \\\n"
        "    --hash=sha256:0000\n"
        "uvicorn[standard]==0.32.0 ; python_version >= '3.8'\n"
        "-e git+file:///x\n"
        "loose>=1.0\n"
    )
    assert read_lock(text) == {"python": "3.12.1", "pydantic-core": "2.33.2", "uvicorn": "0.32.0"}
    assert read_lock(write_lock("3.11.7", RAN.packages)) == {"python": "3.11.7", **RAN.packages}


def test_nothing_is_suspect_where_all_is_as_in_production() -> None:
    same = Production("sha256:here", {"python": "3.11.7", "pydantic": "2.14.4"}, NOON, NOON + 1)
    told = attributed(report(), RAN, same).verdict
    assert told.code["suspects"] == []
    assert told.code["packages"] == {"protobuf": "6.33.6", "pydantic": "2.14.4"}
    assert (told.code["build"], told.code["files"], told.code["python"]) == ("refunds-v1", "sha256:here", "3.11.7")
    assert attributed(report(), RAN, Production()).verdict.code["suspects"] == []
    assert attributed(Report(Verdict(Outcome.UNUSABLE, "")), RAN, Production(live_from_ms=1)).verdict.code


def test_every_mismatch_is_data_and_a_sentence() -> None:  # row 16
    other = Production(
        "sha256:there",
        {"python": "3.12.1", "pydantic": "2.11.4", "protobuf": "6.33.6", "not-installed-here": "1.0"},
        live_to_ms=NOON,
    )
    made = attributed(report(), RAN, other)
    suspects = made.verdict.as_json()["code"]["suspects"]
    assert [(one["what"], one["name"], one["here"], one["production"]) for one in suspects] == [
        ("files", "refunds-v1", "sha256:here", "sha256:there"),
        ("live", "refunds-v1", "2026-05-01T12:00:00Z", "until 2026-05-01T12:00:00Z"),
        ("python", "python", "3.11.7", "3.12.1"),
        ("package", "pydantic", "2.14.4", "2.11.4"),
    ]
    told = "2026-05-01T12:00:00Z"
    texts = [one["text"] for one in suspects]
    assert texts == [
        "the build's files have changed: their digest is sha256:here, and production's is sha256:there",
        f"the attempt ran at {told}, when another build was live: refunds-v1 was live until {told}",
        "python is 3.11.7 here, and 3.12.1 in production",
        "pydantic is 2.14.4 here, and 2.11.4 in production",
    ]
    assert first_suspects(made.verdict) == texts
    lines = render.text(made).splitlines()
    assert lines[1:6] == ["  It went another way.", *(f"  first suspect: {text}" for text in texts)]


@pytest.mark.parametrize("outcome", [Outcome.REPRODUCED, Outcome.WHAT_IF])
def test_where_there_is_nothing_to_explain_nothing_is_suspected(outcome: Outcome) -> None:
    made = attributed(report(outcome), RAN, Production("sha256:there"))
    assert made.verdict.code["suspects"]
    assert first_suspects(made.verdict) == []
    assert "suspect" not in render.text(made)


def test_many_are_counted() -> None:
    many = {f"package-{number:02}": "1" for number in range(30)}
    ran = Ran("b", "sha256:here", "3.11.7", "sha256:env", many)
    told = first_suspects(attributed(report(), ran, Production(locked=dict.fromkeys(many, "2"))).verdict)
    assert len(told) == 6
    assert told[0] == "package-00 is 1 here, and 2 in production"
    assert told[-1] == "and 25 more packages have other versions"
