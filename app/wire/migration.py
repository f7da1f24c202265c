"""State schema versions: old blobs are lifted step by step, newer ones refused.

The registry is empty at version 1. Agent code may patch `CURRENT_STATE_SCHEMA_VERSION` or register
steps, so both are looked up when used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from app.wire.records_pb2 import Continuation, LlmCacheBlob, MemoryBlob

CURRENT_STATE_SCHEMA_VERSION = 1
BASELINE_VERSION: Final = 1

VERSIONED_MESSAGE_TYPES: Final[tuple[type[Message], ...]] = (MemoryBlob, Continuation, LlmCacheBlob)

M = TypeVar("M", bound=Message)
Step = Callable[[Any], Any]

_steps: dict[tuple[type[Message], int], Step] = {}


class StateMigrationError(Exception):
    """A state blob cannot be brought to the current schema version."""


class MissingMigrationError(StateMigrationError):
    """No step is registered for a version on the way up."""

    def __init__(self, message_type: type[Message], from_version: int, current_version: int) -> None:
        super().__init__(
            f"{message_type.DESCRIPTOR.name} has state schema version {from_version}, this"
            f" installation writes {current_version} and has no migration from {from_version}:"
            " register the missing step or use a release that has it"
        )
        self.message_type = message_type
        self.from_version = from_version
        self.current_version = current_version


class StateSchemaFromFutureError(StateMigrationError):
    """The blob was written by a newer schema than this installation knows."""

    def __init__(self, message_type: type[Message], found_version: int, current_version: int) -> None:
        super().__init__(
            f"{message_type.DESCRIPTOR.name} has state schema version {found_version}, this"
            f" installation reads up to {current_version}: upgrade it to read this evidence"
        )
        self.message_type = message_type
        self.found_version = found_version
        self.current_version = current_version


class MigrationStepError(StateMigrationError):
    """A step returned something other than its own type one version up."""

    def __init__(self, message_type: type[Message], from_version: int, produced_version: int) -> None:
        super().__init__(
            f"the migration of {message_type.DESCRIPTOR.name} from version {from_version}"
            f" produced version {produced_version}, not {from_version + 1}"
        )
        self.message_type = message_type
        self.from_version = from_version
        self.produced_version = produced_version


def migration(message_type: type[M], *, from_version: int) -> Callable[[Callable[[M], M]], Callable[[M], M]]:
    """Register the decorated function as the step from `from_version` to the next.

    Raises ValueError for a version below 1 or a step that is already registered.
    """
    if from_version < BASELINE_VERSION:
        raise ValueError(f"from_version starts at {BASELINE_VERSION}, not {from_version}")
    if (message_type, from_version) in _steps:
        raise ValueError(
            f"a migration of {message_type.DESCRIPTOR.name} from version {from_version} is already registered"
        )

    def register(step: Callable[[M], M]) -> Callable[[M], M]:
        _steps[message_type, from_version] = step
        return step

    return register


def version_of(message: Any) -> int:
    """The schema version a blob was written with; an absent stamp means the baseline."""
    return int(message.state_schema_version) or BASELINE_VERSION


def migrate_to_current(message: M | None) -> M | None:
    """Lift a blob to the current version; one that is there already comes back as it is.

    Raises StateSchemaFromFutureError, MissingMigrationError or MigrationStepError.
    """
    if message is None:
        return None
    kind = type(message)
    version = version_of(message)
    if version > CURRENT_STATE_SCHEMA_VERSION:
        raise StateSchemaFromFutureError(kind, version, CURRENT_STATE_SCHEMA_VERSION)
    current = message
    while version < CURRENT_STATE_SCHEMA_VERSION:
        step = _steps.get((kind, version))
        if step is None:
            raise MissingMigrationError(kind, version, CURRENT_STATE_SCHEMA_VERSION)
        lifted = step(current)
        produced = version_of(lifted) if isinstance(lifted, kind) else 0
        if produced != version + 1:
            raise MigrationStepError(kind, version, produced)
        current, version = lifted, produced
    return current
