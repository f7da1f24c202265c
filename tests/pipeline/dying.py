"""`python -m tests.pipeline.dying POINT NUMBER ...`: the pipeline command, killed when it comes to a point that often.

The rest of the command line is the pipeline's own.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from app.pipeline import __main__ as command
from app.pipeline.embedded import EmbeddedPipeline
from app.pipeline.journal import Journal


def die(left: list[int]) -> None:
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, left: list[int]) -> None:
    """Let the process die before a method is entered."""
    original: Callable[..., Any] = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> Any:
        die(left)
        return original(*arguments, **named)

    setattr(owner, name, dying)


POINTS: dict[str, tuple[Any, str]] = {
    "turned, not written": (Journal, "append"),
    "written, not sent": (EmbeddedPipeline, "_send"),
    "sent, not known to have arrived": (EmbeddedPipeline, "_deliver"),
    "arrived, not written": (Journal, "delivered"),
}

if __name__ == "__main__":
    point, number, *rest = sys.argv[1:]
    before(*POINTS[point], [int(number)])
    sys.exit(command.main(rest))
