"""What `hindcast doctor` looks at, one function a subject; each yields findings and raises nothing."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from app import __version__
from app.commands.common import CommandError, read_settings

if TYPE_CHECKING:
    from app.settings import Settings

_MARKS: Final = {"well": "ok", "warning": "!!", "wrong": "NO"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `remedy` is empty where there is nothing to do."""

    word: Literal["well", "warning", "wrong"]
    subject: str
    found: str
    remedy: str = ""

    def text(self) -> str:
        line = f"{_MARKS[self.word]}  {self.subject}: {self.found}"
        return f"{line}\n      → {self.remedy}" if self.remedy else line

    def as_json(self) -> dict[str, str]:
        return {"status": self.word, "subject": self.subject, "found": self.found, "remedy": self.remedy}


def diagnose(config: Path | None, *, brokers: bool) -> Iterator[Finding]:
    """Look at this machine, the configuration, the database, the builds, the pool and the brokers."""
    yield from _machine()
    yield from _confinement()
    try:
        settings = read_settings(config)
    except CommandError as error:
        for line in str(error).splitlines():
            yield Finding("wrong", "configuration", line, "docs/configuration.md has every setting")
        return
    yield from _configuration(settings)
    yield from _builds(settings)
    yield from _database(settings)
    if brokers:
        yield from _brokers(settings)


def _machine() -> Iterator[Finding]:
    here = f"Hindcast {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if sys.platform != "linux":
        yield Finding("wrong", "machine", here, "workers need Linux: agent code is confined by its kernel")
    else:
        yield Finding("well", "machine", here)
    from app import resource

    assets = resource("static") / "vendor" / "VERSIONS.txt"
    if not assets.is_file():
        yield Finding("wrong", "browser assets", "static/vendor is empty", "run `make setup`, or install the wheel")


def _confinement() -> Iterator[Finding]:
    """Start a sandbox as a worker does, and see what the kernel grants."""
    from app.replay.rerun_pb2 import RerunRequest
    from app.sandbox.model import SandboxError
    from app.sandbox.runner import Sandbox

    try:
        with Sandbox() as sandbox:
            finished = sandbox.run(RerunRequest())
    except (SandboxError, OSError) as error:
        yield Finding("wrong", "confinement", str(error), "docs/sandbox.md says what a worker's machine must grant")
        return
    held = finished.confinement
    if held is None or held.tier == "none":
        remedy = "use a kernel with Landlock and seccomp (5.13 or newer); docs/sandbox.md"
        yield Finding("wrong", "confinement", finished.detail or "agent code cannot be confined here", remedy)
        return
    yield Finding("well", "confinement", f"tier {held.tier}: {', '.join(held.measures)}")
    if held.missing:
        remedy = "more than the baseline needs user namespaces; without them replays are confined all the same"
        yield Finding("warning", "confinement", f"not to be had: {', '.join(held.missing)}", remedy)


def _configuration(settings: Settings) -> Iterator[Finding]:
    source = settings.source
    if source is None:
        remedy = "name one: --config, HINDCAST_CONFIG, or hindcast.toml here"
        yield Finding("warning", "configuration", "no file: everything is as by default", remedy)
    else:
        yield Finding("well", "configuration", str(source))
        if source.stat().st_mode & 0o022:
            remedy = f"chmod go-w {source}: whoever writes it decides which code runs"
            yield Finding("warning", "configuration", "others may write it", remedy)
    yield _access(settings)
    if settings.access.mode in (None, "token") and not os.environ.get("HINDCAST_TOKEN"):
        remedy = "set HINDCAST_TOKEN for the console; else each start makes a new one and ends all sessions"
        yield Finding("warning", "start-up token", "not set", remedy)
    if settings.sandbox.unconfined:
        remedy = "remove sandbox.unconfined: replayed code can read and reach anything"
        yield Finding("warning", "sandbox", "may run unconfined", remedy)
    if settings.sandbox.allow_network:
        yield Finding("warning", "sandbox", "lets replayed code use the network", "remove sandbox.allow_network")


def _access(settings: Settings) -> Finding:
    """Whether a console would start as configured, and how people come in."""
    from app.settings import SettingsError
    from app.settings.access import is_loopback

    try:
        settings.check_access()
    except SettingsError as error:
        found, _, remedy = str(error).partition("; ")
        return Finding("wrong", "access", found, remedy or "docs/access.md shows each way in")
    access = settings.access
    if access.mode == "oidc" and access.oidc is not None:
        return Finding("well", "access", f"people log in at {access.oidc.issuer}")
    if access.mode == "proxy":
        return Finding("well", "access", f"{', '.join(settings.console.proxies)} say who somebody is")
    if not is_loopback(settings.console.host):
        remedy = 'for several people: access.mode = "oidc" or "proxy"; docs/access.md'
        return Finding("warning", "access", "one start-up token for everybody who reaches this machine", remedy)
    return Finding("well", "access", "the start-up token, from this machine alone")


def _builds(settings: Settings) -> Iterator[Finding]:
    if not settings.builds:
        yield Finding("warning", "builds", "none is configured", "add [[builds]]: nothing can be replayed without")
    for build in settings.builds:
        subject = f"build {build.name}"
        try:
            digest = build.files_digest()
        except OSError as error:
            yield Finding("wrong", subject, f"cannot be read: {error}", "let the worker's user read its folders")
            continue
        if build.digest is not None and build.digest != digest:
            remedy = "bring the files back, or correct the digest; until then it is not replayed"
            yield Finding("wrong", subject, f"its files have the digest {digest}, not the configured one", remedy)
        elif build.digest is None:
            yield Finding("warning", subject, "not pinned to its files", f'add digest = "{digest}"')
        else:
            yield Finding("well", subject, "its files are the configured ones")


def _database(settings: Settings) -> Iterator[Finding]:
    from app.incidents.schema import SchemaError, check, shown
    from app.settings import SettingsError

    try:
        told = check(settings.database_url)
    except (SettingsError, SchemaError) as error:
        yield Finding("wrong", "database", str(error), "docs/operations.md, Database")
        return
    yield Finding("well", "database", f"{shown(settings.database_url)} answers")
    if told.at != told.wanted:
        remedy = "once no older version runs any more: hindcast migrate"
        yield Finding("warning", "migrations", f"at {told.at}; {told.wanted} is still to come", remedy)
    else:
        yield Finding("well", "migrations", f"at {told.at}")
    yield from asyncio.run(_installation(settings))


async def _installation(settings: Settings) -> list[Finding]:
    from sqlalchemy import text

    from app.incidents import pool
    from app.incidents.live import collector_statuses
    from app.incidents.store import Store

    store = Store(settings.database_url)
    try:
        async with store.read() as session:
            server, powerful, owns = (await session.execute(text(_ROLE))).one()
            status = await pool.pool_status(session, [build.name for build in settings.builds])
            collectors = {each.pipeline: each for each in await collector_statuses(session)}
    finally:
        await store.close()
    found = [Finding("well", "server", f"PostgreSQL {server}")]
    if powerful or owns:
        what = "is a superuser" if powerful else "owns the tables"
        remedy = "let it be a role of its own, and migrate as the owner: HINDCAST_DATABASE_OWNER_URL"
        found.append(Finding("warning", "database role", f"the application's role {what}", remedy))
    else:
        found.append(Finding("well", "database role", "can neither change evidence nor make itself able to"))
    return [*found, *_workers(status), *_collectors(settings, collectors)]


_ROLE: Final = (
    "SELECT current_setting('server_version'), (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),"
    " EXISTS (SELECT 1 FROM pg_tables WHERE tablename = 'blobs' AND tableowner = current_user)"
)


def _workers(status: Any) -> Iterator[Finding]:
    alive = status.alive
    if not alive:
        yield Finding("warning", "workers", "none is running", "start one: hindcast worker")
    else:
        yield Finding("well", "workers", f"{len(alive)} running, {status.waiting} runs wait")
    for build in status.unserved:
        remedy = f"hindcast worker --builds {build}, on a machine whose configuration names it"
        yield Finding("warning", f"build {build}", "runs wait for it, and no worker serves it", remedy)
    for other in sorted({worker.version for worker in alive} - {__version__}):
        yield Finding("warning", "workers", f"some are of version {other}", f"deploy {__version__} to them as well")


def _collectors(settings: Settings, told: dict[str, Any]) -> Iterator[Finding]:
    for pipeline in settings.pipelines:
        subject, one = f"pipeline {pipeline.name}", told.get(pipeline.name)
        if one is None or not one.alive:
            yield Finding("warning", subject, "nobody follows it", "start `hindcast collect`")
        elif one.trouble:
            yield Finding("wrong", subject, f"its collector has trouble: {one.trouble}", "hindcast check says more")
        else:
            yield Finding("well", subject, f"followed; {sum(one.lags.values())} records still to be read")


def _brokers(settings: Settings) -> Iterator[Finding]:
    from app.kafka.check import check

    words: Final[dict[str, Literal["well", "warning", "wrong"]]] = {
        "ok": "well", "warning": "warning", "problem": "wrong",
    }  # fmt: skip
    for pipeline in settings.pipelines:
        for finding in check(pipeline).findings:
            yield Finding(
                words[str(finding.level)], f"pipeline {pipeline.name}, {finding.subject}", finding.found, finding.mend
            )
