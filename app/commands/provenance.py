"""Adds to a report of `hindcast replay --build` what ran, and what of it is not production's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.replay.verdict import Report
    from app.sandbox.runner import Sandbox
    from app.settings import Build


def of_build(report: Report, build: Build | None, sandbox: Sandbox) -> Report:
    """The same report where no build was named; raises `OSError` where the build's lock is gone."""
    if build is None:
        return report
    from app.replay.provenance import Ran, attributed

    here = sandbox.environment()
    ran = Ran(build.name, build.files_digest(), here.python, here.digest, here.packages)
    return attributed(report, ran, build.production())
