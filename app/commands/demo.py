"""`hindcast demo`: a console with a story in it, from nothing, in one command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from app.commands.common import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.incidents.service import Run
    from app.settings import Settings

_REPLAYS_S = 60.0


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="port (default: 8700, or the next one that is free)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a hindcast.toml of your own builds")


def run(args: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C or SIGTERM; then everything that it started is gone."""
    from app.demo.places import PostgresError
    from app.demo.world import World, WorldError
    from app.incidents.schema import SchemaError
    from app.settings import SettingsError

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        settings, config = _settings(args)
        world = World(settings, config, desk=args.config is None)
        with world as ready:
            runs = _bring_story(ready)
            address = world.address()
            _tell(ready, address, runs)
            if not args.no_browser:
                _open(address)
            world.watch()
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        return 0
    except (CommandError, PostgresError, SchemaError, SettingsError, WorldError) as error:
        print(f"hindcast demo: {error}", file=sys.stderr)
        return 2
    return 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _settings(args: argparse.Namespace) -> tuple[Settings, Path]:
    """Read the example's configuration, or another that was named, and settle the port."""
    from app.demo.desk import example
    from app.demo.world import free_port
    from app.settings import load

    config = (args.config or example() / "hindcast.toml").absolute()
    settings = load(config)
    host = args.host or settings.console.host
    if args.port is not None:
        return settings.with_console(host=host, port=args.port), config
    port = free_port(host, settings.console.port)
    if port != settings.console.port:
        print(f"port {settings.console.port} is in use; taking {port}")
    return settings.with_console(host=host, port=port), config


def _bring_story(settings: Settings) -> Sequence[Run]:
    """Bring the story into the console when it is empty, and wait for its replays."""
    import asyncio

    from app.demo import story
    from app.incidents.service import Store

    async def bring() -> Sequence[Run]:
        store = Store(settings.database_url)
        try:
            runs = await story.tell(store, [build.name for build in settings.builds])
            return await story.endings(store, runs, _REPLAYS_S)
        finally:
            await store.close()

    return asyncio.run(bring())


def _tell(settings: Settings, address: str, runs: Sequence[Run]) -> None:
    from app.demo.story import TITLE

    print(f"\n  console  {address}")
    if runs:
        print(f"  story    {TITLE}")
    for run in runs:
        print(f"           {run.build}: {run.headline or run.error or run.state}")
    if settings.pipelines:
        print("  live     a support desk is at work: see Activations, and the refund of customer-42")
    print(f"  state    {settings.home} (kept between starts; remove it to begin anew)")
    print("  Ctrl-C stops everything.\n", flush=True)


def _open(address: str) -> None:
    """Open the console in a browser, where there is a desktop to open one on."""
    import webbrowser

    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)
