"""`hindcast flink replay`: from an event log to a verdict on each input, with the agent held in the sandbox."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from app.flink.inside.messages import ToolAnswer
    from app.flink.model import Run
    from app.flink.rerun.captured import Fed
    from app.flink.rerun.case import Options
    from app.flink.rerun.stretch import Replayed
    from app.jobs.flink_runs import SandboxedBuild
    from app.settings import Settings
    from app.settings.builds import Build

_EPILOG: Final = """\
Without --run, --key and --seq all inputs of the log are fed in order, and summed up.

exit codes:
  0  reproduced      the re-run did what was recorded
  1  diverged        a difference; the first one is named
  2  unusable        bad invocation, or a log or build that cannot be used
  3  irreproducible  something that the run needs is not in the record
  4  what-if         models were asked anew: nothing was recorded to compare with
 70  Hindcast itself failed; a report is printed
of several inputs, the first that occurs of 2, 1, 3, 4, 0
"""


class UsageError(Exception):
    """The invocation is bad; the text says what was expected."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options to its parser."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("logs", nargs="*", metavar="LOG", help="an event log, plain or gzip")
    parser.add_argument("--bundle", metavar="ZIP", help="a downloaded bundle.zip of a run's incident, in place of logs")
    parser.add_argument(
        "--capture", metavar="DIR", help="feed the inputs of this capture; without a log it is a what-if"
    )
    parser.add_argument("--build", required=True, metavar="NAME", help="the build to run, of hindcast.toml")
    parser.add_argument(
        "--recorded-by",
        metavar="NAME",
        help="the build that made the log (default: the one that was live then, by live_from and live_to)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="hindcast.toml (default: as for every command)")
    parser.add_argument(
        "--key-path",
        action="append",
        default=[],
        metavar="PATH",
        help="where a payload of 0.3.1 holds the key, such as $.input.customer",
    )
    parser.add_argument("--run", dest="ref", metavar="ID", help="one run, by its id")
    parser.add_argument("--key", metavar="KEY", help="the inputs of one key")
    parser.add_argument("--seq", type=int, metavar="N", help="of that key, the input with this number, from 0")
    parser.add_argument("--begins-empty", action="store_true", help="the log begins where the job began")
    parser.add_argument(
        "--memory", metavar="FILE", help='short-term memory before the first input: {"KEY": {"path": value}}'
    )
    parser.add_argument(
        "--tool-answers",
        metavar="FILE",
        help='recorded answers of tools, JSON lines: {"tool": ..., "arguments": {...}, "value": ...}',
    )
    parser.add_argument("--what-if", action="store_true", help="ask the models that the build allows")
    parser.add_argument("--allow-network", action="store_true", help="with --what-if: let models reach the network")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns its exit code."""
    import logging

    from app.sandbox.model import AgentPathError, SandboxError

    logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(message)s")
    try:
        replayed, fed = _replay(args)
    except (UsageError, AgentPathError, SandboxError) as error:
        print(f"hindcast flink replay: {error}", file=sys.stderr)
        return 2
    _print(replayed, fed, args.format)
    return replayed.outcome.exit_code


def _replay(args: argparse.Namespace) -> tuple[Replayed, Fed | None]:
    if args.allow_network and not args.what_if:
        raise UsageError("--allow-network goes with --what-if: a replay is answered from the record")
    settings = _settings(args)
    build = _build(settings, "--build", args.build)
    with ExitStack() as stack:
        runner = stack.enter_context(_runner(build, settings, network=args.allow_network))
        fed_from = _captured(args)
        runs, wanted = _given(args) if fed_from is None else (fed_from.runs, _wanted(args, fed_from.runs, fed_from))
        unlogged = fed_from is not None and not fed_from.logged
        reference = None if unlogged else _recorded_by(args, settings, [one for one in runs if one.ref in wanted])
        before = None
        if reference is not None and reference.name == build.name:
            before = runner
        elif reference is not None:
            before = stack.enter_context(_runner(reference, settings, network=False))
        from app.flink.rerun.stretch import Stretch

        # What a key was given before is fed too: its memory comes from there.
        keys = {(one.stream.job, one.key) for one in runs if one.ref in wanted}
        last = max(one.first_ns for one in runs if one.ref in wanted)
        fed = [one for one in runs if (one.stream.job, one.key) in keys and one.first_ns <= last]
        after = [one for one in runs if (one.stream.job, one.key) in keys and one.first_ns > last]
        given: dict[str, Any] = {}
        if fed_from is not None:
            given = {"captured": fed_from.order, "gaps": fed_from.gaps, "unsure": fed_from.unsure}
        stretch = Stretch(fed, runner, before, _options(args, build), frozenset(wanted), after, **given)
        return stretch.replay(), fed_from


def _captured(args: argparse.Namespace) -> Fed | None:
    """The inputs of the capture that was named, with their runs where there is a log."""
    if args.capture is None:
        return None
    from app.flink.capture import CaptureError
    from app.flink.rerun.captured import alone, matched, read_inputs

    if args.bundle is not None:
        raise UsageError("--capture goes with logs: a bundle holds its own inputs")
    if args.recorded_by is not None and not args.logs:
        raise UsageError("--recorded-by says which build made a log, and none is named")
    try:
        inputs = read_inputs(Path(args.capture))
        fed = matched(_runs(args), inputs) if args.logs else alone(inputs)
    except (CaptureError, ValueError) as error:
        raise UsageError(f"--capture {args.capture}: {error}") from error
    if not fed.order:
        raise UsageError(f"--capture {args.capture}: none of its {fed.inputs} inputs is of a run of the log")
    return fed


def _settings(args: argparse.Namespace) -> Settings:
    from app.settings import SettingsError, load

    try:
        return load(args.config)
    except SettingsError as error:
        raise UsageError(str(error)) from error


def _build(settings: Settings, option: str, name: str) -> Build:
    from app.sandbox.drivers import FLINK

    build = settings.build(name)
    if build is None:
        known = ", ".join(one.name for one in settings.builds if one.driver == FLINK) or "none"
        raise UsageError(f"{option} {name}: no such build in {_file(settings)}; of Flink Agents it names: {known}")
    if build.driver != FLINK:
        raise UsageError(f"{option} {name}: that build runs with the driver {build.driver!r}; set driver = {FLINK!r}")
    if build.digest is not None and (found := build.files_digest()) != build.digest:
        raise UsageError(f"{option} {name}: its files are not those of its digest {build.digest}; they are {found}")
    return build


def _file(settings: Settings) -> str:
    return "hindcast.toml" if settings.source is None else str(settings.source)


@contextmanager
def _runner(build: Build, settings: Settings, *, network: bool) -> Iterator[SandboxedBuild]:
    from app.jobs.flink_runs import SandboxedBuild
    from app.sandbox.model import MIB, Limits
    from app.sandbox.runner import Sandbox

    held = settings.sandbox
    limits = Limits(wall_s=held.wall_s, memory_bytes=held.memory_mib * MIB)
    # The environment loads while this process reads the log.
    with Sandbox(
        interpreter=build.interpreter,
        driver=build.driver,
        libraries=build.preload,
        allow_network=network,
        unconfined=held.unconfined,
    ) as sandbox:
        yield SandboxedBuild(build, partial(sandbox.run, limits=limits), network=network)


def _given(args: argparse.Namespace) -> tuple[list[Run], set[str]]:
    """All runs, and those to report on."""
    if args.bundle is not None:
        if args.logs or args.ref or args.key or args.key_path:
            raise UsageError(
                "--bundle holds one run with what leads up to it; leave out logs, --run, --key, --key-path"
            )
        return _bundled(args.bundle)
    if not args.logs:
        raise UsageError("name an event log, or a bundle with --bundle")
    runs = _runs(args)
    return runs, _wanted(args, runs)


def _bundled(name: str) -> tuple[list[Run], set[str]]:
    from app.incidents.bundle import read
    from app.incidents.errors import BundleError
    from app.incidents.flink_evidence import flink_run_of, leading_up

    try:
        bundle = read(Path(name).read_bytes(), name)
    except (BundleError, OSError) as error:
        raise UsageError(f"--bundle {name}: {error}") from error
    run = flink_run_of(bundle.files, bundle.sources)
    if run is None:
        raise UsageError(
            f"--bundle {name}: it does not hold one run of Flink Agents; for a Beam agent's use hindcast replay"
        )
    return [*leading_up(bundle.files, bundle.sources), run], {run.ref}


def _runs(args: argparse.Namespace) -> list[Run]:
    from app.flink.keys import parse_paths
    from app.flink.logs import read_log
    from app.flink.reading import LogError, open_log

    try:
        paths = parse_paths(args.key_path)
    except ValueError as error:
        raise UsageError(f"--key-path: {error}") from error
    runs: list[Run] = []
    for name in args.logs:
        try:
            with open_log(Path(name)) as stream:
                data = stream.read()
        except (LogError, OSError, EOFError) as error:
            raise UsageError(str(error)) from error
        runs += read_log(data, name, paths).runs
    if not runs:
        raise UsageError(f"{', '.join(args.logs)}: no run of Flink Agents in it; an event log holds JSON lines")
    return runs


def _wanted(args: argparse.Namespace, runs: Sequence[Run], fed: Fed | None = None) -> set[str]:
    """The runs to report on."""
    from app.flink.rerun.recorded import numbered

    if args.seq is not None and args.key is None:
        raise UsageError("--seq counts the inputs of a key: name it with --key")
    found = {
        one.run.ref
        for one in numbered(runs)
        if args.ref in (None, one.run.ref)
        and (args.key is None or one.run.key == args.key)
        and args.seq in (None, one.seq)
    }
    if not found:
        keys = sorted({one.key for one in runs if one.key is not None})
        shown = ", ".join(keys[:10]) or "none; name where it is with --key-path"
        raise UsageError(f"no run of the log is like that; it has {len(runs)} runs, of the keys: {shown}")
    if fed is not None and not (found := found.intersection(fed.order)):
        raise UsageError(f"--capture {args.capture}: it holds no input of what was asked for with --run, --key, --seq")
    return found


def _recorded_by(args: argparse.Namespace, settings: Settings, runs: Sequence[Run]) -> Build | None:
    """The build that made the log: as told, else the one that was live when each run began."""
    from app.sandbox.drivers import FLINK

    if args.recorded_by is not None:
        return _build(settings, "--recorded-by", args.recorded_by)
    live = {
        build.name
        for build in settings.builds
        for one in runs
        if build.driver == FLINK and _was_live(build, one.first_ns // 1_000_000)
    }
    if len(live) > 1:
        raise UsageError(
            f"several builds were live while this was recorded: {', '.join(sorted(live))}; say --recorded-by"
        )
    return _build(settings, "--recorded-by", live.pop()) if live else None


def _was_live(build: Build, at_ms: int) -> bool:
    begun = build.live_from is not None and build.live_from <= at_ms
    return begun and (build.live_to is None or at_ms < build.live_to)


def _options(args: argparse.Namespace, build: Build) -> Options:
    from app.flink.rerun.case import Options
    from app.jobs.flink_runs import handling

    return Options(
        live=args.what_if or (args.capture is not None and not args.logs),
        begins_empty=args.begins_empty,
        memory=_memory(args.memory) if args.memory else {},
        supplied=tuple(_tool_answers(args.tool_answers)) if args.tool_answers else (),
        handling=handling(build.resources),
    )


def _memory(name: str) -> dict[str, dict[str, Any]]:
    expected = 'a JSON object of objects is expected: {"KEY": {"path.to.value": value}}'
    try:
        told = json.loads(_text(name))
    except ValueError as error:
        raise UsageError(f"--memory {name}: {expected} ({error})") from error
    if not isinstance(told, dict) or not all(isinstance(held, dict) for held in told.values()):
        raise UsageError(f"--memory {name}: {expected}")
    return told


def _tool_answers(name: str) -> Iterator[ToolAnswer]:
    from app.flink.inside.messages import ToolAnswer, tool_digest

    for number, line in enumerate(_text(name).splitlines(), 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            tool, arguments, value = told["tool"], dict(told["arguments"]), told["value"]
            yield ToolAnswer(tool=tool, digest=tool_digest(tool, arguments), value=value, supplied=True)
        except (ValueError, KeyError, TypeError) as error:
            expected = 'expected {"tool": name, "arguments": {...}, "value": any JSON}'
            raise UsageError(f"--tool-answers {name}, line {number}: {expected}") from error


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: {error}") from error


def _print(replayed: Replayed, fed: Fed | None, form: str) -> None:
    from app.flink.rerun import render

    if form == "json":
        told = render.as_json(replayed) | ({} if fed is None else {"capture": fed.as_json()})
        print(json.dumps(told, ensure_ascii=False, indent=2))
        return
    sys.stdout.write(render.text(replayed, colour=sys.stdout.isatty()))
    if fed is not None:
        print("", *fed.lines(), sep="\n")
