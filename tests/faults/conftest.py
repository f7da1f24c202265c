"""A broker, and a running world around it, for whoever breaks them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.broker import EmbeddedBroker
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.jobs.live import World


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


@pytest.fixture
def world(broker: EmbeddedBroker, database: Database, store: Store, tmp_path: Path) -> World:
    return World.make(broker, database, store, tmp_path)
