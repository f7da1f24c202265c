"""A recorded scenario as what a replay is given: evidence files, the agent's code, the right answer."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from app.replay.evidence import EvidenceFile, Role
from app.replay.rerun_pb2 import AgentCode
from tests.golden.recordings import corpus

STREAMS = (Role.TRACES, Role.SNAPSHOTS, Role.EVENTS, Role.INTENTS, Role.OUTPUTS, Role.ERRORS)


@cache
def truth() -> dict[str, Any]:
    """The right exit codes of every scenario, by level."""
    found: dict[str, Any] = json.loads((corpus() / "truth.json").read_text())
    return found


def names(folder: str) -> list[str]:
    """The scenarios of `corpus` or `corpus_multi`."""
    return sorted(path.name for path in (corpus() / folder).iterdir() if path.is_dir())


@dataclass(frozen=True)
class Scenario:
    """One recorded scenario. `argv` are the options of the command that replays it."""

    folder: Path
    argv: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    def right(self, level: str) -> set[int]:
        """The exit codes that are right at a level."""
        answer = truth()[self.name][level]
        return {answer["exit"], *answer.get("alt", ())}

    def options(self) -> dict[str, str]:
        """The command's options; a scenario whose command line is broken has fewer."""
        pairs = zip(self.argv[::2], self.argv[1::2], strict=False)
        return dict(pairs)

    @property
    def has_config(self) -> bool:
        return "\nCONFIG" in (self.folder / "agent.py").read_text()

    def command(self) -> list[str]:
        """The whole command line, with the agent's folder and its configuration where it has one."""
        config = ["--config", "agent:CONFIG"] if self.has_config else []
        return [*self.argv, *config, "--agent-path", str(self.folder)]

    def code(self) -> AgentCode:
        options = self.options()
        return AgentCode(
            agent=options["--agent"],
            registry=options.get("--registry", ""),
            decode=options.get("--decode", ""),
            config="agent:CONFIG" if self.has_config else "",
            paths=[str(self.folder)],
        )

    @property
    def seq(self) -> int | None:
        text = self.options().get("--seq")
        return None if text is None else int(text)

    def bundle(self) -> list[EvidenceFile]:
        """The three files."""
        options = self.options()
        roles = (Role.SNAPSHOT, Role.TRACES, Role.EVENT)
        return [self._file(role, options[f"--{role}"]) for role in roles]

    def full(self) -> list[EvidenceFile]:
        """The three files, every other snapshot, and all streams of the run."""
        snapshots = sorted((self.folder / "snapshots").glob("*.pb"))
        files = self.bundle()
        files += [self._file(Role.SNAPSHOT, f"snapshots/{path.name}") for path in snapshots]
        files += [
            self._file(role, f"raw/{role}.bin") for role in STREAMS if (self.folder / "raw" / f"{role}.bin").exists()
        ]
        return files

    def files(self, level: str) -> list[EvidenceFile]:
        return self.full() if level == "full" else self.bundle()

    def _file(self, role: Role, name: str) -> EvidenceFile:
        return EvidenceFile(role, name, (self.folder / name).read_bytes())


def scenario(name: str) -> Scenario:
    """A scenario by its name, from whichever folder holds it."""
    root = corpus()
    folder = next(root / part / name for part in ("corpus", "corpus_multi") if (root / part / name).is_dir())
    expected = json.loads((folder / "expected.json").read_text())
    return Scenario(folder, tuple(expected["argv"]))


def has_valid_command(one: Scenario) -> bool:
    """Whether its command line names all files and references; the others are the command's own tests."""
    options = one.options()
    named = all(f"--{role}" in options for role in ("snapshot", "traces", "event"))
    present = named and all((one.folder / options[f"--{role}"]).exists() for role in ("snapshot", "traces", "event"))
    return present and options.get("--seq", "0").isdecimal()
