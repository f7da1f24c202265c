"""`python -m app.pipeline`: an agent's pipeline in this process, for the demo and for trying things out."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from app.pipeline.code import BadReference, CodeReferences, load
from app.pipeline.embedded import EmbeddedPipeline, PipelineStopped, Topics
from app.pipeline.journal import JournalError


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 0 then, 2 for a bad invocation, 1 when the pipeline cannot go on."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    code = CodeReferences(
        options.agent, options.provider, options.registry, options.decode, options.config, tuple(options.path)
    )
    kafka = {"bootstrap.servers": options.brokers, **dict(pair.split("=", 1) for pair in options.kafka)}
    try:
        agent, config = load(code)
        pipeline = EmbeddedPipeline(
            agent, config, Topics.below(options.topics), kafka, options.journal, sync=options.sync
        )
    except (BadReference, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pipeline.stop())
    try:
        with pipeline:
            pipeline.run()
    except (JournalError, PipelineStopped) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app.pipeline", description=main.__doc__)
    reference = "MODULE:ATTRIBUTE"
    parser.add_argument("--agent", required=True, metavar=reference, help="the async callable")
    parser.add_argument("--provider", required=True, metavar=reference, help="makes the model client")
    parser.add_argument("--registry", default="", metavar=reference, help="the tools")
    parser.add_argument("--decode", default="", metavar=reference, help="reads token counts out of a response")
    parser.add_argument("--config", default="", metavar=reference, help="a mapping of AgentConfig arguments")
    parser.add_argument("--path", action="append", default=[], metavar="DIR", help="searched for the modules first")
    parser.add_argument("--brokers", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--topics", required=True, metavar="PREFIX", help="reads PREFIX.events, sends to PREFIX.traces")
    parser.add_argument("--kafka", action="append", default=[], metavar="NAME=VALUE", help="a librdkafka setting")
    parser.add_argument("--journal", required=True, type=Path, metavar="FILE", help="what survives a kill")
    parser.add_argument("--sync", action="store_true", help="survive the machine too: a disk write per commit")
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
