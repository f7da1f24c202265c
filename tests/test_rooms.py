"""The contract on imports catches what it is there to catch."""

import pytest
from grimp import ImportGraph

from scripts.import_rooms import RoomsContract


@pytest.fixture
def graph() -> ImportGraph:
    """Three rooms and two third-party packages that import nothing yet."""
    graph = ImportGraph()
    for module in (
        "app",
        "app.wire",
        "app.wire.frames",
        "app.jobs",
        "app.jobs.queue",
        "app.jobs.work",
        "app.web",
        "app.web.pages",
    ):
        graph.add_module(module)
    for package in ("google", "sqlalchemy", "json"):
        graph.add_module(package, is_squashed=True)
    return graph


def problems(graph: ImportGraph) -> list[str]:
    """Check the graph against a small table."""
    contract = RoomsContract(
        name="rooms",
        session_options={"root_packages": ["app"]},
        contract_options={
            "rooms": ["wire:", "jobs: wire", "web: jobs.queue"],
            "packages": ["wire: google"],
            "owners": ["sqlalchemy: jobs.work"],
        },
    )
    found: list[str] = contract.check(graph, verbose=False).metadata["problems"]
    return found


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("app.wire.frames", "app.wire"),
        ("app.wire.frames", "app"),
        ("app.wire.frames", "google"),
        ("app.wire.frames", "json"),
        ("app.jobs.work", "app.wire.frames"),
        ("app.web.pages", "app.jobs.queue"),
        ("app.web.pages", "app.jobs"),
        ("app.jobs.work", "sqlalchemy"),
    ],
)
def test_allowed(graph: ImportGraph, importer: str, imported: str) -> None:
    """What the table names, the standard library and the room itself pass."""
    graph.add_import(importer=importer, imported=imported, line_number=3, line_contents="-")
    assert problems(graph) == []


@pytest.mark.parametrize(
    ("importer", "imported", "reason"),
    [
        ("app.wire.frames", "app.jobs", "wire may import no other room"),
        ("app.web.pages", "app.wire.frames", "web may import jobs.queue"),
        ("app.web.pages", "app.jobs.work", "web may import jobs.queue"),
        ("app.wire.frames", "sqlalchemy", "of third-party packages, wire may import google"),
        ("app.jobs.queue", "sqlalchemy", "sqlalchemy is imported only in jobs.work"),
    ],
)
def test_refused(graph: ImportGraph, importer: str, imported: str, reason: str) -> None:
    """Anything else is named with its line and the rule it breaks."""
    graph.add_import(importer=importer, imported=imported, line_number=3, line_contents="-")
    assert problems(graph) == [f"{importer} (line 3) imports {imported}, but {reason}"]


def test_table_and_code_name_the_same_rooms(graph: ImportGraph) -> None:
    """A new room has to be written down, and a room that is gone has to be struck out."""
    graph.add_module("app.flink")
    graph.remove_module("app.wire")
    assert problems(graph) == [
        "app.wire is in the table, but not in the code",
        "app.flink belongs to no room of the table",
    ]
