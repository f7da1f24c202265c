"""Loads what a URL names, or answers 404; the same step checks the permission, so that neither is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Path, Request

from app.incidents import service
from app.incidents.service import Incident, Run, Store
from app.web.access import Permission, Principal, Requires
from app.web.config import WebSettings
from app.web.pages import Pages

MAX_NUMBER = 2**31 - 1

Number = Annotated[int, Path(ge=0, le=MAX_NUMBER)]


def store_of(request: Request) -> Store:
    return cast(Store, request.app.state.store)


def pages_of(request: Request) -> Pages:
    return cast(Pages, request.app.state.pages)


def settings_of(request: Request) -> WebSettings:
    return cast(WebSettings, request.app.state.settings)


def principal_of(request: Request) -> Principal:
    """Who is asking; only behind a dependency that let them through."""
    return cast(Principal, request.scope["hindcast.principal"])


def pipelines_of(request: Request) -> list[str]:
    """Name the pipelines of the configuration."""
    return [each.name for each in settings_of(request).pipelines]


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
        self._requires = Requires(permission)

    async def __call__(self, request: Request, incident_id: str) -> Incident:
        """Authorise, then load. Raises `Refused` and `NotFound`."""
        await self._requires(request)
        async with store_of(request).read() as session:
            return await service.get_incident(session, incident_id)


class LoadRun:
    """The dependency of every route below `/incidents/{incident_id}/runs/{number}`."""

    def __init__(self, permission: Permission) -> None:
        self.permission = permission
        self._requires = Requires(permission)

    async def __call__(self, request: Request, incident_id: str, number: Number) -> CurrentRun:
        """Authorise, then load both. Raises `Refused` and `NotFound`."""
        await self._requires(request)
        async with store_of(request).read() as session:
            incident = await service.get_incident(session, incident_id)
            return CurrentRun(incident, await service.get_run_by_number(session, incident, number))


ReadIncident = Annotated[Incident, Depends(LoadIncident(Permission.READ))]
ReplayIncident = Annotated[Incident, Depends(LoadIncident(Permission.REPLAY))]
OpenIncident = Annotated[Incident, Depends(LoadIncident(Permission.OPEN))]
ExportIncident = Annotated[Incident, Depends(LoadIncident(Permission.EXPORT))]
AnnotateIncident = Annotated[Incident, Depends(LoadIncident(Permission.ANNOTATE))]
ReadRun = Annotated[CurrentRun, Depends(LoadRun(Permission.READ))]
ReplayRun = Annotated[CurrentRun, Depends(LoadRun(Permission.REPLAY))]
READ = Depends(Requires(Permission.READ))
IMPORT = Depends(Requires(Permission.IMPORT))
OPEN = Depends(Requires(Permission.OPEN))
EXPORT = Depends(Requires(Permission.EXPORT))
