"""Start an interpreter in a world that refuses something, as containers and old kernels do.

A script made from it takes the place of an interpreter: it installs the refusal and becomes the real one.
"""

import ctypes
import os
import platform
import struct
import sys

X86_64, AARCH64 = 0, 1
EPERM, EINVAL, ENOSYS = 1, 22, 38
# Numbers per machine, and the error that they give.
WORLDS = {
    # unshare, setns, mount, pivot_root: what an ordinary container refuses.
    "namespaces": (((272, 97), (308, 268), (165, 40), (155, 41)), EPERM),
    # Namespaces that can be had and then are of no use, as some distributions configure it.
    "mounts": (((165, 40),), EPERM),
    "landlock": (((444, 444), (445, 445), (446, 446)), ENOSYS),
    "seccomp": (((317, 277),), EPERM),
    # A kernel that does not copy pages on request.
    "early copies": (((440, 440),), EINVAL),
}
CLONE, CLONE3 = (56, 220), 435
NEW_NAMESPACES = 0x7E020000
LOAD, AND, EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


def word(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def refuse(what: str) -> None:
    """From here on, this process and its children are in the world that `what` names."""
    machine = {"x86_64": X86_64, "aarch64": AARCH64}[platform.machine()]
    numbers, error = WORLDS[what]
    code = word(LOAD, 0)
    for columns in numbers:
        code += word(EQUAL, columns[machine], 0, 1) + word(RETURN, REFUSE | error)
    if what == "namespaces":
        # The flags of clone matter; those of clone3 cannot be seen.
        code += word(EQUAL, CLONE3, 0, 1) + word(RETURN, REFUSE | ENOSYS)
        code += word(EQUAL, CLONE[machine], 0, 4) + word(LOAD, 16) + word(AND, NEW_NAMESPACES)
        code += word(EQUAL, 0, 1, 0) + word(RETURN, REFUSE | EPERM)
    code += word(RETURN, ALLOW)
    body = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(body))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero) or libc.prctl(22, ctypes.c_ulong(2), header, zero, zero):
        raise OSError(ctypes.get_errno(), "the refusal could not be installed")


if __name__ == "__main__":
    refuse(WHAT)  # type: ignore[name-defined] # noqa: F821 (written in by whoever makes the script)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
