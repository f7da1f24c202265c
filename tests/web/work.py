"""Does a worker's work inside a test: the real engine and the real service, without queue and sandbox."""

import asyncio

from app.incidents import inputs, service
from app.incidents.service import EvidenceFile, Report, Run, Store
from app.replay.engine import Options, replay
from app.replay.inprocess import InProcessRunner
from tests.golden.scenarios import scenario


async def claim(store: Store, run_id: str) -> Run:
    """Take a run as a worker does."""
    async with store.write() as session:
        run = await service.claim_run(session, run_id, worker="test:1", lease_s=60)
    assert run is not None
    return run


async def finish(store: Store, run: Run, report: Report) -> None:
    async with store.write() as session:
        assert await service.finish_run(session, run.id, run.attempt, report)


async def work(store: Store, run_id: str) -> Report:
    """Replay a queued run with the build that is named after its scenario."""
    run = await claim(store, run_id)
    async with store.read() as session:
        incident = await service.get_incident(session, run.incident_id)
        files = await service.evidence_files(session, incident, run.evidence_ids)
        vindicated = await service.vindicated_reads(session, run)
    options = Options(
        incident.wanted_seq,
        ledger_bytes=service.LEDGER_BYTES,
        tool_answers=tuple(inputs.engine_answers(run.tool_answers or [])),
        vindicated=vindicated,
    )
    files = files if run.decision is None else inputs.decided(files, run.decision)
    report = await asyncio.to_thread(_replay, run.build, files, options)
    await finish(store, run, report)
    return report


def _replay(build: str, files: list[EvidenceFile], options: Options) -> Report:
    runner = InProcessRunner()
    try:
        return replay(files, runner, scenario(build).code(), options=options)
    finally:
        runner.close()
