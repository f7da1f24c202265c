"""The example's support desk at work: an in-process broker, the command of its pipeline, and its tickets.

The broker forgets everything when it ends, so each start is a new desk: its topics are made anew, and so is what its
pipeline remembers. The console forgets what it collected of the former desk, whose keys began at seq 0 as well; what
was opened before stays, with its evidence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from app import resource
from app.demo.broker import EmbeddedBroker
from app.demo.traffic import PIPELINE, TOPICS, Traffic

_DAYS: Final = (
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent"
    " WHERE p.relnamespace = to_regnamespace(current_schema())"
    " AND p.relname IN ('segments', 'attempts', 'keyed_records', 'undecodable', 'snapshots')"
)
_CLOSE: Final = "UPDATE incidents SET collect_until = NULL WHERE pipeline = %s AND collect_until IS NOT NULL"


def example() -> Path:
    """Where the example lies: its two builds, its `hindcast.toml`, and its evidence."""
    return resource("examples") / "refunds"


class Desk:
    """A broker with the desk's topics and tickets from `start` to `stop`; `folder` keeps what it needs meanwhile."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder = folder
        self._config = config
        self._journal = folder / "refunds.journal"
        self._broker = EmbeddedBroker(TOPICS)
        self._traffic: Traffic | None = None

    @staticmethod
    def forget_former(owner_url: str) -> None:
        """Drop what was collected of the former desk, and let nothing of the new one become evidence about it."""
        with psycopg.connect(owner_url) as connection:
            for (name,) in connection.execute(_DAYS).fetchall():
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
            connection.execute(_CLOSE, (PIPELINE,))

    def start(self) -> Path:
        """Open the broker and send the story; returns the configuration that names the broker's address."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal.unlink(missing_ok=True)
        self._broker.start()
        self._traffic = Traffic(self._broker.address)
        self._traffic.tell()
        placed = self._folder / "hindcast.toml"
        placed.write_text(_placed(self._config, self._broker.address))
        return placed

    def command(self) -> Sequence[str]:
        """Module and arguments of the pipeline's process: the build of the night, on the broker."""
        references = (("agent", "AGENT"), ("provider", "make_provider"), ("registry", "TOOLS"), ("decode", "decode"))
        told = [f"--{name}=refunds.agent:{attribute}" for name, attribute in (*references, ("config", "CONFIG"))]
        places = [f"--path={example() / 'v1'}", f"--brokers={self._broker.address}", f"--journal={self._journal}"]
        return ["app.pipeline", *told, *places, "--topics=refunds", "--log-level=error"]

    def tick(self) -> None:
        """Send the next ticket when it is time for one."""
        if self._traffic is not None:
            self._traffic.tick()

    def stop(self) -> None:
        """Close the broker; what was in its topics is gone."""
        if self._traffic is not None:
            self._traffic.stop()
        self._broker.stop()


def _placed(config: Path, address: str) -> str:
    """The example's configuration with the broker's address in it, for a file that lies elsewhere."""
    text = config.read_text()
    text = re.sub(r"(?m)^brokers = .*$", f'brokers = ["{address}"]', text)
    return re.sub(r'(?m)^paths = \["(.+)"\]$', lambda found: f'paths = ["{config.parent / found[1]}"]', text)
