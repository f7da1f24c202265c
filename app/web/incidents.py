"""The pages of incidents: the list, one incident with its evidence and runs, its files, its bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Path, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import listing, live, service
from app.incidents.audit import Action
from app.incidents.inputs import STATUSES
from app.incidents.service import Evidence, Incident, InputRefused, Preview, Previews, ReadSession
from app.web.access import Permission
from app.web.auditing import record_view
from app.web.downloads import download
from app.web.filters import ORDERS, ReadWanted
from app.web.forms import Form
from app.web.loading import (
    VIEW,
    Number,
    ReadIncident,
    ViewIncident,
    builds_of,
    limit_exports,
    pages_of,
    scopes_of,
    settings_of,
    store_of,
)
from app.web.problems import Refused, not_found
from app.web.recorded import recorded_brief
from app.web.reproduce import bundle_name
from app.web.sights import front, viewers_sight
from app.web.views import choices, links_of
from app.web.views_captured import CapturedView
from app.web.views_case import CASE_STATUSES, LINK_WORDS, SEVERITIES, Trouble, case_view
from app.web.views_incident import EvidenceLine, RunLine, about, attempt_pairs, version_of
from app.web.views_listed import listed, listed_scopes
from app.web.views_live import live_view
from app.web.views_plan import plan_view, waits
from app.web.views_whatif import what_if_builds

router = APIRouter(include_in_schema=False)

DEMO: Final = "the demo"  # who opened the story's incident
WHAT_IF: Final = "what-if"  # the form by which models are asked anew
PATIENCE_S: Final = 0.5  # how long a page waits for its plan; a larger one is fetched by the page itself


@router.get("/", dependencies=[VIEW])
async def incidents(request: Request, wanted: ReadWanted, after: str | None = None) -> Response:
    """The list, newest first unless told otherwise; its first page is the console's front page."""
    scopes, readable = listed_scopes(request, wanted), scopes_of(request, Permission.READ)
    async with store_of(request).read() as session:
        page = await service.list_incidents(session, after=after or None, wanted=wanted, scopes=scopes)
        latest = await service.latest_runs(session, page.items)
        count, _ = await listing.count_incidents(session, wanted, scopes)
        _, total = await listing.count_incidents(session, wanted, scopes_of(request, Permission.VIEW))
        owners, tags = await listing.owners_and_tags(session, readable)
    lines, runs = listed(request, page.items, latest)
    # The story of `hindcast demo` says what to click, as long as it is what one sees here.
    story = next((item for item in page.items if item.created_by == DEMO), None)
    shown = story if settings_of(request).pipelines else None
    return pages_of(request).page(
        "incidents.html",
        request,
        page=page,
        items=lines,
        runs=runs,
        paged=bool(after),
        story=None if wanted.any else shown,
        wanted=wanted,
        count=count,
        total=total,
        owners=owners,
        tags=tags,
        case_statuses=CASE_STATUSES,
        severities=SEVERITIES,
        orders=ORDERS,
    )


@router.get("/incidents", dependencies=[VIEW])
async def incidents_alias() -> Response:
    return RedirectResponse("/", 307)


@router.get("/incidents/{incident_id}")
async def incident(request: Request, incident: ViewIncident) -> Response:
    """One incident: the plan of a replay, runs, evidence."""
    if (sight := viewers_sight(request, incident)) is not None:
        return await front(request, sight)
    return await incident_page(request, incident)


@dataclass(frozen=True, slots=True)
class Typed:
    """What a person filled in, so that a refused form comes back as it was sent."""

    builds: Sequence[str] = ()
    tool_answers: str = ""
    intent: str = ""
    status: str = ""
    result: str = ""
    form: str = ""
    what_if: bool = False

    @classmethod
    def of(cls, form: Form) -> Typed:
        return cls(
            form.values.get("build", ()),
            form.value("tool_answers") or "",
            form.value("intent") or "",
            form.value("status") or "",
            form.value("result") or "",
            form.value("form") or "",
            form.value("what_if") == "yes",
        )


NOTHING_TYPED: Final = Typed()


async def incident_page(
    request: Request,
    incident: Incident,
    *,
    code: int = 200,
    typed: Typed = NOTHING_TYPED,
    refused: InputRefused | None = None,
    trouble: Trouble | None = None,
) -> Response:
    """The incident's page; `refused` and `trouble` (of the case) stand beside the input that they are about."""
    async with store_of(request).read() as session:
        evidence = await service.evidence_of(session, incident)
        runs = await service.runs_of(session, incident)
        case = await case_view(session, incident, trouble, scopes_of(request, Permission.READ))
        follows = {} if incident.pipeline is None else await _live(session, incident, evidence)
    gathering = follows.get("gathering")
    links = links_of(incident, evidence)
    # An event log is planned by what re-runs it: nothing of it is a snapshot, a trace or an envelope.
    recorded = await recorded_brief(request, incident)
    ids = [file.id for file in evidence]
    preview = None if recorded else await preview_of(request, incident, ids, patience_s=PATIENCE_S)
    plan = None if preview is None else plan_view(preview, links)
    replaying = any(not run.run_state.finished for run in runs)
    settings = settings_of(request)
    hooks = () if plan is None else plan.hooks
    builds = builds_of(request)
    offered = choices(
        builds, incident, settings.pipelines, typed=typed.builds if typed.form != WHAT_IF else (),
        last=runs[0].build if runs else "", hooks=hooks,
    )  # fmt: skip
    tried = typed.builds[0] if typed.form == WHAT_IF and typed.builds else ""
    return pages_of(request).page(
        "incident.html",
        request,
        code,
        incident=incident,
        evidence=[EvidenceLine.of(file) for file in evidence],
        runs=[RunLine.of(run) for run in runs],
        comparable=sum(run.verdict_known for run in map(RunLine.of, runs)) > 1,
        choices=offered,
        what_if=() if recorded is None else what_if_builds(builds, offered, recorded.tools, tried),
        networked=settings.sandbox.allow_network,
        preview=preview,
        recorded=recorded,
        plan=plan,
        waits=() if preview is None else waits(preview.waiting),
        statuses=STATUSES,
        typed=typed,
        refused=refused,
        case=case,
        case_statuses=CASE_STATUSES,
        severities=SEVERITIES,
        link_words=LINK_WORDS,
        **{"gathering": None, "around": (), **follows},
        moving=replaying or (gathering is not None and gathering.under_way),
        about=about(incident),
        attempt=attempt_pairs(incident),
        live=replaying or gathering is not None,
        seen=version_of(runs, None if gathering is None else gathering.status),
    )


async def _live(session: ReadSession, incident: Incident, evidence: Sequence[Evidence]) -> dict[str, Any]:
    """What the page of a live pipeline's incident follows: its evidence as it arrives, and what else is on the key."""
    assert incident.pipeline is not None
    assert incident.entity_key is not None, "an incident of a pipeline is of a key"
    of_key = live.ActivationFilter(pipeline=incident.pipeline, entity_key=incident.entity_key)
    return {
        "gathering": live_view(incident, await live.live_status(session, incident), evidence),
        "around": (await live.list_activations(session, of_key, limit=8)).items,
    }


async def preview_of(
    request: Request, incident: Incident, evidence_ids: Sequence[int] | None = None, *, patience_s: float | None
) -> Preview | None:
    """The plan of a replay of what the incident holds now; None while a large one is still being read."""
    if evidence_ids is None:
        async with store_of(request).read() as session:
            evidence_ids = [file.id for file in await service.evidence_of(session, incident)]
    previews = cast(Previews, request.app.state.previews)
    return await previews.of(incident, evidence_ids, patience_s=patience_s)


@router.get("/incidents/{incident_id}/captured/{cache_key}")
async def captured(
    request: Request, incident: ReadIncident, cache_key: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
) -> Response:
    """A model response as the snapshots hold it: the evidence behind a word in a ledger."""
    async with store_of(request).read() as session:
        found = await service.captured_responses(session, incident, cache_key)
    await record_view(request, Action.EVIDENCE_READ, incident, response=cache_key)
    return pages_of(request).page(
        "captured.html", request, incident=incident, cache_key=cache_key, copies=[CapturedView.of(one) for one in found]
    )


@router.get("/incidents/{incident_id}/captured/{cache_key}/response")
async def captured_file(
    request: Request, incident: ReadIncident, cache_key: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
) -> Response:
    """A captured response whole, byte for byte, as a file."""
    async with store_of(request).read() as session:
        found = await service.captured_responses(session, incident, cache_key)
    data = next((one.response for one in found if one.response is not None), None)
    if data is None:
        raise Refused(not_found("Only the digest of this response was kept."))
    await record_view(request, Action.EVIDENCE_READ, incident, response=cache_key, bytes=len(data))
    return download(data, f"response-{cache_key[:16]}", "application/octet-stream")


@router.get("/incidents/{incident_id}/evidence/{evidence_id}")
async def evidence_file(request: Request, incident: ReadIncident, evidence_id: Number) -> Response:
    """One file, byte for byte as it was received."""
    async with store_of(request).read() as session:
        evidence = await service.get_evidence(session, incident, evidence_id)
        data = await service.evidence_bytes(session, evidence)
    await record_view(request, Action.EVIDENCE_READ, incident, evidence=evidence.id, sha256=evidence.sha256)
    return download(data, evidence.name, "application/octet-stream")


@router.get("/incidents/{incident_id}/bundle.zip")
async def bundle(request: Request, incident: ReadIncident) -> Response:
    """All evidence as one file, which imports again here and replays in a terminal."""
    return await bundle_response(request, incident)


async def bundle_response(request: Request, incident: Incident) -> Response:
    limit_exports(request)
    async with store_of(request).read() as session:
        data = await service.export_bundle(session, incident)
    await record_view(request, Action.INCIDENT_EXPORTED, incident, size=len(data))
    return download(data, bundle_name(incident), "application/zip")
