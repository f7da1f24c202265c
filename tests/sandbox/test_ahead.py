"""A copy that waits for the next run: it serves that one only, sees what is on the disk by then, and may die."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from app.sandbox.ahead import fork_ahead
from app.sandbox.model import Ending, Finished, Limits
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import QUICK, make_sandbox, processes_of, request_for, said
from tests.sandbox.test_runner import in_thread
from tests.waiting import joined, until

GREET = request_for("nice:greet")

Held = tuple[Sandbox, set[int]]
Stopped = tuple[int, threading.Thread, list[Finished]]


@pytest.fixture
def held(tier: str, world_without: Callable[[str], Path]) -> Iterator[Held]:
    """A sandbox that has served one run, and the processes that it then consists of."""
    options: dict = {"interpreter": world_without("namespaces")} if tier == "baseline" else {}
    with make_sandbox(**options) as sandbox:
        sandbox.run(GREET, QUICK)
        yield sandbox, set(processes_of(sandbox.pid))


def waiting(held: Held) -> int:
    """The process that stays, a copy that waits as a rule, once it is the only one beside those always there."""
    sandbox, always = held
    seen: list[set[int]] = []

    def settled() -> bool:
        seen.append(set(processes_of(sandbox.pid)) - always)
        return len(seen) >= 20 and len(seen[-1]) == 1 and all(each == seen[-1] for each in seen[-20:])

    until(settled, "one more process that stays")
    return seen[-1].pop()


def test_who_asks_once_pays_for_one_run(tier: str, world_without: Callable[[str], Path]) -> None:
    options: dict = {"interpreter": world_without("namespaces")} if tier == "baseline" else {}
    with make_sandbox(**options) as sandbox:
        # Whatever was forked when the order came is there by the end of this.
        sandbox.run(request_for("nice:nap", seconds=0.3), QUICK)
        assert len(processes_of(sandbox.pid)) == (2 if tier == "namespaces" else 1)


def test_each_copy_serves_one_run(held: Held) -> None:
    sandbox, _ = held
    served = []
    for _ in range(4):
        assert said(sandbox.run(GREET, QUICK)) == "hello world"
        served.append(waiting(held))
    assert len(set(served)) == len(served)


def test_a_copy_waits_also_where_the_process_is_never_idle(held: Held) -> None:
    sandbox, always = held
    stop = threading.Event()
    thread, _ = in_thread(lambda: sandbox.run(request_for("nice:nap", seconds=300), Limits(wall_s=300), stop=stop))
    try:
        napping = waiting(held)  # the compiling beside it ends
        for _ in range(20):
            assert said(sandbox.run(GREET, QUICK)) == "hello world"
        assert waiting((sandbox, always | {napping}))
    finally:
        stop.set()
        joined(thread)


TRACES = """
import builtins, gc, sys, threading

class Secret:
    pass

def leave_and_look(text):
    seen = [each.text for each in gc.get_objects() if type(each).__name__ == "Secret"]
    seen += getattr(builtins, "left", []) + [name for name in sys.modules if name.startswith("left_")]
    secret = Secret()
    secret.text = text
    builtins.left = [text, secret]
    sys.modules["left_" + text] = secret
    sys.path.append(text)
    return f"{seen} {text in sys.path[:-1]} {threading.active_count()}"
"""


def test_nothing_of_one_run_is_in_another(held: Held, open_folder: Path) -> None:
    sandbox, _ = held
    (open_folder / "traces.py").write_text(TRACES)
    request = request_for("traces:leave_and_look", (open_folder,), text="mark")
    assert {said(sandbox.run(request, QUICK)) for _ in range(5)} == {"[] False 1"}


def test_a_copy_that_waits_sees_what_changes_meanwhile(held: Held, open_folder: Path) -> None:
    sandbox, _ = held
    file = open_folder / "changing.py"
    for version in ("one", "two", "three"):
        file.write_text(f"def version():\n    return {version!r}\n")
        for _ in range(2):
            assert said(sandbox.run(request_for("changing:version", (open_folder,)), QUICK)) == version
        waiting(held)


def test_a_copy_that_dies_waiting_is_replaced(held: Held) -> None:
    sandbox, _ = held
    for _ in range(3):
        assert said(sandbox.run(GREET, QUICK)) == "hello world"
        os.kill(waiting(held), signal.SIGKILL)
    assert said(sandbox.run(GREET, QUICK)) == "hello world"


@pytest.mark.parametrize("looks", [True, False])
def test_an_order_is_begun_by_a_copy_that_says_so(looks: bool) -> None:
    """One that is killed may have taken its order from the socket, and nothing else."""

    def prepare(listens: int) -> None:
        if not looks:
            with socket.socket(fileno=listens) as taken:
                socket.recv_fds(taken, 16, 8)

    def serve(descriptors: list[int]) -> NoReturn:
        os.write(descriptors[0], b"served")
        os._exit(0)

    reads, writes = os.pipe()
    copy = fork_ahead(prepare, serve)
    copy.hand_over([writes, writes])
    os.close(writes)
    os.waitpid(copy.pid, 0)
    left = copy.left()
    assert (left is None) is looks
    copy.close()
    os.close(copy.watch)
    with os.fdopen(reads, "rb") as file:  # and nothing keeps its channel open
        assert file.read() == (b"served" if looks else b"")


def given_to_a_stopped_copy(held: Held, stop: threading.Event | None = None) -> Stopped:
    """A run whose order lies unread with a copy that does nothing."""
    sandbox, always = held
    sandbox.run(GREET, QUICK)
    stopped = waiting(held)
    os.kill(stopped, signal.SIGSTOP)
    thread, results = in_thread(lambda: sandbox.run(GREET, QUICK, stop=stop))
    until(lambda: len(set(processes_of(sandbox.pid)) - always) > 1, "an order handed over")
    return stopped, thread, results


def test_an_order_that_was_never_read_is_given_to_another(held: Held) -> None:
    stopped, thread, results = given_to_a_stopped_copy(held)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    os.kill(stopped, signal.SIGKILL)
    joined(thread)
    assert said(results[0]) == "hello world"
    assert len(list(Path("/proc/self/fd").iterdir())) < descriptors
    assert said(held[0].run(GREET, QUICK)) == "hello world"


def test_a_run_that_is_cancelled_before_it_begins_does_not_begin(held: Held) -> None:
    stop = threading.Event()
    _, thread, results = given_to_a_stopped_copy(held, stop)
    stop.set()
    joined(thread)
    assert results[0].ending is Ending.CANCELLED
    assert said(held[0].run(GREET, QUICK)) == "hello world"


def test_it_ends_with_the_process_that_it_came_from(held: Held) -> None:
    sandbox, always = held
    sandbox.run(GREET, QUICK)
    waiting(held)
    session = sandbox.pid
    for pid in always:
        os.kill(pid, signal.SIGKILL)
    until(lambda: processes_of(session) == [], "the end of them all")
    assert said(sandbox.run(GREET, QUICK)) == "hello world"


def test_it_ends_with_its_sandbox(held: Held) -> None:
    sandbox, _ = held
    sandbox.run(GREET, QUICK)
    waiting(held)
    session = sandbox.pid
    sandbox.close()
    until(lambda: processes_of(session) == [], "the end of them all")


def test_it_holds_nobody_elses_channels(held: Held) -> None:
    sandbox, _ = held
    runs = [in_thread(lambda: sandbox.run(request_for("nice:nap", seconds=0.3), QUICK)) for _ in range(2)]
    for thread, results in runs:
        joined(thread)
        assert results[0].ending is Ending.FINISHED
    copy = waiting(held)
    opened = [str(each.readlink()) for each in Path(f"/proc/{copy}/fd").iterdir()]
    assert sum(each.startswith("socket:") for each in opened) == 1  # what it listens to
    assert sum(each.startswith("pipe:") for each in opened) == 1  # its parent's life
    assert not any("pidfd" in each or "hindcast-request" in each for each in opened)


def test_a_run_cannot_reach_the_copy_that_waits_meanwhile(held: Held) -> None:
    sandbox, always = held
    sandbox.run(GREET, QUICK)
    own = waiting(held)
    # The next copy's number is not known yet: whoever has one of these, in whichever tier, is out of reach.
    tried = request_for("tries:other_memory", pids=[*range(1, 60), *range(own + 1, own + 200)], after=0.5)
    thread, results = in_thread(lambda: sandbox.run(tried, QUICK))
    until(lambda: len(set(processes_of(sandbox.pid)) - always) == 2, "a copy that waits during the run")
    joined(thread)
    assert "REACHED" not in said(results[0])


def test_where_the_kernel_copies_no_page_early(world_without: Callable[[str], Path]) -> None:
    with make_sandbox(interpreter=world_without("early copies")) as sandbox:
        for _ in range(5):
            assert said(sandbox.run(GREET, QUICK)) == "hello world"
