"""The tables that the kernel is given, held against an independent source, and the filter itself."""

import ctypes
import ctypes.util
import errno
import os
import tempfile
from pathlib import Path

import pytest

from app.sandbox import landlock, linux, scratch, seccomp, syscalls

TABLES = {"ALLOWED": syscalls.ALLOWED, "NETWORK": syscalls.NETWORK, "ABSENT": syscalls.ABSENT, "OWN": syscalls.OWN}


@pytest.mark.parametrize("table", TABLES)
def test_numbers_against_libseccomp(table: str) -> None:
    if ctypes.util.find_library("seccomp") is None:
        pytest.skip("no libseccomp here to compare with; run: sudo apt-get install libseccomp2")
    import pyseccomp

    architectures = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}
    unknown = []
    for name, columns in TABLES[table].items():
        for machine, number in zip(syscalls.ARCHITECTURES, columns, strict=True):
            try:
                known = pyseccomp.resolve_syscall(architectures[machine], name)
            except ValueError:
                unknown.append(name)
                continue
            assert number == (known if known >= 0 else None), (name, machine)
    assert len(unknown) <= 4, unknown  # an older library does not know the latest calls


def test_no_call_is_allowed_twice_or_both_ways() -> None:
    names = [name for table in TABLES.values() for name in table]
    assert len(names) == len(set(names))
    for column in range(len(syscalls.ARCHITECTURES)):
        numbers = [row[column] for table in TABLES.values() for row in table.values() if row[column] is not None]
        assert len(numbers) == len(set(numbers))


DANGEROUS = """
    ptrace process_vm_readv process_vm_writev mount umount2 unshare setns bpf perf_event_open keyctl add_key
    io_uring_setup open_by_handle_at userfaultfd pidfd_open pidfd_getfd pidfd_send_signal execve execveat fork vfork
    socket connect bind listen accept memfd_create chmod fchmodat chown setxattr truncate chroot init_module
    kexec_load reboot setuid setresuid capset seccomp personality inotify_init1 fanotify_init shmget mq_open
"""


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_what_must_not_be_allowed(name: str) -> None:
    assert name not in syscalls.ALLOWED


@pytest.mark.parametrize("machine", syscalls.ARCHITECTURES)
@pytest.mark.parametrize("allow_network", [True, False])
def test_programs_are_whole(machine: str, allow_network: bool) -> None:
    """Every instruction is eight bytes, no jump leaves the program, and the last one answers."""
    code = seccomp.Template(machine, allow_network=allow_network).program_for(4242)
    words = [code[at : at + 8] for at in range(0, len(code), 8)]
    assert len(words) <= 4096
    for index, word in enumerate(words):
        operation, if_true, if_false = int.from_bytes(word[:2], "little"), word[2], word[3]
        if operation & 7 == 5:
            assert index + 1 + max(if_true, if_false) < len(words)
    assert words[-1][:2] == b"\x06\x00"
    assert (4242).to_bytes(4, "little") in [word[4:] for word in words]
    assert (0x7FFFFFF1).to_bytes(4, "little") not in [word[4:] for word in words]


def test_an_unknown_machine() -> None:
    with pytest.raises(KeyError):
        seccomp.Template("riscv64", allow_network=False)


def test_another_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "MACHINE", "riscv64")
    with pytest.raises(OSError, match="seccomp: not known on riscv64"):
        linux.call("seccomp", 0, 0, 0)
    assert landlock.version() == 0


@pytest.mark.parametrize("revision", range(1, 8))
def test_every_revision_of_landlock(revision: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels from 5.13 on: a newer one accepts what an older one was asked."""
    if landlock.version() < revision:
        pytest.skip(f"this kernel offers revision {landlock.version()}")
    monkeypatch.setattr(landlock, "version", lambda: revision)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_text("x")
    (tmp_path / "closed").write_text("x")
    pid = os.fork()
    if pid == 0:
        seen = 0
        try:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")
            allowed = landlock.AllowList(allow_network=False)
            allowed.add_path(str(tmp_path / "open"), landlock.READ)
            seen |= allowed.enforce() == f"landlock-{revision}"
            os.close(os.open(tmp_path / "open" / "file", os.O_RDONLY))
            seen |= 2
            for path, flags in ((tmp_path / "closed", os.O_RDONLY), (tmp_path / "open" / "file", os.O_WRONLY)):
                try:
                    os.open(path, flags)
                except PermissionError:
                    seen <<= 1
        finally:
            os._exit(seen)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0b1100


def test_errors_name_the_step() -> None:
    with pytest.raises(OSError, match="mount /nowhere") as caught:
        linux.mount("none", "/nowhere", "tmpfs", 0)
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)


# The scratch folder on the host's side


def test_scratch_is_private_and_goes_away() -> None:
    with scratch.folder() as folder:
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        (Path(folder) / "file").touch()
    assert not Path(folder).exists()
    scratch.remove(folder)


def test_leftovers_of_a_killed_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, fresh, other = (tmp_path / name for name in ("hindcast-run-left", "hindcast-run-fresh", "something-else"))
    for place in (left, fresh, other):
        (place / "inner").mkdir(parents=True)
    with scratch.folder() as held:
        scratch.sweep()
        assert left.exists()  # it could be one that is only just being made
        monkeypatch.setattr(scratch, "_SETTLED_S", 0.0)
        scratch.sweep()
        assert Path(held).exists()
    assert not left.exists()
    assert not fresh.exists()
    assert other.exists()


def test_removing_what_is_deep_locked_or_linked(tmp_path: Path) -> None:
    folder, outside = tmp_path / "scratch", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(2500):  # deeper than Python recurses, and than a path can be written
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    (folder / "to-outside").symlink_to(outside)
    (folder / "locked" / "inner").mkdir(parents=True)
    (folder / "locked" / "inner" / "file").touch()
    (folder / "locked" / "inner").chmod(0)
    (folder / "locked").chmod(0)
    scratch.remove(str(folder))
    assert not folder.exists()
    assert (outside / "precious").exists()


def test_measuring(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("/usr")
    assert not scratch.exceeds(str(tmp_path), 200_000)
    assert scratch.exceeds(str(tmp_path), 50_000)
    assert not scratch.exceeds(str(tmp_path / "gone"), 0)
    for number in range(10_001):
        (tmp_path / f"f{number}").touch()
    assert scratch.exceeds(str(tmp_path), 1 << 40)
