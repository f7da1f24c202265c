"""Short-term and sensory memory of one key, as Flink keeps them: values by path, copied in and out.

The framework's own objects mirror Flink state; these hold a tree. On the wire a tree is `["o", {name: tree}]` for an
object and `["v", value]` for a value.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from flink_agents.api.memory_object import MemoryObject, MemoryType, validate_memory_value
from flink_agents.api.memory_reference import MemoryRef

_NESTED: Final = "NestedObject"  # what the framework shows of an object among fields
_ABSENT: Final = object()
WHOLE: Final = "*"  # a read of all names


class Branch(dict[str, Any]):
    """An object of the tree; a plain mapping is a value."""


class Store:
    """One memory of one key; `reads` are paths that were read and that the current input had not written."""

    def __init__(self) -> None:
        self.root = Branch()
        self.reads: dict[str, None] = {}
        self._written: set[str] = set()

    def begin(self) -> None:
        """A new input begins."""
        self.reads, self._written = {}, set()

    def load(self, wire: list[Any]) -> None:
        """Take over a whole memory."""
        loaded = _from_wire(wire)
        self.root = loaded if isinstance(loaded, Branch) else Branch()

    def dump(self) -> list[Any]:
        """The whole memory, for the wire."""
        return _to_wire(self.root)

    def read(self, path: str) -> Any:
        """What is at a path, `_ABSENT` where nothing is; noted as read."""
        if not any(path == own or path.startswith(f"{own}.") for own in self._written):
            self.reads[path or WHOLE] = None
        return self.look(path)

    def look(self, path: str) -> Any:
        """The same without a note; a path leads into a value that is a mapping as well."""
        here: Any = self.root
        for name in path.split(".") if path else ():
            if not isinstance(here, dict) or name not in here:
                return _ABSENT
            here = here[name]
        return here

    def put(self, path: str, what: Any) -> None:
        """Set an object or a value, and make the objects on the way to it."""
        *way, name = path.split(".")
        here = self.root
        for step in way:
            if not isinstance(here.get(step), Branch):
                here[step] = Branch()
            here = here[step]
        here[name] = what
        self._written.add(path)


class Memory(MemoryObject):
    """An object of a memory as agent code sees it; the root is at the empty path."""

    def __init__(self, kind: MemoryType, store: Store, prefix: str = "") -> None:
        super().__init__()
        self._kind = kind
        self._store = store
        self._prefix = prefix

    def get(self, path_or_ref: Any) -> Any:
        path = path_or_ref.path if isinstance(path_or_ref, MemoryRef) else self._full(path_or_ref)
        found = self._store.read(path)
        if found is _ABSENT:
            return None
        return Memory(self._kind, self._store, path) if isinstance(found, Branch) else copy.deepcopy(found)

    def set(self, path: str, value: Any) -> Any:
        if isinstance(value, MemoryObject):
            raise TypeError("a memory object cannot be set as a value; use new_object()")
        validate_memory_value(path, value)
        full = self._full(path)
        if isinstance(self._store.look(full), Branch):
            raise ValueError(f"{full!r} is an object of the memory and cannot be overwritten with a value")
        self._store.put(full, copy.deepcopy(value))
        return MemoryRef(memory_type=self._kind, path=full)

    def new_object(self, path: str, *, overwrite: bool = False) -> Memory:
        full = self._full(path)
        there = self._store.look(full)
        if there is not _ABSENT and not isinstance(there, Branch) and not overwrite:
            raise ValueError(f"{full!r} is a value of the memory and no object")
        self._store.put(full, Branch())
        return Memory(self._kind, self._store, full)

    def is_exist(self, path: str) -> bool:
        return self._store.read(self._full(path)) is not _ABSENT

    def get_field_names(self) -> list[str]:
        return sorted(self._fields())

    def get_fields(self) -> dict[str, Any]:
        return {
            name: _NESTED if isinstance(held, Branch) else copy.deepcopy(held)
            for name, held in sorted(self._fields().items())
        }

    def _fields(self) -> dict[str, Any]:
        found = self._store.read(self._prefix)
        return found if isinstance(found, Branch) else {}

    def _full(self, path: str) -> str:
        if not path:
            return self._prefix
        return f"{self._prefix}.{path}" if self._prefix else path


def _to_wire(what: Any) -> list[Any]:
    if isinstance(what, Branch):
        return ["o", {name: _to_wire(inner) for name, inner in sorted(what.items())}]
    return ["v", copy.deepcopy(what)]


def _from_wire(wire: list[Any]) -> Any:
    kind, held = wire
    return copy.deepcopy(held) if kind == "v" else Branch((name, _from_wire(inner)) for name, inner in held.items())
