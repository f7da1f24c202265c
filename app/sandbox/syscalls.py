"""Numbers of the system calls that a confined run is allowed, per machine architecture.

Everything absent from `ALLOWED` is refused, so a call that a later kernel adds is refused too. The numbers are written
down instead of asked of libseccomp because looking that library up costs more than the rest of a run, and because the
sandbox must not depend on a system package. A test holds them against libseccomp where that is installed.
"""

from __future__ import annotations

from typing import Final

# Name: (x86_64, aarch64); None where the architecture never had the call.
Numbers = dict[str, tuple[int | None, int | None]]

ARCHITECTURES: Final = ("x86_64", "aarch64")

ALLOWED: Final[Numbers] = {
    # Files: which ones can be opened is Landlock's to say.
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "preadv2": (327, 286),
    "pwritev2": (328, 287),
    "open": (2, None),
    "openat": (257, 56),
    "creat": (85, None),
    "close": (3, 57),
    "close_range": (436, 436),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "lseek": (8, 62),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "fadvise64": (221, 223),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "splice": (275, 76),
    "tee": (276, 77),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "link": (86, None),
    "linkat": (265, 37),
    "umask": (95, 166),
    "ioctl": (16, 29),
    # Waiting.
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "eventfd": (284, None),
    "eventfd2": (290, 19),
    "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87),
    "signalfd": (282, None),
    "signalfd4": (289, 74),
    # Memory.
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "brk": (12, 214),
    "msync": (26, 227),
    "mincore": (27, 232),
    "mlock": (149, 228),
    "munlock": (150, 229),
    "membarrier": (324, 283),
    # Signals and timers of this process.
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132),
    "pause": (34, None),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "timer_create": (222, 107),
    "timer_settime": (223, 110),
    "timer_gettime": (224, 108),
    "timer_getoverrun": (225, 109),
    "timer_delete": (226, 111),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "restart_syscall": (219, 128),
    # Threads.
    "clone": (56, 220),
    "futex": (202, 98),
    "futex_waitv": (449, 449),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "set_tid_address": (218, 96),
    "gettid": (186, 178),
    "arch_prctl": (158, None),
    "prctl": (157, 167),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "sched_getscheduler": (145, 120),
    "sched_getparam": (143, 121),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "sched_rr_get_interval": (148, 127),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "wait4": (61, 260),
    "waitid": (247, 95),
    # Who and where am I.
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getpgrp": (111, None),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getpriority": (140, 141),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "setrlimit": (160, 164),
    "prlimit64": (302, 261),
    "sysinfo": (99, 179),
    "uname": (63, 160),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "capget": (125, 90),
    # Pairs of stream sockets, which an event loop wakes itself with.
    "socketpair": (53, 199),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "shutdown": (48, 210),
    "getsockopt": (55, 209),
    "setsockopt": (54, 208),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
}

# Added when the operator allows the network.
NETWORK: Final[Numbers] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendmmsg": (307, 269),
    "recvmmsg": (299, 243),
}

# The C library tries these first and falls back to an older call only when told that they do not exist.
ABSENT: Final[Numbers] = {
    "clone3": (435, 435),
    "openat2": (437, 437),
}

# What the sandbox itself calls and the C library does not wrap.
OWN: Final[Numbers] = {
    "pivot_root": (155, 41),
    "capset": (126, 91),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "mount_setattr": (442, 442),
    "process_madvise": (440, 440),
}


def number(name: str, machine: str) -> int | None:
    """The number of one call on `machine` (as `os.uname().machine` says it), or None where it has none."""
    column = ARCHITECTURES.index(machine)
    for table in (ALLOWED, NETWORK, ABSENT, OWN):
        if name in table:
            return table[name][column]
    raise KeyError(name)
