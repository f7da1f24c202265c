"""Loads what a URL names, and authorises in the same step, so that neither is forgotten.

Something of a pipeline in which the person has no role is not found, just as something that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Path, Request

from app.incidents import live, service
from app.incidents.errors import Purged
from app.incidents.live import Activation, ExportView
from app.incidents.roles import Scopes
from app.incidents.service import Incident, NotFound, Run, Store
from app.web.access import Permission, Principal, Requires, admitted, forbidden_to, note_refusal
from app.web.config import Build, WebSettings
from app.web.limits import RateLimits
from app.web.pages import Pages
from app.web.problems import Refused

MAX_NUMBER = 2**31 - 1

Number = Annotated[int, Path(ge=0, le=MAX_NUMBER)]


def store_of(request: Request) -> Store:
    return cast(Store, request.app.state.store)


def pages_of(request: Request) -> Pages:
    return cast(Pages, request.app.state.pages)


def settings_of(request: Request) -> WebSettings:
    return cast(WebSettings, request.app.state.settings)


def base_of(request: Request) -> str:
    """The address under which browsers reach the console, for links that leave it."""
    return settings_of(request).public_url or str(request.base_url).rstrip("/")


def principal_of(request: Request) -> Principal:
    """Who is asking; only behind a dependency that let them through."""
    return cast(Principal, request.scope["hindcast.principal"])


def scopes_of(request: Request, permission: Permission) -> Scopes:
    """Where the person may do this: what a list is cut down to."""
    return principal_of(request).scopes(permission)


def pipelines_of(request: Request, permission: Permission = Permission.READ) -> list[str]:
    """Name the pipelines of the configuration in which the person may do this."""
    scopes = scopes_of(request, permission)
    return [each.name for each in settings_of(request).pipelines if scopes.holds(each.name)]


def builds_of(request: Request) -> list[Build]:
    """The builds that the person may see and replay with: those of their pipelines, and those of none.

    What an agent does tells its instructions: to run the build of another pipeline would be to read them.
    """
    settings = settings_of(request)
    scopes = scopes_of(request, Permission.READ)
    owners = {name: [each.name for each in settings.pipelines if name in each.builds] for name in _names(settings)}
    return [one for one in settings.builds if not owners[one.name] or any(map(scopes.holds, owners[one.name]))]


def limit_exports(request: Request) -> None:
    """Count something that takes much away at once. Raises `Refused` with 429 for who does so too often."""
    limits: RateLimits = request.app.state.rates
    limits.exports.check(principal_of(request).name)
    limits.exports.note(principal_of(request).name)


def _names(settings: WebSettings) -> list[str]:
    return [build.name for build in settings.builds]


async def authorise(request: Request, permission: Permission, pipeline: str | None, kind: str, ident: object) -> None:
    """Raise `NotFound` for who has no role in the pipeline, `Refused` for one whose role is too low; both recorded."""
    principal = principal_of(request)
    if principal.may(permission, pipeline):
        return
    foreign = principal.role(pipeline) is None
    await note_refusal(request, principal, permission, str(ident), foreign=foreign)
    if foreign:
        raise NotFound(kind, ident)
    raise Refused(forbidden_to(permission))


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """A run (its verdict loaded) and the incident it belongs to."""

    incident: Incident
    run: Run

    @property
    def base(self) -> str:
        return f"/incidents/{self.incident.id}/runs/{self.run.number}"


class LoadIncident:
    """The dependency of every route below `/incidents/{incident_id}`."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request, incident_id: str) -> Incident:
        """Load, then authorise. Raises `Refused` and `NotFound`; `Purged` to who could have seen what is gone."""
        principal = await admitted(request)
        with _hidden(principal, incident_id):
            async with store_of(request).read() as session:
                incident = await service.get_incident(session, incident_id)
        await authorise(request, self.permission, incident.pipeline, "incident", incident_id)
        return incident


class LoadRun:
    """The dependency of every route below `/incidents/{incident_id}/runs/{number}`."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request, incident_id: str, number: Number) -> CurrentRun:
        """Load both at once, then authorise before anything is said of the run. Raises as `LoadIncident`."""
        principal = await admitted(request)
        with _hidden(principal, incident_id):
            async with store_of(request).read() as session:
                incident, run = await service.get_incident_and_run(session, incident_id, number)
        await authorise(request, self.permission, incident.pipeline, "incident", incident_id)
        if run is None:
            raise NotFound("run", number)
        return CurrentRun(incident, run)


@contextmanager
def _hidden(principal: Principal, incident_id: str) -> Iterator[None]:
    """Tell nobody that an incident was removed who could not have seen it."""
    try:
        yield
    except Purged as gone:
        if principal.may(Permission.VIEW, gone.pipeline):
            raise
        raise NotFound("incident", incident_id) from None


class LoadReplay:
    """The dependency of every route that names a run by its own id."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request, replay_id: str) -> CurrentRun:
        await admitted(request)
        async with store_of(request).read() as session:
            run = await service.get_run(session, replay_id)
            incident = await service.get_incident(session, run.incident_id)
        await authorise(request, self.permission, incident.pipeline, "run", replay_id)
        return CurrentRun(incident, run)


class LoadExport:
    """The dependency of every route that names an export by its own id."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request, export_id: str) -> ExportView:
        await admitted(request)
        async with store_of(request).read() as session:
            view = await live.get_export(session, export_id)
        await authorise(request, self.permission, view.export.pipeline, "export", export_id)
        return view


class LoadActivation:
    """The dependency of every route that names a collected activation."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request, activation_id: str) -> Activation:
        await admitted(request)
        async with store_of(request).read() as session:
            found = await live.get_activation(session, activation_id)
        await authorise(request, self.permission, found.pipeline, "activation", activation_id)
        return found


class RequiresFiles:
    """The dependency of routes that read files, or make incidents of them: they are of no pipeline."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission

    async def __call__(self, request: Request) -> Principal:
        principal = await admitted(request)
        if not principal.may(self.permission, None):
            await note_refusal(request, principal, self.permission)
            raise Refused(forbidden_to(self.permission))
        return principal


ViewIncident = Annotated[Incident, Depends(LoadIncident(Permission.VIEW))]
ReadIncident = Annotated[Incident, Depends(LoadIncident(Permission.READ))]
ReplayIncident = Annotated[Incident, Depends(LoadIncident(Permission.REPLAY))]
OpenIncident = Annotated[Incident, Depends(LoadIncident(Permission.OPEN))]
ExportIncident = Annotated[Incident, Depends(LoadIncident(Permission.EXPORT))]
AnnotateIncident = Annotated[Incident, Depends(LoadIncident(Permission.ANNOTATE))]
ViewRun = Annotated[CurrentRun, Depends(LoadRun(Permission.VIEW))]
ReadRun = Annotated[CurrentRun, Depends(LoadRun(Permission.READ))]
ReplayRun = Annotated[CurrentRun, Depends(LoadRun(Permission.REPLAY))]
ViewReplay = Annotated[CurrentRun, Depends(LoadReplay(Permission.VIEW))]
ReadReplay = Annotated[CurrentRun, Depends(LoadReplay(Permission.READ))]
ReadExport = Annotated[ExportView, Depends(LoadExport(Permission.READ))]
AskExport = Annotated[ExportView, Depends(LoadExport(Permission.EXPORT))]
OpenActivation = Annotated[Activation, Depends(LoadActivation(Permission.OPEN))]
VIEW = Depends(Requires(Permission.VIEW))
READ = Depends(Requires(Permission.READ))
IMPORT = Depends(RequiresFiles(Permission.IMPORT))
SEE_LOGS = Depends(RequiresFiles(Permission.SEE_LOGS))
LOGS = Depends(RequiresFiles(Permission.LOGS))
OPEN = Depends(Requires(Permission.OPEN))
