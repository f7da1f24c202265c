"""The host's side: what it survives, what it refuses, and what it says."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from app.replay.rerun_pb2 import RerunResult
from app.sandbox import zygote
from app.sandbox.model import Ending, Finished, Limits, SandboxError
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import ENTRIES, HERE, QUICK, Attempt, make_sandbox, processes_of, request_for, said
from tests.waiting import joined, until

GREET = request_for("nice:greet")
PATIENT = """
import os, time

def wait():
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.01)
"""


def ignores_signals(pid: int) -> bool:
    """Whether a process is the agent that ignores all it can, and has come so far."""
    try:
        found = re.search(r"(?m)^SigIgn:\s+([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) & 1 << (signal.SIGTERM - 1))


def in_thread(run: Callable[[], Finished]) -> tuple[threading.Thread, list[Finished]]:
    results: list[Finished] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    return thread, results


def test_start_does_not_wait(tmp_path: Path) -> None:
    """What is loaded before any run waits here for a file that is made after the start has returned."""
    (tmp_path / "waits_for_go.py").write_text(f"{PATIENT}\nwait()\n")
    path = [*zygote.import_path(), str(ENTRIES), str(tmp_path)]
    sandbox = make_sandbox(preload=["waits_for_go"], import_path=path)
    sandbox.start()
    (tmp_path / "go").touch()
    assert said(sandbox.run(GREET, QUICK)) == "hello world"
    sandbox.close()


@pytest.mark.parametrize("namespaces", [True, False])
def test_close_ends_everything(namespaces: bool) -> None:
    other = make_sandbox(namespaces=namespaces)
    other.run(GREET, QUICK)
    session = other._zygote.pid
    idle = len(processes_of(session))
    thread, results = in_thread(lambda: other.run(request_for("tries:sleep_for_ever"), QUICK))
    until(lambda: len(processes_of(session)) > idle, "the start of a run")
    other.close()
    joined(thread)
    assert results[0].ending is Ending.SANDBOX_LOST
    until(lambda: processes_of(session) == [], "the end of them all")
    other.close()
    with pytest.raises(SandboxError, match="closed"):
        other.run(GREET)


def test_runs_at_the_same_time(sandbox: Sandbox, attempt: Attempt, open_folder: Path) -> None:
    """None of the patient ones can end before all of them are there."""
    marked = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # told apart from copies that wait
    (open_folder / "patient_agent.py").write_text(f"{PATIENT}\n{marked}")
    request = request_for("patient_agent:wait", (open_folder,))
    runs = [in_thread(lambda: sandbox.run(request, QUICK)) for _ in range(6)]
    until(lambda: sum(map(ignores_signals, processes_of(sandbox.pid or 0))) == 6, "six runs under way")
    runs.append(in_thread(lambda: attempt("tries:leave", how="os._exit")))
    runs.append(in_thread(lambda: attempt("tries:loop_for_ever", Limits(wall_s=0.3))))
    for thread, _ in runs[6:]:
        joined(thread)
    (open_folder / "go").touch()
    for thread, _ in runs:
        joined(thread)
    endings = [results[0].ending for _, results in runs]
    assert endings == [Ending.FINISHED] * 6 + [Ending.EXITED_EARLY, Ending.TIME_LIMIT]


def test_cancelling(attempt: Attempt, sandbox: Sandbox) -> None:
    stop = threading.Event()
    before = set(processes_of(sandbox.pid or 0))
    thread, results = in_thread(lambda: sandbox.run(request_for("tries:sleep_for_ever"), QUICK, stop=stop))
    until(lambda: set(processes_of(sandbox.pid or 0)) - before, "the start of a run")
    stop.set()
    joined(thread)
    assert (results[0].ending, results[0].detail) == (Ending.CANCELLED, "it was cancelled")


@pytest.mark.parametrize("whom", ["guard or zygote", "all but the run"])
def test_the_pre_loaded_process_is_killed_during_a_run(
    tier: str, world_without: Callable[[str], Path], whom: str
) -> None:
    options: dict = {"interpreter": world_without("namespaces")} if tier == "baseline" else {}
    with make_sandbox(**options) as sandbox:
        sandbox.run(GREET, QUICK)
        session = sandbox._zygote.pid
        idle = set(processes_of(session))
        thread, results = in_thread(lambda: sandbox.run(request_for("tries:ignore_signals_and_sleep"), QUICK))
        until(lambda: any(map(ignores_signals, processes_of(session))), "the agent's own code")
        for pid in [session] if whom == "guard or zygote" else idle:
            os.kill(pid, signal.SIGKILL)
        joined(thread)
        assert results[0].ending is Ending.SANDBOX_LOST
        assert results[0].detail == "the sandbox's own process ended during the run"
        until(lambda: processes_of(session) == [], "the run's end without its parent")
        assert said(sandbox.run(GREET, QUICK)) == "hello world"
        assert sandbox._zygote.pid != session


def test_the_pre_loaded_process_is_killed_between_runs() -> None:
    with make_sandbox() as sandbox:
        for _ in range(2):
            assert said(sandbox.run(GREET, QUICK)) == "hello world"
            os.kill(sandbox._zygote.pid, signal.SIGKILL)
            until(lambda: not sandbox._zygote.alive(), "its end")
        assert said(sandbox.run(GREET, QUICK)) == "hello world"


@pytest.mark.parametrize("namespaces", [True, False])
def test_everything_ends_with_the_host(namespaces: bool) -> None:
    code = (
        "import sys; from tests.sandbox.conftest import *\n"
        f"sandbox = make_sandbox(namespaces={namespaces})\n"
        "sandbox.run(request_for('nice:greet'))\n"
        "print(sandbox._zygote.pid, flush=True)\n"
        "sandbox.run(request_for('tries:ignore_signals_and_sleep'))\n"
    )
    root = str(HERE.parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([root, *sys.path])},
    ) as host:
        assert host.stdout is not None
        session = int(host.stdout.readline())
        until(lambda: any(map(ignores_signals, processes_of(session))), "the agent's own code")
        host.kill()
    until(lambda: processes_of(session) == [], "the end of all with the host")


def test_nothing_of_ours_is_inherited() -> None:
    """A descriptor that we left inheritable, and our environment, stay with us."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    os.environ["HINDCAST_TOKEN"] = "secret"
    try:
        with make_sandbox(namespaces=False) as sandbox:
            sandbox.run(GREET, QUICK)
            pid = sandbox._zygote.pid
            os.close(write)
            os.set_blocking(read, False)
            assert os.read(read, 1) == b""  # nobody else holds the other end
            assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        del os.environ["HINDCAST_TOKEN"]
        os.close(read)


def test_no_descriptors_are_lost(attempt: Attempt) -> None:
    attempt("nice:greet")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for how in ("os._exit", "abort", "error", "none"):
        attempt("tries:leave", how=how)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# What does not start


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no-python"):
        make_sandbox(interpreter=tmp_path / "no-python").start()


@pytest.mark.parametrize("namespaces", [True, False])
def test_an_entry_that_cannot_be_imported(namespaces: bool) -> None:
    sandbox = make_sandbox(entry="no_such_module:run", namespaces=namespaces)
    with sandbox, pytest.raises(SandboxError, match="No module named 'no_such_module'"):
        sandbox.run(GREET)


def test_an_interpreter_that_ends_at_once() -> None:
    with make_sandbox(interpreter=Path("/bin/true")) as sandbox, pytest.raises(SandboxError, match="without a word"):
        sandbox.run(GREET)


def test_entries_that_misbehave() -> None:
    with make_sandbox(entry="plain_entry:not_a_result") as sandbox:
        assert sandbox.run(GREET).ending is Ending.CRASHED
    with make_sandbox(entry="plain_entry:kill_self_with") as sandbox:
        finished = sandbox.run(GREET)
        assert (finished.ending, finished.detail) == (
            Ending.KILLED_BY_SIGNAL,
            "its process was killed by signal 9 (SIGKILL)",
        )


def test_pre_loading_calls_what_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "warming.py").write_text(
        "from app.replay.rerun_pb2 import RerunResult\n"
        "warm = []\n"
        "def up(): warm.append('warm')\n"
        "def run(request): return RerunResult(error_detail=str(warm))\n"
    )
    path = [*zygote.import_path(), str(tmp_path)]
    with Sandbox(entry="warming:run", preload=["warming:up", "json"], import_path=path) as sandbox:
        assert said(sandbox.run(GREET)) == "['warm']"


def test_what_is_loaded_only_once_there_is_a_second_run(tmp_path: Path) -> None:
    (tmp_path / "warming.py").write_text(
        "import sys\n"
        "from app.replay.rerun_pb2 import RerunResult\n"
        "warm = []\n"
        "def up(): warm.append('warm')\n"
        "def run(request): return RerunResult(error_detail=f\"{warm} {'colorsys' in sys.modules}\")\n"
    )
    path = [*zygote.import_path(), str(tmp_path)]
    later = ["not_there", "warming:nothing_of_that_name", "warming:up", "colorsys"]
    with Sandbox(entry="warming:run", preload=(), later=later, import_path=path) as sandbox:
        seen = [said(sandbox.run(GREET, QUICK)) for _ in range(2)]
        assert seen == ["[] False"] * 2
        until(lambda: said(sandbox.run(GREET, QUICK)) == "['warm'] True", "loading it")


# Where confinement is not to be had


@pytest.mark.parametrize(
    ("what", "remedy"),
    [("landlock", "run on Linux 5.13 or newer"), ("seccomp", "run on x86_64 or aarch64")],
)
def test_without_the_baseline_nothing_runs(
    world_without: Callable[[str], Path], what: str, remedy: str
) -> None:  # complaint 14
    world = world_without(what)
    with make_sandbox(interpreter=world) as sandbox:
        finished = sandbox.run(GREET)
        assert finished.ending is Ending.REFUSED_CONFINEMENT
        assert (finished.result, finished.confinement, finished.printed) == (None, None, "")
        assert f"{what} is not available" in finished.detail
        assert remedy in finished.detail
        assert "sandbox.unconfined = true" in finished.detail
    with make_sandbox(interpreter=world, unconfined=True) as sandbox:
        finished = sandbox.run(GREET)
        assert said(finished) == "hello world"
        assert finished.confinement is not None
        assert finished.confinement.tier == "none"
        assert any(text.startswith(f"{what}: ") for text in finished.confinement.missing)


def test_where_it_can_be_had_unconfined_changes_nothing() -> None:
    with make_sandbox(unconfined=True) as sandbox:
        confinement = sandbox.run(GREET).confinement
        assert confinement is not None
        assert confinement.tier != "none"


def test_namespaces_that_are_of_no_use(world_without: Callable[[str], Path]) -> None:
    with make_sandbox(interpreter=world_without("mounts")) as sandbox:
        finished = sandbox.run(GREET)
        assert said(finished) == "hello world"
        assert finished.confinement is not None
        assert finished.confinement.tier == "baseline"
        assert any("mount /" in text for text in finished.confinement.missing), finished.confinement


# The network, where the operator allows it


def test_a_request_cannot_allow_itself_the_network(sandbox: Sandbox) -> None:
    request = request_for("nice:greet")
    request.allow_network = True
    with pytest.raises(ValueError, match="allow_network=True"):
        sandbox.run(request)


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_network_when_allowed(namespaces: bool, tmp_path: Path) -> None:
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(tmp_path / "server"))
    named.listen()
    with server, named, make_sandbox(allow_network=True, namespaces=namespaces) as sandbox:
        port = server.getsockname()[1]
        finished = sandbox.run(request_for("tries:tcp", host="127.0.0.1", port=port))
        assert said(finished).startswith("REACHED <socket.socket")
        assert finished.confinement is not None
        assert finished.confinement.network == "allowed"
        assert "network-namespace" not in finished.confinement.measures
        assert said(sandbox.run(request_for("tries:udp", host="127.0.0.1", port=port))) == "REACHED 1"
        # Unix sockets lead to this machine's own services, which is not what the operator allowed.
        closed = sandbox.run(request_for("tries:unix", path=str(tmp_path / "server"), abstract="none"))
        assert "REACHED" not in said(closed)
        for agent in ("tries:fork", "tries:programs"):
            assert "REACHED" not in said(sandbox.run(request_for(agent)))


# What a run says is data


def test_a_result_is_read_as_data_only() -> None:
    from app.sandbox.protocol import FRAME
    from app.sandbox.runner import _read_frame

    nonce = bytes(range(16))
    payload = RerunResult(error_detail="x").SerializeToString()
    good = bytearray(FRAME.pack(nonce, 0, len(payload)) + payload)
    ending, result = _read_frame(good, nonce)
    assert (ending, result) == (Ending.FINISHED, RerunResult(error_detail="x"))
    assert _read_frame(bytearray(), nonce) == (None, None)
    assert _read_frame(good[:-1], nonce) == (None, None)
    for bad in (
        good[:5],
        good + b"x",
        bytearray(16) + good[16:],
        bytearray(FRAME.pack(nonce, 250, 0)),
        bytearray(FRAME.pack(nonce, 0, 3) + b"\xff\xff\xff"),
    ):
        assert _read_frame(bytearray(bad), nonce) == (Ending.GARBLED_RESULT, None)


def test_the_real_re_run_is_the_default() -> None:
    """The entry of production: a bad reference is its answer, not a crash."""
    with Sandbox() as sandbox:
        request = request_for("no_such_agent:agent")
        finished = sandbox.run(request, QUICK)
        assert finished.ending is Ending.FINISHED, finished
        assert finished.result is not None
        assert finished.result.outcome == RerunResult.REFUSED
        assert "no_such_agent" in finished.result.refusal
