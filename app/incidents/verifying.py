"""Checks that what is kept is what was received: every blob against its digest, every file against its blob.

Evidence is bytes named by their SHA-256, so that a disk or a restored back-up can be held against itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, text

from app.incidents.intake import unpack
from app.incidents.models import Blob
from app.incidents.store import Store

_BATCH: Final = 50
_REPORTED: Final = 50


@dataclass(frozen=True, slots=True)
class Kept:
    """What was checked, and what is wrong with it, at most fifty lines."""

    blobs: int
    size: int
    files: int
    runs: int
    faults: tuple[str, ...]


async def verify_kept(store: Store) -> Kept:
    """Read everything that is kept, a few blobs at a time."""
    blobs, size, faults = 0, 0, []
    after = ""
    while True:
        async with store.read() as session:
            query = select(Blob.sha256, Blob.size, Blob.codec, Blob.data).where(Blob.sha256 > after)
            rows = (await session.execute(query.order_by(Blob.sha256).limit(_BATCH))).all()
        if not rows:
            break
        for sha256, told, codec, data in rows:
            blobs += 1
            size += told
            if fault := await asyncio.to_thread(_fault, sha256, told, codec, data):
                faults.append(fault)
        after = rows[-1][0]
    async with store.read() as session:
        files, strays = (await session.execute(_FILES)).one()
        runs, halves = (await session.execute(_RUNS)).one()
    if strays:
        faults.append(f"{strays} files of evidence say another size than their bytes have")
    if halves:
        faults.append(f"{halves} runs are done and have no verdict, or a verdict and are not done")
    return Kept(blobs, size, files, runs, tuple(faults[:_REPORTED]))


def _fault(sha256: str, size: int, codec: str, data: bytes) -> str | None:
    try:
        plain = unpack(codec, data)
    except zlib.error as error:
        return f"blob {sha256}: its bytes cannot be unpacked ({error})"
    found = hashlib.sha256(plain).hexdigest()
    if found != sha256:
        return f"blob {sha256}: its bytes have the digest {found}"
    return None if len(plain) == size else f"blob {sha256}: it has {len(plain)} bytes, and says {size}"


_FILES: Final = text(
    "SELECT count(*), count(*) FILTER (WHERE e.size <> b.size) FROM evidence e JOIN blobs b ON b.sha256 = e.sha256"
)
_RUNS: Final = text("SELECT count(*), count(*) FILTER (WHERE (state = 'done') <> (verdict IS NOT NULL)) FROM runs")
