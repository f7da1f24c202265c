# ruff: noqa: PTH102, PTH103, PTH119, PTH120, PTH123, PTH208, PTH211
"""Each function is an agent that tries something it must not be able to do.


It returns `REACHED ...` when it got there, and otherwise the errors that it met. Where Python itself says no first,
`past Python` goes around it, straight to the C library.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)


def _met(*attempts):
    """Try all of them; one that comes back with something is a breach."""
    errors = []
    for attempt in attempts:
        try:
            value = attempt()
        except BaseException as error:  # noqa: BLE001
            errors.append(f"{type(error).__name__}: {error}")
        else:
            if value is not None:
                return f"REACHED {value!r}"
            errors.append("nothing there")
    return " | ".join(errors)


def _call(name, *arguments):
    """A C function, raising what it meant to say."""
    result = getattr(LIBC, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return f"{name} gave {result}"


def _syscall(number, *arguments):
    return _call("syscall", ctypes.c_long(number), *arguments)


# Network


def tcp(host, port):
    return _met(
        lambda: socket.create_connection((host, port), 2),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        lambda: _call("socket", socket.AF_INET, socket.SOCK_STREAM, 0),
        lambda: _call("socket", socket.AF_INET6, socket.SOCK_STREAM, 0),
    )


def udp(host, port):
    def send():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
            return it.sendto(b"x", (host, port))

    return _met(send, lambda: _call("socket", socket.AF_INET, socket.SOCK_DGRAM, 0))


def dns():
    return _met(lambda: socket.getaddrinfo("example.com", 443), lambda: socket.gethostbyname("example.com"))


def unix(path, abstract):
    def connect(address):
        it = socket.socket(socket.AF_UNIX)
        it.connect(address)
        return it.recv(100)

    return _met(lambda: connect(path), lambda: connect("\0" + abstract), lambda: _call("socket", socket.AF_UNIX, 1, 0))


def unix_through_a_pair(path):
    """Datagram pairs can be pointed elsewhere, and connected ones could be connected anew."""
    address = struct.pack("H", socket.AF_UNIX) + path.encode() + b"\0"
    pair = (ctypes.c_int * 2)()

    def through(kind):
        _call("socketpair", socket.AF_UNIX, kind, 0, pair)
        for name, arguments in (
            ("sendto", (pair[0], b"x", 1, 0, address, len(address))),
            ("connect", (pair[0], address, len(address))),
        ):
            try:
                return _call(name, *arguments)
            except OSError as error:
                met = error
        raise met

    return _met(lambda: through(socket.SOCK_DGRAM), lambda: through(socket.SOCK_SEQPACKET), lambda: through(1))


def other_sockets():
    return _met(
        *(lambda family=family: _call("socket", family, 3, 0) for family in range(1, 46)),
        lambda: _call("socket", socket.AF_UNIX, socket.SOCK_DGRAM, 0),
    )


# Files


def read(paths):
    def past_python(path):
        descriptor = LIBC.open(path.encode(), os.O_RDONLY)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "open")
        return os.read(descriptor, 100)

    def through_directory(path):
        folder = os.open(os.path.dirname(path), os.O_PATH)
        return os.read(os.open(os.path.basename(path), os.O_RDONLY, dir_fd=folder), 100)

    return _met(
        *(lambda path=path: Path(path).read_bytes() for path in paths),
        *(lambda path=path: past_python(path) for path in paths),
        *(lambda path=path: through_directory(path) for path in paths),
    )


def list_folders(paths):
    return _met(*(lambda path=path: os.listdir(path) for path in paths))


def write(paths):
    def make(path):
        Path(path).write_text("x")
        return path

    def past_python(path, flags):
        descriptor = LIBC.open(path.encode(), flags, 0o600)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "open")
        return path

    return _met(
        *(lambda path=path: make(path) for path in paths),
        *(lambda path=path: past_python(path, os.O_WRONLY | os.O_CREAT) for path in paths),
        *(lambda path=path: _call("mkdir", (path + "-dir").encode(), 0o700) for path in paths),
        *(lambda path=path: _call("symlink", b"/etc/passwd", (path + "-link").encode()) for path in paths),
    )


def change(path):
    """Content, name, mode, owner, times, attributes of a file that can be read."""
    name = path.encode()

    def cut_while_reading():
        descriptor = LIBC.open(name, os.O_RDONLY | os.O_TRUNC)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "open")
        return "cut"

    def mode_by_descriptor():
        return _call("fchmod", os.open(path, os.O_RDONLY), 0o777)

    return _met(
        lambda: Path(path).write_text("x"),
        lambda: _call("truncate", name, 0),
        cut_while_reading,
        lambda: _call("unlink", name),
        lambda: _call("rename", name, name + b"-moved"),
        lambda: _call("link", name, name + b"-hard"),
        lambda: _call("link", name, b"hard-link-in-scratch"),
        lambda: _call("chmod", name, 0o777),
        mode_by_descriptor,
        lambda: _call("chown", name, os.getuid(), os.getgid()),
        lambda: _call("utimes", name, None),
        lambda: _call("setxattr", name, b"user.x", b"x", 1, 0),
    )


# Other processes


def programs():
    return _met(
        lambda: subprocess.run(["/bin/true"], check=True),
        lambda: os.system("true") == 0 or None,
        lambda: os.execv("/bin/true", ["true"]),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: os.popen("true").read(),
        lambda: _call("system", b"true") if LIBC.system(b"true") == 0 else None,
        lambda: _call("execve", b"/bin/true", None, None),
        lambda: _syscall(59, b"/bin/true", None, None),
        lambda: _syscall(322, -100, b"/bin/true", None, None, 0),
    )


def program_in_memory():
    """A file without a name, filled with a program and started."""

    return _met(lambda: _syscall(319, b"x", 0), lambda: os.memfd_create("x"))


def fork():
    return _met(
        os.fork, lambda: _call("fork"), lambda: _call("vfork"), lambda: _syscall(57), lambda: _syscall(56, 17, 0)
    )


def fork_bomb():
    """As many processes and threads as it takes."""
    try:
        while True:
            os.fork()
    except OSError:
        pass
    while True:
        try:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError:
            time.sleep(0.01)


def signal_others(pids):
    return _met(
        *(lambda pid=pid: os.kill(pid, 0) or "signalled" for pid in (*pids, os.getppid(), -1, 0)),
        *(lambda pid=pid: _call("kill", pid, 9) for pid in (*pids, os.getppid(), -1, 0)),
        *(lambda pid=pid: _syscall(234, pid, pid, 9) for pid in pids),
        *(lambda pid=pid: _syscall(129, pid, 9, b"\0" * 128) for pid in pids),
        *(lambda pid=pid: _syscall(434, pid, 0) for pid in pids),
    )


def kill_parent():
    """The process that it was forked from, by each way of sending a signal."""
    parent = os.getppid()
    return _met(
        lambda: os.kill(parent, signal.SIGKILL) or "killed",
        lambda: _call("kill", parent, signal.SIGKILL),
        lambda: _call("kill", -1, signal.SIGKILL),
        lambda: _call("killpg", 0, signal.SIGKILL),
    )


def past_the_hook():
    """Python's own functions are watched by a hook; the C library's are not, and meet the kernel's refusal."""
    return _met(
        lambda: _call("open", b"/etc/shadow", os.O_RDONLY),
        lambda: _call("open", b"/root", os.O_RDONLY | os.O_DIRECTORY),
        lambda: _call("creat", b"/tmp/hindcast-tried", 0o600),
        lambda: _call("socket", socket.AF_INET, socket.SOCK_STREAM, 0),
        lambda: _call("fork"),
        lambda: _call("execve", b"/bin/true", None, None),
    )


def signal_by_descriptor(pids):
    """A descriptor can be told whom to signal when something arrives."""
    _ours, theirs = socket.socketpair()
    return _met(
        *(lambda pid=pid: _call("fcntl", theirs.fileno(), 8, pid) for pid in pids),
        *(lambda pid=pid: _call("ioctl", theirs.fileno(), 0x8901, struct.pack("i", pid)) for pid in pids),
    )


def other_memory(pids, after=0.0, but_own=False):
    """A copy that had waited is there before its run is, so its own number may be among those of others."""
    time.sleep(after)
    pids = [pid for pid in pids if not but_own or pid != os.getpid()]
    paths = [
        f"/proc/{pid}/{name}"
        for pid in pids
        for name in ("mem", "environ", "maps", "cmdline", "fd/0", "root/etc/passwd")
    ]
    buffer = ctypes.create_string_buffer(64)
    local = struct.pack("QQ", ctypes.addressof(buffer), 64)
    return _met(
        lambda: read(paths) if read(paths).startswith("REACHED") else None,
        *(lambda pid=pid: _syscall(310, pid, local, 1, local, 1, 0) for pid in pids),
        *(lambda pid=pid: _syscall(311, pid, local, 1, local, 1, 0) for pid in pids),
        *(lambda pid=pid: _syscall(101, 16, pid, 0, 0) for pid in pids),
        *(lambda pid=pid: _syscall(101, 0x4206, pid, 0, 0) for pid in pids),
    )


def kernel():
    """Calls that widen what a process can do."""
    space = ctypes.create_string_buffer(256)
    names = {
        "io_uring_setup": (425, 8, space),
        "bpf": (321, 0, space, 64),
        "perf_event_open": (298, space, 0, -1, -1, 0),
        "userfaultfd": (323, 1),
        "keyctl": (250, 0, -3, 1),
        "add_key": (248, b"user", b"x", b"x", 1, -3),
        "open_by_handle_at": (304, -100, space, 0),
        "name_to_handle_at": (303, -100, b"/", space, space, 0),
        "mount": (165, b"none", b".", b"tmpfs", 0, None),
        "umount2": (166, b"/", 2),
        "fsopen": (430, b"tmpfs", 0),
        "open_tree": (428, -100, b"/", 1),
        "pivot_root": (155, b".", b"."),
        "chroot": (161, b"."),
        "unshare user": (272, 0x10000000),
        "unshare net": (272, 0x40000000),
        "setns": (308, 0, 0),
        "clone3": (435, space, 88),
        "clone new user": (56, 0x10000000 | 17, 0),
        "personality": (135, 0x0008),
        "prctl dumpable": (157, 4, 1, 0, 0, 0),
        "prctl parent death": (157, 1, 0, 0, 0, 0),
        "capset": (126, struct.pack("II", 0x20080522, 0), b"\xff" * 24),
        "setuid": (105, 0),
        "iopl": (172, 3),
        "init_module": (175, space, 1, b""),
        "reboot": (169, 0, 0, 0, 0),
        "settimeofday": (164, space, None),
        "sethostname": (170, b"x", 1),
        "swapon": (167, b"/x", 0),
        "acct": (163, None),
        "inotify_init1": (294, 0),
        "fanotify_init": (300, 0, 0),
        "shmget": (29, 0, 4096, 0o1600),
        "msgget": (68, 0, 0o1600),
        "mq_open": (240, b"x", 0o102, 0o600, None),
        "pidfd_open": (434, os.getpid(), 0),
        "pidfd_getfd": (438, 0, 0, 0),
        "process_madvise": (440, 0, space, 1, 4, 0),
        "kcmp": (312, os.getpid(), os.getpid(), 0, 0, 0),
        "prlimit others": (302, 1, 7, None, space),
        "memfd_secret": (447, 0),
        "landlock_create_ruleset": (444, None, 0, 1),
        "x32 getpid": (0x40000000 + 39,),
        "unknown": (9999,),
    }
    breaches = []
    refused = {errno.EPERM, errno.ENOSYS, errno.EACCES}
    for name, arguments in names.items():
        result = LIBC.syscall(*(ctypes.c_long(item) if isinstance(item, int) else item for item in arguments))
        if result >= 0 or ctypes.get_errno() not in refused:
            breaches.append(f"{name}: {result}, {errno.errorcode.get(ctypes.get_errno())}")
    return f"REACHED {breaches}" if breaches else f"{len(names)} refused"


# Using up what there is


def loop_for_ever():
    while True:
        pass


def loop_without_listening():
    with contextlib.suppress(OSError, ValueError):
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    loop_for_ever()


def sleep_for_ever():
    while True:
        time.sleep(1000)


def ignore_signals_and_sleep():
    for number in range(1, 65):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    sleep_for_ever()


def allocate(mib):
    """Ordinary memory, then shared memory, which some limits do not count."""
    size = mib << 20
    try:
        block = bytearray(size)
    except MemoryError:
        block = None
    if block is None:
        try:
            shared = mmap.mmap(-1, size)
        except OSError as error:
            raise MemoryError(str(error)) from error
        return f"REACHED {len(shared)}"
    return f"REACHED {len(block)}"


def allocate_bit_by_bit():
    kept = []
    while True:
        kept.append(bytearray(b"x" * (4 << 20)))


def allocate_outside_the_limit():
    """Memory that belongs to files, pipes and sockets instead of to the process."""
    return _met(lambda: os.memfd_create("x"), lambda: Path("/dev/shm/x").write_bytes(b"x") and "shm")


def flood(mib):
    block = b"x" * (1 << 20)
    for _ in range(mib):
        os.write(1, block)
    return "printed it all"


def flood_for_ever():
    while True:
        os.write(2, b"x" * 65536)


def fill_scratch_with_one_file():
    with open("big", "wb") as file:
        while True:
            file.write(b"x" * (1 << 20))


def fill_scratch_with_files():
    for number in range(10**9):
        Path(f"f{number}").write_bytes(b"x" * 4096)


def fill_scratch_with_depth():
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    return "deep"


def lock_scratch():
    """Leave things that are hard to remove."""
    os.umask(0)
    os.makedirs("a/b/c")
    Path("a/b/c/file").write_text("x")
    os.mkdir("closed", 0)
    os.symlink("/", "root")
    return "left"


def large_result(mib):
    return "x" * (mib << 20)


# Leaving


def leave(how):
    if how == "os._exit":
        os._exit(0)
    if how == "sys.exit":
        sys.exit(3)
    if how == "exit":
        exit()
    if how == "abort":
        os.abort()
    if how == "segfault":
        ctypes.string_at(0)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "error":
        raise RuntimeError("a bug in the agent")
    return


def close_everything():
    os.closerange(0, 1024)
    return "closed"


def forge_result():
    """Print what looks like a result, and write to every descriptor there is."""
    forged = b"\0" * 16 + b"\0" + struct.pack("=Q", 2) + b"\x08\x01"
    sys.stdout.buffer.write(forged)
    for number in range(3, 256):
        try:
            os.write(number, forged)
        except OSError:
            continue
    return "genuine"


def temporary_file():
    return tempfile.gettempdir()


def read_scratch_of_others():
    return _met(lambda: [str(path) for path in Path("..").iterdir() if path.name.startswith("hindcast-run-")])
