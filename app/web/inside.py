"""What is inside a file of evidence: its frames, the fields of a record with their offsets, and the bytes themselves.

A page shows a window of it, whatever the size: large values are told by head, size, digest and download.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import dissect, service
from app.incidents.audit import Action
from app.incidents.dissect import Frame, Piece
from app.incidents.service import Evidence, Incident, Role
from app.web.auditing import record_view
from app.web.downloads import download
from app.web.formats import NOT_RECORDED, number, utc
from app.web.loading import Number, ReadIncident, pages_of, store_of
from app.web.problems import Refused, not_found
from app.web.views_incident import EvidenceLine

router = APIRouter(prefix="/incidents/{incident_id}/evidence/{evidence_id}", include_in_schema=False)

FRAMES: Final = 100
FIELDS: Final = 120
HEX_ROWS: Final = 256
_SUMMED: Final = 5  # fields by which a frame is told in the list
_MOST: Final = 2**31 - 1

Place = Annotated[int, Query(ge=0, le=_MOST)]
Perhaps = Annotated[int | None, Query(ge=0, le=_MOST)]


@dataclass(frozen=True, slots=True)
class FrameLine:
    """A frame in the list: where it is, how large, and its first fields in words."""

    frame: Frame
    words: str


@router.get("/inside")
async def inside(
    request: Request,
    incident: ReadIncident,
    evidence_id: Number,
    view: str = "decoded",
    frame: Perhaps = None,
    start: Place = 0,
    at: Place = 0,
) -> Response:
    """The file taken apart: `view=hex` shows bytes around `at`; else frames or fields from `start` on."""
    evidence, data = await _bytes(request, incident, evidence_id)
    if evidence.role == Role.EVENT_LOG and view != "hex":
        return RedirectResponse(f"/incidents/{incident.id}/recorded", 303)  # which takes lines of JSON apart
    look = await asyncio.to_thread(_hex if view == "hex" else _decoded, evidence, data, frame, start, at)
    detail = {"evidence": evidence.id, "sha256": evidence.sha256, "inside": (view == "hex" and "hex") or "decoded"}
    await record_view(request, Action.EVIDENCE_READ, incident, **detail)
    return pages_of(request).page(
        "inside.html",
        request,
        incident=incident,
        file=EvidenceLine.of(evidence),
        stream=dissect.is_stream(Role(evidence.role)),
        large=evidence.size > dissect.LARGE,
        frame_number=frame,
        start=start,
        **{"hex": None, "frames": None, "pieces": None, "frame": None, "next": None, "previous": None, **look},
    )


@router.get("/range")
async def piece(
    request: Request,
    incident: ReadIncident,
    evidence_id: Number,
    at: Place,
    size: Annotated[int, Query(ge=1, le=_MOST)],
) -> Response:
    """A piece of the file as a file: one value, byte for byte."""
    evidence, data = await _bytes(request, incident, evidence_id)
    found = data[at : at + size]
    if len(found) != size:
        raise Refused(not_found(f"The file has {len(data)} bytes: there are no {size} bytes at {at}."))
    await record_view(request, Action.EVIDENCE_READ, incident, evidence=evidence.id, at=at, bytes=size)
    return download(found, f"{evidence.name}.{at}-{at + size}", "application/octet-stream")


async def _bytes(request: Request, incident: Incident, evidence_id: int) -> tuple[Evidence, bytes]:
    async with store_of(request).read() as session:
        evidence = await service.get_evidence(session, incident, evidence_id)
        return evidence, await service.evidence_bytes(session, evidence)


def _hex(evidence: Evidence, data: bytes, frame: int | None, start: int, at: int) -> Mapping[str, Any]:
    size = HEX_ROWS * dissect.ROW
    first = at // dissect.ROW * dissect.ROW
    if first >= len(data):
        first = max(0, len(data) - 1) // dissect.ROW * dissect.ROW
    return {
        "hex": "\n".join(dissect.hex_rows(data, first, HEX_ROWS)),
        "hex_range": f"{number(first)} to {number(min(len(data), first + size))} of {number(len(data))}",
        "previous": max(0, first - size) if first else None,
        "next": first + size if first + size < len(data) else None,
    }


def _decoded(evidence: Evidence, data: bytes, frame: int | None, start: int, at: int) -> Mapping[str, Any]:
    role = Role(evidence.role)
    if not dissect.is_stream(role):
        return _fields(role, data, None, start)
    if frame is None:
        return _frames(role, data, start)
    found = next(islice(dissect.frames(data), frame, frame + 1), None)
    if found is None:
        raise Refused(not_found(f"The stream has no frame {frame}."))
    return {**_fields(role, data, found, start), "frame": found}


def _frames(role: Role, data: bytes, start: int) -> Mapping[str, Any]:
    found = list(islice(dissect.frames(data), start, start + FRAMES + 1))
    return {
        "frames": [FrameLine(one, _summary(role, data, one)) for one in found[:FRAMES]],
        "previous": max(0, start - FRAMES) if start else None,
        "next": start + FRAMES if len(found) > FRAMES else None,
    }


def _summary(role: Role, data: bytes, frame: Frame) -> str:
    if frame.problem:
        return frame.problem
    record = dissect.record_of(role)
    if record is None:
        return dissect.shown(data[frame.start : frame.start + min(frame.size, 80)], cut=frame.size > 80)[0]
    top = islice((one for one in dissect.fields(data, record, frame.start, frame.size) if not one.depth), 24)
    told = [one for one in top if one.text and one.kind != "bytes" and not one.problem]
    return ", ".join(f"{one.name or one.number} {_brief(one)}" for one in told[:_SUMMED])


def _brief(piece: Piece) -> str:
    text = " ".join(piece.text.split())
    return text if len(text) <= 48 else f"{text[:48]}…"


def _fields(role: Role, data: bytes, frame: Frame | None, start: int) -> Mapping[str, Any]:
    at, size = (0, len(data)) if frame is None else (frame.start, frame.size)
    found: Iterator[Piece] = dissect.fields(data, dissect.record_of(role), at, size)
    if role is Role.ERRORS:
        found = dissect.dead_letter(data, found)
    chosen = list(islice(found, start, start + FIELDS + 1))
    return {
        "pieces": [(one, _time(one)) for one in chosen[:FIELDS]],
        "previous": max(0, start - FIELDS) if start else None,
        "next": start + FIELDS if len(chosen) > FIELDS else None,
    }


def _time(piece: Piece) -> str:
    """The moment that a number of milliseconds names, for fields that are called so."""
    if not piece.name.endswith("_ms") or piece.kind != "number":
        return ""
    told = utc(int(piece.text))
    return "" if told == NOT_RECORDED else told
