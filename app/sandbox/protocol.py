"""What the host and the pre-loaded process say to each other about runs.

Commands are JSON from the trusted host; answers are JSON from trusted code, sent before any agent code runs or by
the process that never runs any. What a run itself has to say arrives on a pipe of its own, as one protobuf message.
"""

from __future__ import annotations

import json
import os
import struct
from enum import StrEnum
from typing import Any, Final, NamedTuple


class Ending(StrEnum):
    """How a run ended. Only after `FINISHED` does its result say what the agent does."""

    FINISHED = "finished"
    TIME_LIMIT = "time_limit"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    SCRATCH_LIMIT = "scratch_limit"
    RESULT_TOO_LARGE = "result_too_large"
    GARBLED_RESULT = "garbled_result"
    KILLED_BY_SIGNAL = "killed_by_signal"
    EXITED_EARLY = "exited_early"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    SANDBOX_LOST = "sandbox_lost"
    REFUSED_CONFINEMENT = "refused_confinement"


CONTROL_DESCRIPTOR: Final = 3
MAX_MESSAGE: Final = 128 * 1024

RUN: Final = b"run"
DESCRIPTORS_PER_RUN: Final = 4
_LENGTH: Final = struct.Struct("=I")

NONCE_BYTES: Final = 16
# A nonce that only this run was given, how the run ended, and how many bytes of `RerunResult` follow.
FRAME: Final = struct.Struct(f"={NONCE_BYTES}sBQ")
FRAME_ENDINGS: Final = (
    Ending.FINISHED,
    Ending.EXITED_EARLY,
    Ending.MEMORY_LIMIT,
    Ending.RESULT_TOO_LARGE,
    Ending.CRASHED,
)


class Start(NamedTuple):
    """How the pre-loaded process is set up, for as long as it lives."""

    entry: str
    preload: list[str]
    later: list[str]  # the same, once there has been a second order
    libraries: list[str]
    import_path: list[str]
    app_root: str
    rooms: list[str]
    namespaces: bool
    allow_network: bool
    unconfined: bool

    def encode(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str) -> Start:
        return cls(**json.loads(text))


class Order(NamedTuple):
    """One run. The host sends `RUN` and four descriptors: request, result, prints, report.

    The request is a file of two parts, `order_and_request`, because neither has a size that a message could hold.

    `places` are pairs of an agent path as given and where it really is, `readable` pairs of a real path and whether
    all beneath it may be read. `slot` picks the user id, where there is a choice. Without `scratch` it writes nowhere.
    """

    places: list[tuple[str, str]]
    readable: list[tuple[str, bool]]
    scratch: str
    slot: int
    nonce: str
    cpu_s: int
    memory_bytes: int
    processes: int
    scratch_bytes: int
    result_bytes: int

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, data: bytes) -> Order:
        fields = json.loads(data)
        fields["places"] = [(given, real) for given, real in fields["places"]]
        fields["readable"] = [(path, bool(whole)) for path, whole in fields["readable"]]
        return cls(**fields)


def order_and_request(order: Order, request: bytes) -> bytes:
    """What the request's file holds: how long the order is, the order, and a serialised `RerunRequest`."""
    encoded = order.encode()
    return _LENGTH.pack(len(encoded)) + encoded + request


def split_order(data: bytes) -> tuple[Order, bytes]:
    """The reverse of `order_and_request`."""
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    return Order.decode(data[_LENGTH.size : end]), data[end:]


def order_in(descriptor: int) -> Order:
    """The order alone, from the file that holds `order_and_request`; its position is not moved."""
    (length,) = _LENGTH.unpack(os.pread(descriptor, _LENGTH.size, 0))
    return Order.decode(os.pread(descriptor, length, _LENGTH.size))


def report(**fields: Any) -> bytes:
    """One message about a run, to the host."""
    return json.dumps(fields).encode()
