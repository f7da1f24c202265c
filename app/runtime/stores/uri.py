"""Long-term store addresses: parsed when a configuration is built, opened only in setup."""

from __future__ import annotations

import importlib
from typing import Any, Final

from app.runtime.stores.base import InMemoryMemoryStore, MemoryStore

_SEGMENTS: Final = {
    "bigtable": (3, "bigtable://project/instance/table"),
    "firestore": (2, "firestore://project/collection"),
}


def parse_memory_store_uri(uri: str, *, field: str) -> tuple[str, tuple[str, ...]]:
    """Check a store URI and split it: (scheme, parts).

    `memory` has no parts; `bigtable` and `firestore` have their path segments; `redis`, `rediss` and
    SQLAlchemy URLs have the whole URI as their one part. Raises ValueError naming the field.
    """
    scheme, found, rest = uri.partition("://")
    if not found or not scheme:
        raise ValueError(
            f"{field}={uri!r} is not a store URI; expected memory://, redis://host[:port][/db],"
            " bigtable://project/instance/table, firestore://project/collection or an async SQLAlchemy URL"
        )
    if scheme == "memory":
        if rest:
            raise ValueError(f"{field}={uri!r}: memory:// takes nothing after the slashes")
        return scheme, ()
    if scheme in _SEGMENTS:
        count, form = _SEGMENTS[scheme]
        parts = tuple(rest.split("/"))
        if len(parts) != count or not all(parts):
            raise ValueError(f"{field}={uri!r} is malformed; expected {form}")
        return scheme, parts
    if not rest:
        raise ValueError(f"{field}={uri!r} names no {scheme} server")
    return scheme, (uri,)


def build_memory_store(scheme: str, parts: tuple[str, ...]) -> MemoryStore:
    """Open the store of a parsed URI; its client is imported here and nowhere earlier.

    Raises RuntimeError naming the package that a backend lacks, ValueError for a URL that its client refuses.
    """
    if scheme == "memory":
        return InMemoryMemoryStore()
    if scheme in ("redis", "rediss"):
        from app.runtime.stores.redis import RedisMemoryStore

        return RedisMemoryStore(client_module("redis.asyncio", scheme, "redis"), *parts)
    if scheme == "bigtable":
        from app.runtime.stores.bigtable import BigtableMemoryStore

        api = client_module("google.cloud.bigtable.data", scheme, "google-cloud-bigtable")
        filters = client_module("google.cloud.bigtable.data.row_filters", scheme, "google-cloud-bigtable")
        return BigtableMemoryStore(api, filters, *parts)
    if scheme == "firestore":
        from app.runtime.stores.firestore import FirestoreMemoryStore

        return FirestoreMemoryStore(client_module("google.cloud.firestore", scheme, "google-cloud-firestore"), *parts)
    from app.runtime.stores.sql import SqlMemoryStore

    sa = client_module("sqlalchemy", scheme, "sqlalchemy[asyncio]")
    engines = client_module("sqlalchemy.ext.asyncio", scheme, "sqlalchemy[asyncio]")
    return SqlMemoryStore(sa, engines, *parts)


def client_module(module: str, scheme: str, distribution: str) -> Any:
    """Import a backend's client; raises RuntimeError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(
            f"a {scheme}:// long-term store needs the package {distribution}: install it where the pipeline runs"
        ) from error
