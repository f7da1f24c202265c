"""Turns an uploaded form into evidence files, and says of each one that cannot be one why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from app.incidents import service
from app.incidents.intake import check
from app.incidents.service import EvidenceFile, Incident, Role
from app.web.formats import size
from app.web.forms import BUNDLE, Form, Limits, Upload, read_form
from app.web.loading import principal_of, store_of
from app.web.problems import FileTrouble, Problem, Refused, file_trouble

MAX_SEQ: Final = 2**63 - 1
_TEXT_FIELDS: Final = frozenset({"anyway", "csrf", "draft", "keep", "seq", "title"})


@dataclass(frozen=True, slots=True)
class Sorted:
    """A form's files by what they are for; `troubles` are those that are not even read."""

    files: Sequence[Upload]
    bundles: Sequence[Upload]
    troubles: Sequence[FileTrouble]


def sort_uploads(form: Form, limits: Limits) -> Sorted:
    """Tell evidence from bundles, and both from what is too large or of no known role."""
    files: list[Upload] = []
    bundles: list[Upload] = []
    troubles: list[FileTrouble] = []
    for upload in form.uploads:
        if upload.part != BUNDLE and upload.part not in set(Role):
            troubles.append(_unknown_role(upload))
        elif upload.too_large:
            troubles.append(_too_large(upload, limits))
        else:
            (bundles if upload.part == BUNDLE else files).append(upload)
    troubles += [_not_a_file(name) for name, texts in form.values.items() if name not in _TEXT_FIELDS and any(texts)]
    return Sorted(files, bundles, troubles)


async def evidence_file(upload: Upload) -> EvidenceFile:
    return EvidenceFile(Role(upload.part), upload.name or upload.part, await asyncio.to_thread(upload.read))


def seq_of(form: Form) -> int | FileTrouble | None:
    """The seq that the person narrows to; a trouble when it is no number."""
    text = (form.value("seq") or "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit() and int(text[:20]) <= MAX_SEQ:
        return int(text)
    return FileTrouble(
        "seq", "seq", f"{text[:40]!r} is not a seq", "a whole number from 0", "Leave it empty, or correct it."
    )


def title_of(form: Form) -> str | None:
    return (form.value("title") or "").strip()[:200] or None


async def import_form(request: Request) -> Incident:
    """Import the request's form in one transaction. Raises `Refused` and `ImportRefused`; then nothing was stored."""
    form = await read_form(request)
    try:
        sorted_ = sort_uploads(form, request.app.state.limits)
        seq = seq_of(form)
        troubles = [*sorted_.troubles, *([seq] if isinstance(seq, FileTrouble) else [])]
        if sorted_.bundles and (sorted_.files or len(sorted_.bundles) > 1):
            troubles.append(bundle_alone(sorted_.bundles[0]))
        if troubles:
            raise Refused(refusal([*troubles, *await _check(sorted_.files)]))
        if not (sorted_.bundles or sorted_.files):
            raise Refused(refusal([nothing_sent()]))
        assert not isinstance(seq, FileTrouble)
        return await _store(request, form, sorted_, seq)
    finally:
        form.close()


def _bundle_limits(request: Request) -> service.Limits:
    limits: Limits = request.app.state.limits
    return service.Limits(entry=limits.file, total=limits.kept)


async def _check(uploads: Sequence[Upload]) -> list[FileTrouble]:
    """What else is wrong, so that one answer names everything."""
    files = [await evidence_file(upload) for upload in uploads]
    _, problems = await asyncio.to_thread(check, files)
    return [file_trouble(problem) for problem in problems]


async def _store(request: Request, form: Form, sorted_: Sorted, seq: int | None) -> Incident:
    who, title = principal_of(request).name, title_of(form)
    if sorted_.bundles:
        upload = sorted_.bundles[0]
        data = await asyncio.to_thread(upload.read)
        async with store_of(request).write() as session:
            return await service.import_bundle(
                session, data, name=upload.name or BUNDLE, who=who, title=title, limits=_bundle_limits(request)
            )
    files = [await evidence_file(upload) for upload in sorted_.files]
    async with store_of(request).write() as session:
        return await service.import_evidence(session, files, who=who, title=title, seq=seq)


def refusal(troubles: Sequence[FileTrouble]) -> Problem:
    """Everything that is wrong with an import, in one problem; 413 when size is all there is to it."""
    large = all(trouble.what.startswith(_LARGE) for trouble in troubles)
    return Problem(
        413 if large else 422,
        "Evidence refused",
        f"{troubles[0].name}: {troubles[0].what}." if len(troubles) == 1 else f"{len(troubles)} files cannot be used.",
        troubles[0].expected,
        troubles[0].remedy
        if len(troubles) == 1
        else "Mend the files named below and import again; nothing was stored.",
        tuple(troubles),
    )


def nothing_sent() -> FileTrouble:
    return FileTrouble(
        "no file", "", "nothing was sent", "a snapshot, traces and an event, or a bundle", "Choose the files."
    )


def bundle_alone(upload: Upload) -> FileTrouble:
    return FileTrouble(
        upload.name, BUNDLE, "a bundle came together with other files", "one bundle alone, or files by role",
        "A bundle holds all evidence of its incident: import it alone, or leave it out.",
    )  # fmt: skip


_LARGE: Final = "the file is too large"


def _too_large(upload: Upload, limits: Limits) -> FileTrouble:
    return FileTrouble(
        upload.name, upload.part, f"{_LARGE} ({size(upload.size)})",
        f"at most {size(limits.file)} a file, {size(limits.kept)} together",
        "Cut the stream to the records of the key and the hours in question.",
    )  # fmt: skip


def _unknown_role(upload: Upload) -> FileTrouble:
    return FileTrouble(
        upload.name, upload.part, f"{upload.part!r} is no role of a file", f"one of {', '.join(Role)}, or {BUNDLE}",
        "Send the file under the role that it has.",
    )  # fmt: skip


def _not_a_file(name: str) -> FileTrouble:
    return FileTrouble(
        name, name, f"the field {name!r} is text", "a file, under one of the roles",
        "With curl, write -F field=@file, with the @.",
    )  # fmt: skip
