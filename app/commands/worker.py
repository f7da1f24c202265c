"""`hindcast worker`: a process that runs the replays the console asks for, each in the sandbox."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options, add_watch_option

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.jobs.replayer import SandboxedReplayer
    from app.jobs.retention import Retention
    from app.settings import Settings


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser)
    add_watch_option(parser)
    parser.add_argument("--jobs", type=int, metavar="N", help="replays at the same time (default: worker.jobs)")
    parser.add_argument("--builds", metavar="A,B", help="replay only these builds (default: all that are configured)")


def run(args: argparse.Namespace) -> int:
    """Work until SIGTERM or Ctrl-C, then finish the replays that were begun."""
    import asyncio

    from app.commands.common import ready_settings, start_logging, start_watching
    from app.jobs.decoding import HookRunner
    from app.jobs.worker import Worker
    from app.operations import tracing
    from app.operations.listener import WatchProblem

    try:
        start_logging(args)
        watch = start_watching(args, "worker")
        settings = ready_settings(args.config)
        only = _builds(args.builds, settings)
        jobs = settings.worker.jobs if args.jobs is None else args.jobs
        if jobs < 1:
            raise CommandError(f"--jobs must be at least 1, not {jobs}")
    except CommandError as error:
        print(f"hindcast worker: {error}", file=sys.stderr)
        return 2
    replayer = _replayer(settings)
    replayer.warm()
    hooks = HookRunner(settings.builds, replayer.confinement)
    worker = Worker(
        settings.database_url,
        replayer,
        jobs=jobs,
        lease_s=settings.worker.lease_s,
        limit_s=settings.worker.limit_s,
        drain_s=settings.worker.drain_s,
        only=only,
        hooks=hooks,
        watch=watch,
        retention=_retention(settings),
    )
    try:
        asyncio.run(worker.run())
    except WatchProblem as error:
        print(f"hindcast worker: {error}", file=sys.stderr)
        return 2
    finally:
        tracing.stop()
        hooks.close()
        replayer.close()
    return 0


def _retention(settings: Settings) -> Retention | None:
    from app.commands.purge import log_limits
    from app.jobs.retention import Retention

    url, days, logs = settings.database.purge_url, settings.retention.closed_days, log_limits(settings)
    if url is None or (days is None and logs.none):
        return None
    return Retention(url, days, settings.retention.every_h * 3600, logs)


def _builds(told: str | None, settings: Settings) -> tuple[str, ...]:
    """Read `--builds`, which means all that are configured where it is not given.

    A run of another build waits for a worker that knows it. Raises `CommandError` for one that is not configured.
    """
    names = tuple(name for name in (told or "").split(",") if name)
    for name in names:
        if settings.build(name) is None:
            known = ", ".join(build.name for build in settings.builds) or "none"
            raise CommandError(f"--builds names {name!r}; configured builds: {known} (see [[builds]] in hindcast.toml)")
    return names or tuple(build.name for build in settings.builds)


def _replayer(settings: Settings) -> SandboxedReplayer:
    from app.jobs.replayer import Confinement, SandboxedReplayer

    held = settings.sandbox
    secret = [settings.home, *(_secret_files(settings))]
    if settings.source is not None:
        secret.append(settings.source)
    confinement = Confinement(
        unconfined=held.unconfined,
        allow_network=held.allow_network,
        memory_mib=held.memory_mib,
        wall_s=held.wall_s,
        denied=tuple(map(str, secret)),
    )
    return SandboxedReplayer(settings.builds, confinement)


def _secret_files(settings: Settings) -> Iterator[Path]:
    """Files that hold secrets of the pipelines: agent code must not read them, wherever they lie."""
    from app.kafka.config import Secret

    for pipeline in settings.pipelines:
        security = pipeline.security
        if security.key is not None:
            yield security.key
        for value in (security.username, security.password, security.key_password, *pipeline.client.values()):
            if isinstance(value, Secret) and value.file is not None:
                yield value.file
