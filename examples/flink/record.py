"""Runs the refund desk in the framework's own local runner and writes its event log as a Flink job of 0.3.1 does.

It needs an environment with Flink Agents, and makes the calls that a re-run must not: `issue_refund` writes to the file
that DESK_LEDGER names. `python record.py v1 out.log [inputs]`
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
CUSTOMERS = ("ada", "bela", "chen", "dora", "emil")
TEXTS = ("please refund order-{n}", "hello?", "my order-{n} never came", "order-{n} is broken, refund it")


def inputs(count: int) -> list[dict[str, str]]:
    """The messages of a morning, in order."""
    return [
        {"customer": CUSTOMERS[(n * 3 + n // 7) % len(CUSTOMERS)], "text": TEXTS[n % len(TEXTS)].format(n=n + 3)}
        for n in range(count)
    ]


def record(build: str, log: TextIO, given: list[dict[str, str]]) -> int:
    """Feed the inputs to a build; returns how many events were written."""
    sys.path[:0] = [str(HERE / build), str(HERE / "shared")]
    from desk import RefundDesk
    from flink_agents.plan.configuration import AgentConfiguration
    from flink_agents.runtime import local_runner

    logging.disable(logging.WARNING)
    written = 0
    send = local_runner.LocalRunnerContext.send_event

    def logged(context: Any, event: Any) -> None:
        nonlocal written
        told = json.loads(event.model_dump_json())
        held = {"eventType": told["type"], "id": told["id"], "attributes": told["attributes"], "type": told["type"]}
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        line = {"timestamp": time, "logLevel": "VERBOSE", "eventType": told["type"], "event": held}
        log.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        written += 1
        send(context, event)

    local_runner.LocalRunnerContext.send_event = logged
    runner = local_runner.LocalRunner(RefundDesk(), AgentConfiguration())
    for one in given:
        runner.run(key=one["customer"], value=one)
    return written


if __name__ == "__main__":
    os.environ.setdefault("DESK_LEDGER", str(Path(tempfile.mkdtemp()) / "refunds.jsonl"))
    with Path(sys.argv[2]).open("w", encoding="utf-8") as out:
        events = record(sys.argv[1], out, inputs(int(sys.argv[3]) if len(sys.argv) > 3 else 50))
    print(f"{events} events; refunds paid: {os.environ['DESK_LEDGER']}")
