"""Agents that reach for the machine: each is refused, and the next run on the same process knows nothing of it."""

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.sandbox.model import Ending, Finished, Limits
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import AGENTS, QUICK, Attempt, processes_of, request_for, said
from tests.waiting import PATIENCE_S, until


@pytest.fixture(autouse=True)
def next_run_is_unaffected(sandbox: Sandbox) -> Iterator[None]:
    before = sandbox._zygote
    yield
    after = sandbox.run(request_for("nice:find_something"), QUICK)
    assert after.ending is Ending.FINISHED, after
    assert said(after) == "(False, False, [])"
    assert after.printed == ""
    assert after.refusals == ()
    assert sandbox._zygote is before


@pytest.fixture
def listening(open_folder: Path) -> Iterator[dict[str, object]]:
    """A TCP, a UDP, a named and an abstract Unix server of ours, each answering whoever comes."""
    abstract = str(open_folder)
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    named, unnamed = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    named.bind(str(open_folder / "server"))
    datagrams.bind(str(open_folder / "datagrams"))
    (open_folder / "server").chmod(0o777)
    (open_folder / "datagrams").chmod(0o777)
    unnamed.bind("\0" + abstract)
    arrived: list[str] = []

    def serve(server: socket.socket, name: str) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            arrived.append(name)
            peer.send(b"welcome")
            peer.close()

    for server, name in ((tcp, "tcp"), (named, "named"), (unnamed, "abstract")):
        server.listen()
        threading.Thread(target=serve, args=(server, name), daemon=True).start()
    for server in (udp, datagrams):
        server.setblocking(False)
    yield {
        "tcp": tcp.getsockname()[1],
        "udp": udp.getsockname()[1],
        "named": str(open_folder / "server"),
        "datagrams": str(open_folder / "datagrams"),
        "abstract": abstract,
    }
    for server in (udp, datagrams):
        with pytest.raises(BlockingIOError):
            server.recv(10)
    assert arrived == []
    for server in (tcp, named, unnamed):
        server.shutdown(socket.SHUT_RDWR)
    for server in (tcp, udp, named, unnamed, datagrams):
        server.close()


def refused(finished: Finished, *noted: str) -> str:
    """Assert that nothing was reached, and that the report names what was tried."""
    text = said(finished)
    assert finished.ending is Ending.FINISHED
    assert "REACHED" not in text
    for expected in noted:
        assert any(expected in refusal for refusal in finished.refusals), (expected, finished.refusals)
    return text


def test_tcp(attempt: Attempt, listening: dict[str, object]) -> None:  # complaint 13
    finished = attempt("tries:tcp", host="127.0.0.1", port=listening["tcp"])
    text = refused(finished, "tried to resolve the name 127.0.0.1", "tried to open a network socket")
    assert "replay sandbox: network is off" in text
    assert "Operation not permitted" in text  # past Python


def test_udp(attempt: Attempt, listening: dict[str, object]) -> None:
    refused(attempt("tries:udp", host="127.0.0.1", port=listening["udp"]), "tried to open a network socket")


def test_names(attempt: Attempt) -> None:  # complaint 13
    refused(attempt("tries:dns"), "tried to resolve the name example.com")


def test_unix_sockets(attempt: Attempt, listening: dict[str, object]) -> None:
    finished = attempt("tries:unix", path=listening["named"], abstract=listening["abstract"])
    refused(finished, "tried to open a Unix socket")


def test_unix_sockets_through_a_pair(attempt: Attempt, listening: dict[str, object]) -> None:
    refused(attempt("tries:unix_through_a_pair", path=listening["datagrams"]))


def test_sockets_of_every_family(attempt: Attempt) -> None:
    refused(attempt("tries:other_sockets"))


def test_configuration_and_credentials(attempt: Attempt, open_folder: Path) -> None:
    secrets = {"hindcast.toml": 0o644, "credentials": 0o600, "password": 0o644}
    for name, mode in secrets.items():
        (open_folder / name).write_text("secret")
        (open_folder / name).chmod(mode)
    paths = [str(open_folder / name) for name in secrets]
    refused(attempt("tries:read", paths=paths), *(f"tried to read {path}" for path in paths))
    refused(attempt("tries:list_folders", paths=[str(open_folder), "/", "/tmp", str(Path.home())]))


def test_files_of_the_system(attempt: Attempt) -> None:
    own = os.getpid()
    paths = ["/etc/shadow", "/etc/passwd", "/etc/hostname", "/var/log/dpkg.log", "/dev/mem", "/dev/kmsg", "/dev/vda"]
    processes = [
        f"/proc/{who}/{what}" for who in (1, own, "self") for what in ("environ", "cmdline", "maps", "mem", "status")
    ]
    refused(
        attempt("tries:read", paths=paths + processes),
        "tried to read /etc/shadow",
        f"tried to read /proc/{own}/environ",
    )
    refused(
        attempt("tries:list_folders", paths=["/proc", "/proc/self/fd", f"/proc/{own}/root", "/sys", "/etc", "/dev"])
    )


def test_the_checkout_around_the_app(attempt: Attempt) -> None:
    checkout = AGENTS.parents[2]
    files = [
        checkout / "pyproject.toml",
        checkout / "README.md",
        checkout / "app" / "settings" / "__init__.py",
        checkout / "Makefile",
    ]
    refused(attempt("tries:read", paths=[str(file) for file in files]))
    refused(attempt("tries:list_folders", paths=[str(checkout), str(checkout / "app"), str(checkout / ".git")]))


def test_writing_outside_scratch(attempt: Attempt, open_folder: Path) -> None:  # complaint 13
    open_folder.chmod(0o777)
    places = ["/tmp", "/dev/shm", "/var/tmp", "/", str(open_folder), str(AGENTS), str(Path.home())]
    names = [f"{place.rstrip('/')}/hindcast-breach-{os.getpid()}" for place in places]
    refused(attempt("tries:write", paths=names), *(f"tried to write {name}" for name in names))
    left = [name + end for name in names for end in ("", "-dir", "-link") if os.path.lexists(name + end)]
    assert left == []


def test_changing_what_can_be_read(attempt: Attempt) -> None:
    file = AGENTS / "nice.py"
    before = file.read_bytes(), file.stat()
    refused(attempt("tries:change", path=str(file)))
    after = file.stat()
    assert file.read_bytes() == before[0]
    for field in ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_ctime_ns", "st_nlink"):
        assert getattr(after, field) == getattr(before[1], field)


def test_programs(attempt: Attempt) -> None:  # complaint 13
    text = refused(attempt("tries:programs"), "tried to start ['/bin/true']", "tried to start true")
    assert "replay sandbox: starting programs is off" in text


def test_program_in_memory(attempt: Attempt) -> None:
    refused(attempt("tries:program_in_memory"))


def test_forks(attempt: Attempt) -> None:
    refused(attempt("tries:fork"), "tried to fork")


def test_signals_to_others(attempt: Attempt, sandbox: Sandbox) -> None:
    others = [os.getpid(), sandbox._zygote.pid, 1]
    refused(attempt("tries:signal_others", pids=others), f"tried to signal process {os.getpid()}")
    refused(attempt("tries:signal_by_descriptor", pids=others))


def test_memory_of_others(attempt: Attempt, sandbox: Sandbox) -> None:
    """Of the host, of the pre-loaded process, and of a run that is under way, by each number that it has."""
    before = set(processes_of(sandbox.pid))
    stop = threading.Event()
    napping = threading.Thread(
        target=sandbox.run, args=(request_for("nice:nap", seconds=600), QUICK), kwargs={"stop": stop}
    )
    napping.start()
    try:
        others = until(lambda: set(processes_of(sandbox.pid)) - before, "the start of the run")
        pids = [os.getpid(), sandbox.pid, *others, *range(1, 40)]
        refused(attempt("tries:other_memory", pids=pids, but_own=True))
    finally:
        stop.set()
        napping.join()


def test_memory_of_an_earlier_run(attempt: Attempt) -> None:
    attempt("nice:leave_something")
    assert said(attempt("nice:find_something")) == "(False, False, [])"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by number, written for x86_64")
def test_calls_that_widen_what_a_process_can_do(attempt: Attempt) -> None:
    assert "refused" in refused(attempt("tries:kernel"))


def test_memory_outside_the_limit(attempt: Attempt) -> None:
    refused(attempt("tries:allocate_outside_the_limit"))


def test_scratch_of_others(attempt: Attempt) -> None:
    refused(attempt("tries:read_scratch_of_others"))


# Using up what there is


@pytest.mark.parametrize("agent", ["loop_for_ever", "loop_without_listening"])
def test_a_loop_for_ever(attempt: Attempt, agent: str) -> None:
    finished = attempt(f"tries:{agent}", Limits(wall_s=PATIENCE_S, cpu_s=1))
    assert finished.ending is Ending.CPU_LIMIT
    assert finished.detail == "it used more than 1 s of processor time"
    assert finished.result is None


@pytest.mark.parametrize("agent", ["sleep_for_ever", "loop_for_ever", "ignore_signals_and_sleep", "flood_for_ever"])
def test_the_time_limit(attempt: Attempt, agent: str) -> None:
    finished = attempt(f"tries:{agent}", Limits(wall_s=0.4, cpu_s=10))
    assert finished.ending is Ending.TIME_LIMIT
    assert finished.detail == "it ran for more than 0.4 s"
    assert finished.duration_ms >= 400


@pytest.mark.parametrize("agent", ["allocate", "allocate_bit_by_bit"])
def test_ten_gigabytes(attempt: Attempt, agent: str) -> None:
    finished = attempt(f"tries:{agent}", **({"mib": 10240} if agent == "allocate" else {}))
    assert finished.ending is Ending.MEMORY_LIMIT
    assert finished.detail == f"it needed more than {QUICK.memory_bytes} bytes of memory"


def test_a_fork_bomb(attempt: Attempt) -> None:
    finished = attempt("tries:fork_bomb", Limits(wall_s=1, processes=40))
    assert finished.ending in (Ending.PROCESS_LIMIT, Ending.TIME_LIMIT)


def test_a_flood_of_prints(attempt: Attempt) -> None:
    finished = attempt("tries:flood", Limits(wall_s=PATIENCE_S, cpu_s=60), mib=256)
    assert said(finished) == "printed it all"
    assert len(finished.printed) == QUICK.output_bytes
    assert len(finished.printed) + finished.discarded_bytes == 256 << 20


@pytest.mark.parametrize("how", ["one_file", "files", "depth"])
def test_filling_scratch(attempt: Attempt, how: str, tmp_path: Path) -> None:
    finished = attempt(f"tries:fill_scratch_with_{how}", Limits(wall_s=PATIENCE_S, cpu_s=60, scratch_bytes=8 << 20))
    if how == "depth":
        assert said(finished) == "deep"
    else:
        assert finished.ending in (Ending.CRASHED, Ending.SCRATCH_LIMIT), finished
        assert (
            "File too large" in finished.detail or "No space left" in finished.detail or "it wrote" in finished.detail
        )


def test_scratch_that_is_hard_to_remove(attempt: Attempt, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    assert said(attempt("tries:lock_scratch")) == "left"
    assert list(open_folder.iterdir()) == []


def test_a_result_that_is_too_large(attempt: Attempt) -> None:
    limits = Limits(wall_s=PATIENCE_S, result_bytes=1 << 20)
    finished = attempt("tries:large_result", limits, mib=4)
    assert finished.ending is Ending.RESULT_TOO_LARGE
    assert "1048576 bytes" in finished.detail


# Leaving


@pytest.mark.parametrize(
    ("how", "ending", "detail"),
    [
        ("os._exit", Ending.EXITED_EARLY, "its process ended with status 0 before it gave a result"),
        ("sys.exit", Ending.EXITED_EARLY, "the agent called exit(3)"),
        ("exit", Ending.EXITED_EARLY, "the agent called exit(None)"),
        ("abort", Ending.KILLED_BY_SIGNAL, "its process was killed by signal 6 (SIGABRT)"),
        ("segfault", Ending.KILLED_BY_SIGNAL, "its process was killed by signal 11 (SIGSEGV)"),
        ("interrupt", Ending.CRASHED, "KeyboardInterrupt"),
        ("error", Ending.CRASHED, "RuntimeError: a bug in the agent"),
    ],
)
def test_leaving(attempt: Attempt, how: str, ending: Ending, detail: str) -> None:
    finished = attempt("tries:leave", how=how)
    assert finished.ending is ending
    assert detail in finished.detail
    assert finished.result is None


def test_leaving_on_import(attempt: Attempt) -> None:
    hard = attempt("leaves_on_import_hard:anything")
    assert (hard.ending, hard.detail) == (
        Ending.EXITED_EARLY,
        "its process ended with status 7 before it gave a result",
    )
    soft = attempt("leaves_on_import:anything")
    assert (soft.ending, soft.detail) == (Ending.EXITED_EARLY, "the agent called exit('not today')")


def test_closing_every_descriptor(attempt: Attempt) -> None:
    finished = attempt("tries:close_everything")
    assert finished.ending is Ending.EXITED_EARLY


def test_a_forged_result(attempt: Attempt) -> None:
    """Printing does nothing; writing into the result's own pipe spoils it and never counts as one."""
    finished = attempt("tries:forge_result")
    assert finished.ending is Ending.GARBLED_RESULT
    assert finished.result is None
