"""Which code runs an activation in the confined child, by the name that a build gives it.

A driver is a function of trusted code: `RerunRequest` in, `RerunResult` out. It is imported by the pre-loaded process
of the build, in the build's own interpreter, and called in the fork. Its result names it and its version. A driver may
import no more of the console than its own room and those that the room may import; what else it needs has to be
installed in the build's environment, and is named here, so that a missing part is an error before the first run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

Version = tuple[int, ...]


class Bounds(NamedTuple):
    """Versions from the first on, and below the second."""

    first: Version
    below: Version

    def __str__(self) -> str:
        return f">={'.'.join(map(str, self.first))},<{'.'.join(map(str, self.below))}"


class Driver(NamedTuple):
    """`entry` is `module:function`; `warm` is imported before the fork, or called (`module:function`).

    The last of `warm` is called once more in a copy, to see which pages a run writes: it had better be like a run.

    `needs` are packages by their name in the registry. `rooms` are folders of `app` that a run may read beside the
    core's.
    """

    entry: str
    warm: tuple[str, ...] = ()
    needs: Mapping[str, Bounds] = {}
    rooms: tuple[str, ...] = ()


PYTHON: Final = (3, 11)
# What the generated protobuf modules accept; every driver reads and writes with them.
PROTOBUF: Final = Bounds((6, 31), (7,))
PYDANTIC: Final = Bounds((2, 10), (3,))

DEFAULT: Final = "runtime"
FLINK: Final = "flink"
# Enough for a process that most likely makes one run only: the rest costs it more than that run would gain.
ONCE: Final = ("app.sandbox.warm:names",)
DRIVERS: Final[dict[str, Driver]] = {
    # Hindcast's own runtime, serving `beam_agents` itself. Warming it costs a process a tenth of a second once.
    "runtime": Driver(
        "app.replay.rerun:run", ("app.sandbox.warm:agents", "app.sandbox.rehearsal:rehearse"), {"pydantic": PYDANTIC}
    ),
    # The package itself, as the build's own environment holds it; which versions exactly, the driver knows.
    "beam_agents": Driver("app.replay.peer:run", ("app.replay.peer:warm",), {"beam-agents": Bounds((1, 0, 0), (1, 1))}),
    # Agents of Flink Agents, over the plan that the framework of the build's own environment compiles.
    FLINK: Driver(
        "app.flink.inside.driver:run",
        ("app.flink.inside.driver:warm", "app.flink.inside.rehearsal:rehearse"),
        {"flink-agents": Bounds((0, 3), (0, 5)), "pydantic": PYDANTIC},
        ("flink",),
    ),
}


class UnknownDriverError(ValueError):
    """A driver that this version does not have; the text names those that it has."""


def driver(name: str) -> Driver:
    """Find a driver by its name; raises `UnknownDriverError`."""
    try:
        return DRIVERS[name]
    except KeyError:
        raise UnknownDriverError(f"there is no driver {name!r}; there are {', '.join(DRIVERS)}") from None
