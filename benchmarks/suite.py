"""Many replays: a folder of a thousand bundles through the sandbox, and the fusing of many snapshots."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from app.commands.suite import run as run_suite
from app.incidents.bundle import Bundle, write
from app.replay.engine import find, replay
from app.replay.evidence import EvidenceFile, Role, load
from app.replay.plan import Planner
from app.replay.rerun_pb2 import AgentCode
from app.replay.select import Target
from app.replay.verdict import Report
from app.sandbox.runner import Sandbox
from app.wire.records import LlmCacheBlob, MemoryBlob, StateSnapshot, parse, serialize
from benchmarks.measure import Row
from tests.golden.scenarios import scenario

BUNDLES: Final = 1_000
GOAL_PER_SECOND: Final = 150
SNAPSHOTS: Final = 20
SNAPSHOT_BYTES: Final = 100 * 1024
FUSE_GOAL_MS: Final = 20


def rows() -> Iterator[Row]:
    """Every figure of this file."""
    yield fusing()
    yield bundles()


def bundles() -> Row:
    """`--bundles` with warm children, as many at one time as there are cores twice over."""
    one = scenario("a01_fraud_completed")
    code, jobs = one.code(), 2 * (os.cpu_count() or 1)
    with TemporaryDirectory() as folder, Sandbox() as sandbox:
        for number in range(BUNDLES):
            files = tuple(one.bundle())
            bundle = Bundle(files=files, sources=tuple({"kind": "file"} for _ in files), seq=one.seq)
            (Path(folder) / f"{number:04}.zip").write_bytes(write(bundle))
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda _: replay(one.bundle(), sandbox, code), range(20)))

        def each(bundle: Bundle) -> Report:
            return replay(bundle.files, sandbox, code, seq=bundle.seq)

        began = time.perf_counter()
        with redirect_stdout(StringIO()):
            assert run_suite(Path(folder), each, jobs=jobs, form="json", junit=Path(os.devnull)) == 0
        wall = time.perf_counter() - began
    return Row(
        f"{BUNDLES:,} bundles through the sandbox, {jobs} at one time",
        f"{BUNDLES / wall:.0f} a second",
        f"≥ {GOAL_PER_SECOND} a second on two cores",
        BUNDLES / wall >= GOAL_PER_SECOND,
    )


def fusing() -> Row:
    """From twenty snapshots of 100 KiB each to the plan: reading, digests, binding to a life, the union of answers."""
    files, code = fused(), AgentCode(agent="any:any", registry="any:any", decode="any:any")
    _plan(files, code)
    taken = []
    for _ in range(50):
        fresh = [EvidenceFile(file.role, file.name, file.data) for file in files]
        began = time.process_time()
        _plan(fresh, code)
        taken.append((time.process_time() - began) * 1000)
    median = statistics.median(taken)
    return Row(
        f"fusing {SNAPSHOTS} snapshots of 100 KiB, processor time",
        f"{median:.1f} ms (best {min(taken):.1f})",
        f"≤ {FUSE_GOAL_MS} ms",
        median <= FUSE_GOAL_MS,
    )


def _plan(files: list[EvidenceFile], code: AgentCode) -> None:
    evidence = load(files)
    target: Target = find(evidence, None)
    planner = Planner(evidence, target, code)
    attempt = target.candidates[0]
    counter = planner.counter(attempt, target.kind)
    state = planner.captured(attempt, target.kind, counter)
    assert state is not None
    planner.plan(attempt, target.kind, planner.members_of(attempt, target.kind), state)


def fused() -> list[EvidenceFile]:
    """a01 with twenty snapshots: the same life seen at twenty counters, each with a cache of its own."""
    one = scenario("a01_fraud_completed")
    files = one.bundle()
    first = parse(StateSnapshot, files[0].data)
    clock = first.llm_cache.entries[0].created_at_ms
    answers = SNAPSHOT_BYTES // 2_048
    for counter in range(2, SNAPSHOTS + 1):
        snapshot = StateSnapshot()
        snapshot.CopyFrom(first)
        snapshot.seq = counter
        snapshot.llm_cache.CopyFrom(_cache(counter, answers, clock))
        snapshot.memory.CopyFrom(MemoryBlob(state_schema_version=1))
        files.append(EvidenceFile(Role.SNAPSHOT, f"{counter}.pb", serialize(snapshot)))
    return files


def _cache(counter: int, answers: int, clock: int) -> LlmCacheBlob:
    blob = LlmCacheBlob(state_schema_version=1)
    for at in range(answers):
        said = f"{counter} {at} ".encode() * 250
        key = hashlib.sha256(f"{counter} {at}".encode()).hexdigest()
        later = clock + counter * 1_000
        blob.entries.add(
            cache_key=key,
            response=said[:2_000],
            response_digest=hashlib.sha256(said[:2_000]).digest(),
            created_at_ms=later,
            last_access_ms=later,
        )
    return blob
