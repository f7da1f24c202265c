"""The import-linter contract on rooms: each names all that it may import, and nothing else passes.

The built-in contracts list what is forbidden, so a new room or a new dependency slips through until someone adds
it. Here it is the other way round: what is not written down breaks the build.
"""

import sys
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class RoomsContract(Contract):
    """Each line of `rooms` reads `room: rooms it may import`; `anything` stands for every room.

    A name with a dot opens one module of a room and the room's own `__init__`, but not the rest of it.
    Each line of `packages` reads `room: third-party packages it may import`; a room without a line is free there.
    Each line of `owners` reads `third-party package: modules that alone may import it`.
    """

    rooms = fields.ListField(subfield=fields.StringField())
    packages = fields.ListField(subfield=fields.StringField(), required=False)
    owners = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at every direct import of every module."""
        rooms, packages, owners = map(_table, (self.rooms, self.packages, self.owners))
        root = self.session_options["root_packages"][0]
        problems = [
            f"{root}.{room} is in the table, but not in the code"
            for room in rooms
            if f"{root}.{room}" not in graph.modules
        ]
        for importer in sorted(graph.modules):
            if graph.is_module_squashed(importer) or importer == root:
                continue
            room = importer.split(".")[1]
            if room not in rooms:
                problems.append(f"{importer} belongs to no room of the table")
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if imported.split(".")[0] == root:
                    reason = _refuse_room(room, imported, rooms)
                else:
                    reason = _refuse_package(importer, room, imported, packages, owners, root)
                if reason:
                    problems.append(_describe(graph, importer, imported, reason))
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each import that the table does not allow."""
        for problem in check.metadata["problems"]:
            output.print_error(problem, bold=False)


def _table(lines: Any) -> dict[str, list[str]]:
    pairs = (line.split(":", 1) for line in lines or ())
    return {name.strip(): allowed.split() for name, allowed in pairs}


def _refuse_room(room: str, imported: str, rooms: dict[str, list[str]]) -> str:
    _, *path = imported.split(".")
    if not path or path[0] == room or "anything" in rooms[room]:
        return ""
    for allowed in rooms[room]:
        wanted = allowed.split(".")
        if path[: len(wanted)] == wanted or path == wanted[:1]:
            return ""
    return f"{room} may import {', '.join(rooms[room]) or 'no other room'}"


def _refuse_package(
    importer: str, room: str, imported: str, packages: dict[str, list[str]], owners: dict[str, list[str]], root: str
) -> str:
    package = imported.split(".")[0]
    if package in sys.stdlib_module_names:
        return ""
    if room in packages and package not in packages[room]:
        return f"of third-party packages, {room} may import {', '.join(packages[room]) or 'none'}"
    if package in owners and not any(f"{importer}.".startswith(f"{root}.{owner}.") for owner in owners[package]):
        return f"{package} is imported only in {', '.join(owners[package])}"
    return ""


def _describe(graph: ImportGraph, importer: str, imported: str, reason: str) -> str:
    details = graph.get_import_details(importer=importer, imported=imported)
    lines = ", ".join(str(detail["line_number"]) for detail in details) or "?"
    return f"{importer} (line {lines}) imports {imported}, but {reason}"
