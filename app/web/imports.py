"""The import page. Sound files are held for an hour while one is mended: browsers cannot refill a file field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import drafts
from app.incidents.service import DraftFile, ImportRefused, Incident, NotFound
from app.web.forms import Form, read_form
from app.web.intake import (
    Sorted,
    bundle_alone,
    evidence_file,
    import_form,
    seq_of,
    sort_uploads,
    title_of,
)
from app.web.loading import IMPORT, pages_of, principal_of, store_of
from app.web.problems import FileTrouble, Refused, file_trouble
from app.web.views_import import role_rows, stray

router = APIRouter(include_in_schema=False)


@dataclass(slots=True)
class Attempt:
    """One try at importing: what is held so far, and what stands in the way."""

    draft: str | None = None
    held: Sequence[DraftFile] = ()
    troubles: list[FileTrouble] = field(default_factory=list)
    misfit: str | None = None
    nothing: bool = False
    expired: bool = False


class _Misfit(Exception):
    """Rolls an import back whose files select no attempt, so that the person can decide."""


@router.get("/import", dependencies=[IMPORT])
async def import_page(request: Request, draft: str | None = None) -> Response:
    """The form; `?draft=` shows again what is held."""
    attempt = Attempt(draft)
    if draft:
        await _look(request, attempt)
    return _page(request, Form(), attempt)


@router.post("/import", dependencies=[IMPORT])
async def import_evidence(request: Request) -> Response:
    """Import, or show the form again with each problem in its place."""
    form = await read_form(request)
    try:
        sorted_ = sort_uploads(form, request.app.state.limits)
        if sorted_.bundles and not sorted_.files and not sorted_.troubles and not form.value("draft"):
            result = await _import_bundle(request)
        else:
            result = await _import_files(request, form, sorted_)
    finally:
        form.close()
    if isinstance(result, Incident):
        return RedirectResponse(f"/incidents/{result.id}", 303)
    large = bool(result.troubles) and all(
        trouble.what.startswith("the file is too large") for trouble in result.troubles
    )
    return _page(request, form, result, 413 if large else 422)


async def _import_bundle(request: Request) -> Incident | Attempt:
    try:
        return await import_form(request)
    except ImportRefused as error:
        troubles = [file_trouble(problem) for problem in error.problems]
    except Refused as error:
        troubles = list(error.problem.problems)
    # Whatever entry is at fault, the file that the person chose is the bundle.
    return Attempt(troubles=[FileTrouble(t.name, "bundle", t.what, t.expected, t.remedy) for t in troubles])


async def _import_files(request: Request, form: Form, sorted_: Sorted) -> Incident | Attempt:
    attempt = Attempt(form.value("draft") or None, troubles=list(sorted_.troubles))
    attempt.troubles += map(bundle_alone, sorted_.bundles)
    await _drop_unticked(request, form, attempt)
    await _hold(request, sorted_, attempt)
    seq = seq_of(form)
    if isinstance(seq, FileTrouble):
        attempt.troubles.append(seq)
    if not attempt.held and not attempt.troubles and not attempt.expired:
        attempt.nothing = True
    if attempt.troubles or attempt.expired or isinstance(seq, FileTrouble) or not attempt.held or not attempt.draft:
        return attempt
    try:
        async with store_of(request).write() as session:
            who, title = principal_of(request).name, title_of(form)
            incident = await drafts.import_held(session, attempt.draft, who=who, title=title, seq=seq)
            if incident.problem is not None and form.value("anyway") is None:
                raise _Misfit(incident.problem)
            return incident
    except _Misfit as misfit:
        attempt.misfit = str(misfit)
        return attempt


async def _drop_unticked(request: Request, form: Form, attempt: Attempt) -> None:
    """Forget held files whose box is no longer ticked."""
    if attempt.draft is None:
        return
    ticked = set(form.values.get("keep", ()))
    try:
        async with store_of(request).write() as session:
            held = await drafts.held_files(session, attempt.draft)
            await drafts.drop_held(session, attempt.draft, [file.id for file in held if str(file.id) not in ticked])
    except NotFound:
        attempt.draft, attempt.expired = None, bool(ticked)


async def _hold(request: Request, sorted_: Sorted, attempt: Attempt) -> None:
    """Check the new files one by one and hold the sound ones."""
    files = [await evidence_file(upload) for upload in sorted_.files]
    if not files:
        await _look(request, attempt)
        return
    async with store_of(request).write() as session:
        held = await drafts.check_and_hold(session, files, who=principal_of(request).name, draft_id=attempt.draft)
    attempt.draft, attempt.held = held.draft_id, held.files
    attempt.troubles += map(file_trouble, held.problems)


async def _look(request: Request, attempt: Attempt) -> None:
    if attempt.draft is None:
        return
    try:
        async with store_of(request).read() as session:
            attempt.held = await drafts.held_files(session, attempt.draft)
    except NotFound:
        attempt.draft, attempt.expired = None, True


def _page(request: Request, form: Form, attempt: Attempt, status: int = 200) -> Response:
    rows = role_rows(attempt.held, attempt.troubles)
    return pages_of(request).page(
        "import.html",
        request,
        status,
        draft=attempt.draft,
        roles=rows,
        stray=stray(attempt.troubles),
        seq_problem=next((trouble for trouble in attempt.troubles if trouble.role == "seq"), None),
        troubles=len(attempt.troubles),
        kept=len(attempt.held),
        misfit=attempt.misfit,
        nothing=attempt.nothing,
        expired=attempt.expired,
        extra_open=any(row.extra and (row.held or row.problems) for row in rows),
        title=form.value("title") or "",
        seq=form.value("seq") or "",
        limits=request.app.state.limits,
    )
