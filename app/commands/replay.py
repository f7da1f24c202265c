"""`hindcast replay`: from files to a verdict in a terminal, with the agent's code held in the sandbox."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from app.incidents.bundle import Bundle
    from app.replay.engine import Options
    from app.replay.evidence import EvidenceFile
    from app.replay.rerun_pb2 import AgentCode, RerunRequest, ToolAnswer
    from app.replay.verdict import Report
    from app.sandbox.model import Finished
    from app.sandbox.runner import Sandbox
    from app.settings import Build, Settings

SUMMARY: Final = "re-run one activation against its record and say where they part"

_EPILOG: Final = """\
exit codes:
  0  reproduced      the re-run matched everything that could be compared
  1  diverged        a difference; the first one is named
  2  unusable        bad invocation, or evidence that is damaged or does not belong together
  3  irreproducible  an input of the run is missing
  4  what-if         it ran, but nothing was recorded to compare with
 70  Hindcast itself failed; a report is printed
"""

_ROLES: Final = {
    "snapshot": "one serialized StateSnapshot (repeatable)",
    "traces": "varint-framed TraceEvents (repeatable)",
    "event": "the AgentEnvelope that triggered the activation (repeatable: a batch)",
    "snapshots": "varint-framed StateSnapshots",
    "events": "varint-framed AgentEnvelopes: what surrounds the trigger",
    "intents": "varint-framed ToolIntents",
    "outputs": "varint-framed outputs",
    "errors": "varint-framed dead letters",
}


class UsageError(Exception):
    """The invocation is bad; the text says what was expected."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    evidence = parser.add_argument_group("evidence")
    for role, what in _ROLES.items():
        evidence.add_argument(f"--{role}", action="append", default=[], metavar="FILE", help=what)
    evidence.add_argument("--bundle", metavar="ZIP", help="a downloaded bundle.zip in place of files")
    evidence.add_argument("--bundles", metavar="DIR", help="a folder of bundles: replay them all and sum up")
    evidence.add_argument("--jobs", type=_positive, default=2, metavar="N", help="bundles at one time (default: 2)")
    evidence.add_argument("--junit", metavar="FILE", help="with --bundles: write a JUnit file")
    code = parser.add_argument_group("agent")
    code.add_argument("--agent", metavar="M:A", help="the agent, as module:attribute")
    code.add_argument("--registry", default="", metavar="M:A", help="its tool registry")
    code.add_argument("--decode", default="", metavar="M:A", help="its decode hook")
    code.add_argument("--config", default="", metavar="M:A", help="a dict of AgentConfig arguments")
    code.add_argument(
        "--agent-path",
        action="append",
        default=[],
        metavar="DIR",
        help="folder to import from (repeatable; default: the current one)",
    )
    code.add_argument("--interpreter", metavar="FILE", help="the bin/python of an environment with its packages")
    code.add_argument("--driver", default="runtime", metavar="NAME", help="what runs it (default: runtime)")
    code.add_argument("--build", metavar="NAME", help="an agent build of hindcast.toml instead")
    parser.add_argument(
        "--tool-answers",
        metavar="FILE",
        help='recorded answers of read-only tools, JSON lines: {"tool": ..., "arguments": {...}, "value": ...}',
    )
    parser.add_argument("--ledger", metavar="FILE", help="write what the model saw and said, as JSON lines")
    decision = parser.add_mutually_exclusive_group()
    decision.add_argument("--approve", metavar="INTENT", help="what if this pending intent were approved")
    decision.add_argument("--reject", metavar="INTENT", help="what if this pending intent were rejected")
    decision.add_argument("--result", metavar="FILE", help="what if this serialized ToolResult came in")
    parser.add_argument("--seq", type=int, metavar="N", help="narrow to one seq")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--allow-network", action="store_true", help="let tools reach the network (recorded)")
    parser.add_argument(
        "--unconfined",
        action="store_true",
        help="run the agent even where nothing can confine it",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    import logging

    logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(message)s")
    try:
        settings = _settings(args)
        code = _code(args, settings)
        if args.bundles is not None:
            return _suite(args, code, settings)
        report = _replay(args, code, settings)
    except UsageError as error:
        print(f"hindcast replay: {error}", file=sys.stderr)
        return 2
    if args.ledger:
        _write_ledger(report, args.ledger)
    _print(report, args.format)
    return report.verdict.exit_code


def _replay(args: argparse.Namespace, code: AgentCode, settings: Settings | None) -> Report:
    # The child loads while this process reads the evidence.
    with _sandbox(args, settings) as sandbox:
        from app.commands.provenance import of_build
        from app.replay.engine import replay

        files, seq = _files(args)
        options = _options(args, seq)
        report = replay(files, _Limited(sandbox, settings), code, options=options)
        return of_build(report, _build(args, settings), sandbox)


def _suite(args: argparse.Namespace, code: AgentCode, settings: Settings | None) -> int:
    folder = Path(args.bundles)
    if not folder.is_dir():
        raise UsageError(f"--bundles {folder}: no such folder")
    with _sandbox(args, settings) as sandbox:
        from app.commands import suite
        from app.commands.provenance import of_build
        from app.replay.engine import replay

        runner, build = _Limited(sandbox, settings), _build(args, settings)

        def one(bundle: Bundle) -> Report:
            report = replay(bundle.files, runner, code, options=_options(args, bundle.seq))
            return of_build(report, build, sandbox)

        junit = None if args.junit is None else Path(args.junit)
        return suite.run(folder, one, jobs=args.jobs, form=args.format, junit=junit)


def _sandbox(args: argparse.Namespace, settings: Settings | None) -> Sandbox:
    from app.sandbox.drivers import DEFAULT, DRIVERS, ONCE, UnknownDriverError
    from app.sandbox.model import SandboxError
    from app.sandbox.runner import Sandbox

    build = _build(args, settings)
    interpreter = build.interpreter if build is not None else _interpreter(args)
    driver = args.driver if build is None else build.driver
    preload: tuple[str, ...] | None = None
    later: tuple[str, ...] = ()
    if driver == DEFAULT and args.bundles is None:
        preload, later = ONCE, DRIVERS[DEFAULT].warm
    try:
        sandbox = Sandbox(
            interpreter=interpreter,
            driver=driver,
            preload=preload,
            later=later,
            libraries=() if build is None else build.preload,
            allow_network=args.allow_network,
            unconfined=args.unconfined or (settings is not None and settings.sandbox.unconfined),
        )
        sandbox.start()
    except UnknownDriverError as error:
        raise UsageError(f"--driver: {error}") from None
    except SandboxError as error:
        raise UsageError(str(error)) from error
    return sandbox


def _build(args: argparse.Namespace, settings: Settings | None) -> Build | None:
    return None if settings is None else settings.build(args.build)


def _interpreter(args: argparse.Namespace) -> Path | None:
    # Not resolved: an environment is known by the place of the link to its Python.
    return None if args.interpreter is None else Path(args.interpreter).absolute()


def _options(args: argparse.Namespace, seq: int | None) -> Options:
    from app.replay.engine import Options
    from app.replay.ledger import DEFAULT_BYTES

    return Options(
        seq=seq if args.seq is None else args.seq,
        allow_network=args.allow_network,
        ledger_bytes=DEFAULT_BYTES if args.ledger else 0,
        tool_answers=tuple(_tool_answers(args)),
    )


class _Limited:
    """The sandbox with the configured limits."""

    def __init__(self, sandbox: Sandbox, settings: Settings | None) -> None:
        from app.sandbox.model import MIB, Limits

        self._sandbox = sandbox
        held = None if settings is None else settings.sandbox
        self._limits = Limits() if held is None else Limits(wall_s=held.wall_s, memory_bytes=held.memory_mib * MIB)

    def run(self, request: RerunRequest) -> Finished:
        from app.sandbox.model import AgentPathError, SandboxError

        try:
            return self._sandbox.run(request, self._limits)
        except (AgentPathError, SandboxError) as error:
            raise UsageError(str(error)) from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _settings(args: argparse.Namespace) -> Settings | None:
    """The configuration, only where a build is named: everything else works without one."""
    if args.build is None:
        return None
    from app.settings import SettingsError, load

    try:
        return load()
    except SettingsError as error:
        raise UsageError(str(error)) from error


def _code(args: argparse.Namespace, settings: Settings | None) -> AgentCode:
    from app.replay.rerun_pb2 import AgentCode

    if settings is not None:
        for option in ("agent", "interpreter"):
            if getattr(args, option):
                raise UsageError(f"--{option} and --build exclude each other")
        return _build_code(settings, args.build)
    if not args.agent:
        raise UsageError("name the agent with --agent module:attribute, or a build with --build")
    if args.driver == "flink":
        raise UsageError("--driver flink: event logs of Flink Agents are re-run by: hindcast flink replay")
    for option in ("agent", "registry", "decode", "config"):
        _check_reference(option, getattr(args, option))
    return AgentCode(
        agent=args.agent,
        registry=args.registry,
        decode=args.decode,
        config=args.config,
        paths=[str(_folder(path)) for path in args.agent_path or ["."]],
    )


def _build_code(settings: Settings, name: str) -> AgentCode:
    from app.replay.rerun_pb2 import AgentCode
    from app.sandbox.drivers import FLINK

    build = settings.build(name)
    if build is None:
        known = ", ".join(build.name for build in settings.builds) or "none"
        raise UsageError(f"--build {name}: no such build in hindcast.toml; it names: {known}")
    if build.driver == FLINK:
        raise UsageError(f"--build {name} is of Flink Agents; its event logs are re-run by: hindcast flink replay")
    return AgentCode(
        agent=build.agent,
        registry=build.registry or "",
        decode=build.decode or "",
        config=build.config or "",
        paths=[str(path) for path in build.paths],
    )


def _check_reference(option: str, reference: str) -> None:
    module, colon, attribute = reference.partition(":")
    if reference and not (module and colon and attribute):
        raise UsageError(f"--{option} {reference!r} is not of the form module:attribute")


def _folder(path: str) -> Path:
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise UsageError(f"--agent-path {path}: no such folder")
    return folder


def _files(args: argparse.Namespace) -> tuple[list[EvidenceFile], int | None]:
    """The evidence, and the seq that a bundle was narrowed to."""
    given = list(_given(args))
    decided = args.approve or args.reject or args.result
    if args.bundle is None:
        for role in ("traces", "event"):
            if not getattr(args, role) and not (decided and role == "event"):
                raise UsageError(f"--{role} is missing: {_ROLES[role]}")
        return (_decided(args, given) if decided else given), None
    from app.incidents.bundle import read
    from app.incidents.errors import BundleError

    try:
        bundle = read(_bytes(args.bundle))
    except BundleError as error:
        raise UsageError(f"{args.bundle}: {error}") from error
    files = [*bundle.files, *given]
    return (_decided(args, files) if decided else files), bundle.seq


def _decided(args: argparse.Namespace, files: list[EvidenceFile]) -> list[EvidenceFile]:
    """The same evidence with the operator's decision in the place of the triggering envelope."""
    from app.replay.evidence import UnusableEvidence
    from app.replay.whatif import Decision, NothingPends, with_decision

    if args.result:
        decision = Decision(result=_bytes(args.result))
    else:
        decision = Decision(intent=args.approve or args.reject, approved=args.approve is not None)
    try:
        return with_decision(files, decision)
    except (NothingPends, UnusableEvidence) as error:
        raise UsageError(str(error)) from error


def _tool_answers(args: argparse.Namespace) -> Iterator[ToolAnswer]:
    if not args.tool_answers:
        return
    from app.replay.answers import ToolAnswersError, read_tool_answers

    try:
        yield from read_tool_answers(_bytes(args.tool_answers))
    except ToolAnswersError as error:
        raise UsageError(f"{args.tool_answers}: {error}") from error


def _write_ledger(report: Report, name: str) -> None:
    import json

    lines = [json.dumps(entry.as_json(), ensure_ascii=False) + "\n" for entry in report.ledger]
    try:
        Path(name).write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from error


def _given(args: argparse.Namespace) -> Iterator[EvidenceFile]:
    from app.replay.evidence import EvidenceFile, Role

    for role in _ROLES:
        for name in getattr(args, role):
            yield EvidenceFile(Role(role), name, _bytes(name))


def _bytes(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from error


def _print(report: Report, form: str) -> None:
    if form == "json":
        import json

        print(json.dumps(report.verdict.as_json(), ensure_ascii=False, indent=2))
        return
    from app.replay.render import text

    sys.stdout.write(text(report, colour=sys.stdout.isatty()))
