"""`hindcast export`: a key's state and all evidence around it as one bundle, from a terminal.

It asks as the console does, through the database: the collector, which alone has the brokers' credentials, does the
rest. The incident stays in the console.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options

if TYPE_CHECKING:
    from app.incidents.live import LiveStatus
    from app.incidents.service import Incident, Store
    from app.settings import Settings

_GRACE_S = 5.0


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser, level="warning")
    parser.add_argument("--pipeline", required=True, metavar="P", help="name of the pipeline, as in hindcast.toml")
    key = parser.add_mutually_exclusive_group(required=True)
    key.add_argument("--key", metavar="K", help="the entity key, as text")
    key.add_argument("--key-hex", metavar="HEX", help="the entity key, in hex")
    key.add_argument("--key-base64", metavar="B64", help="the entity key, in base64")
    parser.add_argument("--seq", type=int, metavar="N", help="the activation's seq (default: the key's latest)")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where the bundle goes")
    parser.add_argument("--reason", default="exported from the command line", help="why; it is recorded")
    parser.add_argument("--who", metavar="NAME", help="who asks; recorded (default: the user of this machine)")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds to wait (default: 120)")


def run(args: argparse.Namespace) -> int:
    """Export; exit code 0 with a bundle that can be replayed, 3 with one that lacks something, 2 when misused."""
    import asyncio

    from app.commands.common import ready_settings, start_logging
    from app.incidents.service import IncidentError

    try:
        start_logging(args)
        settings = ready_settings(args.config)
        status = asyncio.run(_export(settings, args))
    except (CommandError, IncidentError, OSError) as error:
        print(f"hindcast export: {error}", file=sys.stderr)
        return 2
    for line in status.missing:
        print(f"missing: {line.what}: {line.why}. {line.remedy}")
    if status.warning:
        print(f"note: {status.warning}")
    return 0 if status.ready else 3


async def _export(settings: Settings, args: argparse.Namespace) -> LiveStatus:
    from app.incidents import live, service
    from app.incidents.service import Store

    known = [pipeline.name for pipeline in settings.pipelines]
    key = live.parse_key(key=args.key, hex=args.key_hex, base64=args.key_base64)
    who = args.who or _user()
    _check_target(args.out)
    store = Store(settings.database_url, pool_size=2)
    try:
        async with store.write() as session:
            incident = await live.open_incident(
                session, who=who, known=known, pipeline=args.pipeline, entity_key=key, seq=args.seq
            )
            await live.request_export(
                session,
                incident,
                who=who,
                reason=args.reason,
                known=known,
                timeout_s=settings.collector.export_timeout_s,
            )
        status = await _wait(store, incident, args.timeout)
        async with store.read() as session:
            incident = await service.get_incident(session, incident.id)
            data = await service.export_bundle(session, incident)
        args.out.write_bytes(data)
        print(f"{args.out}: {len(data)} bytes, incident {incident.id}")
        return status
    finally:
        await store.close()


async def _wait(store: Store, incident: Incident, timeout_s: float) -> LiveStatus:
    """Wait until nothing more is under way, or the time is over."""
    from app.incidents import live, service
    from app.incidents.changes import Changes

    async with Changes(store.url) as changes, changes.subscribe(incident.id) as subscription:
        import asyncio

        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + timeout_s
        while True:
            async with store.read() as session:
                now = await service.get_incident(session, incident.id)
                status = await live.live_status(session, now)
            if not any(one.export.state == "requested" for one in status.exports) and all(
                one.gathering.gathering_state.finished for one in status.gatherings
            ):
                return status
            # One that has just been started leaves its first sign of life once it holds the pipeline.
            followed = status.collector is not None and status.collector.alive
            if not followed and loop.time() > begun + _GRACE_S:
                raise CommandError(
                    f"no collector follows the pipeline {incident.pipeline!r}; start `hindcast collect` where the"
                    f" broker can be reached. What was asked for stays asked for in incident {incident.id}"
                )
            if loop.time() > deadline:
                return status
            await subscription.wait(1.0)


def _check_target(out: Path) -> None:
    if not out.parent.is_dir():
        raise CommandError(f"--out names {out}, and {out.parent} is not a folder")


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "command line"
