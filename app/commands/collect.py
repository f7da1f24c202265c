"""`hindcast collect`: the process that follows the pipelines; the only one that needs the brokers' credentials."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options, add_watch_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.kafka.config import Pipeline
    from app.settings import Settings


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser)
    add_watch_option(parser)
    parser.add_argument("--pipelines", metavar="A,B", help="follow only these pipelines (default: all)")
    parser.add_argument(
        "--from",
        dest="start",
        choices=("beginning", "end"),
        help="where to begin in a topic that was never followed (default: collector.start)",
    )


def run(args: argparse.Namespace) -> int:
    """Collect until SIGTERM or Ctrl-C; what was read is stored first."""
    import asyncio
    import gc

    from app.commands.common import ready_settings, start_logging, start_watching
    from app.jobs.collector import Collector
    from app.jobs.desk import Keeping
    from app.kafka.intake import Start
    from app.operations import tracing
    from app.operations.listener import WatchProblem

    try:
        start_logging(args)
        watch = start_watching(args, "collector")
        settings = ready_settings(args.config)
        pipelines = chosen(args.pipelines, settings)
    except CommandError as error:
        print(f"hindcast collect: {error}", file=sys.stderr)
        return 2
    # A hundred thousand records a second are no garbage, and looking for some costs a tenth of the time.
    gc.set_threshold(100_000, 50, 50)
    kept = settings.collector
    collector = Collector(
        settings.database_url,
        pipelines,
        settings.freeze,
        Keeping(kept.keep_days, kept.keep_gib, kept.export_timeout_s),
        Start(args.start or kept.start),
        known=[pipeline.name for pipeline in settings.pipelines],
        watch=watch,
    )
    try:
        asyncio.run(collector.run())
    except WatchProblem as error:
        print(f"hindcast collect: {error}", file=sys.stderr)
        return 2
    finally:
        tracing.stop()
    return 0


def chosen(told: str | None, settings: Settings) -> Sequence[Pipeline]:
    """Read `--pipelines`; raises `CommandError` for one that is not configured, or when there is none at all."""
    if not settings.pipelines:
        raise CommandError("no pipelines are configured: add [[pipelines]] to hindcast.toml (docs/configuration.md)")
    names = [name for name in (told or "").split(",") if name]
    for name in names:
        if settings.pipeline(name) is None:
            known = ", ".join(pipeline.name for pipeline in settings.pipelines)
            raise CommandError(f"--pipelines names {name!r}; configured pipelines: {known}")
    return [pipeline for pipeline in settings.pipelines if not names or pipeline.name in names]
