"""What README says is tried, in one list: each try ends as a named outcome, and the next replay is unaffected.

The tries themselves, with all their ways around, are in `test_tries`; here each one is followed by an ordinary run of
the same pre-loaded process.
"""

from typing import Any

import pytest

from app.sandbox.model import Ending, Limits
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import QUICK, request_for, said
from tests.waiting import PATIENCE_S

SHORT = Limits(wall_s=1, memory_bytes=64 << 20, processes=40)
PATIENT = Limits(wall_s=PATIENCE_S, cpu_s=1)

# What is tried, with which limits, and how it may end: a refused try is survived by the agent, which then finishes.
TRIES: dict[str, tuple[str, dict[str, Any], Limits, set[Ending]]] = {
    "open a socket": ("tries:tcp", {"host": "127.0.0.1", "port": 9}, QUICK, {Ending.FINISHED}),
    "resolve a name": ("tries:dns", {}, QUICK, {Ending.FINISHED}),
    "spawn a program": ("tries:programs", {}, QUICK, {Ending.FINISHED}),
    "read /etc/shadow": ("tries:read", {"paths": ["/etc/shadow"]}, QUICK, {Ending.FINISHED}),
    "write outside scratch": ("tries:write", {"paths": ["/tmp/hindcast-tried"]}, QUICK, {Ending.FINISHED}),
    "read another replay's memory": ("tries:other_memory", {"pids": list(range(1, 40))}, QUICK, {Ending.FINISHED}),
    "fork-bomb": ("tries:fork_bomb", {}, SHORT, {Ending.PROCESS_LIMIT, Ending.TIME_LIMIT}),
    "allocate 10 GB": ("tries:allocate", {"mib": 10_240}, QUICK, {Ending.MEMORY_LIMIT}),
    "loop for ever": ("tries:loop_for_ever", {}, PATIENT, {Ending.CPU_LIMIT}),
    "wait for ever": ("tries:sleep_for_ever", {}, SHORT, {Ending.TIME_LIMIT}),
    "fill stdout": ("tries:flood", {"mib": 64}, Limits(wall_s=PATIENCE_S, cpu_s=60), {Ending.FINISHED}),
    "fill stdout for ever": ("tries:flood_for_ever", {}, SHORT, {Ending.TIME_LIMIT, Ending.CPU_LIMIT}),
    "exit in import": ("leaves_on_import:anything", {}, QUICK, {Ending.EXITED_EARLY}),
    "end its process in import": ("leaves_on_import_hard:anything", {}, QUICK, {Ending.EXITED_EARLY}),
    "kill its parent": ("tries:kill_parent", {}, QUICK, {Ending.FINISHED}),
    "ctypes past the audit hook": ("tries:past_the_hook", {}, QUICK, {Ending.FINISHED}),
    "crash the interpreter": ("tries:leave", {"how": "segfault"}, QUICK, {Ending.KILLED_BY_SIGNAL}),
}


@pytest.mark.parametrize("what", TRIES)
def test_it_ends_as_a_named_outcome_and_the_next_replay_is_unaffected(what: str, sandbox: Sandbox) -> None:  # row 13
    agent, arguments, limits, endings = TRIES[what]
    process = sandbox.pid
    finished = sandbox.run(request_for(agent, **arguments), limits)
    assert finished.ending in endings, finished
    assert finished.confinement is not None
    if finished.ending is Ending.FINISHED:
        assert "REACHED" not in said(finished)
    else:
        assert finished.result is None
        assert finished.detail
    after = sandbox.run(request_for("nice:greet", name="Ada"), QUICK)
    assert (after.ending, said(after), after.printed) == (Ending.FINISHED, "hello Ada", "greeting Ada\n")
    assert after.refusals == ()
    assert sandbox.pid == process, "the pre-loaded process was replaced"
