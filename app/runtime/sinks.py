"""Sink addresses: which schemes there are, what each must hold, and which stream may go where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

BEAM_REMEDY: Final = (
    "this runtime runs single activations and hosts no Apache Beam transform; in a pipeline, install the"
    " pipeline's own beam-agents distribution instead of this stand-in"
)

_FORMS: Final = {
    "kafka": "kafka://host:port[,host:port]/topic",
    "pubsub": "pubsub://project/topic",
    "bigquery": "bigquery://project/dataset/table",
    "otlp": "otlp://host[:port]",
}
_REFUSED: Final = {"snapshots_to": ("bigquery", "otlp")}


class UnknownSinkSchemeError(ValueError):
    """No sink is known for a URI's scheme."""


@dataclass(frozen=True)
class SinkAddress:
    """A parsed sink URI: its scheme, the hosts before the first slash, and the path segments after it."""

    scheme: str
    hosts: tuple[str, ...]
    path: tuple[str, ...]


SinkResolver: TypeAlias = Callable[[str], object]


def parse_sink_uri(uri: str, *, field: str) -> SinkAddress:
    """Parse and check a sink URI for one configuration field.

    Raises UnknownSinkSchemeError for a scheme that is not known, ValueError for a malformed URI or a
    stream that such a sink cannot take; both name the field.
    """
    scheme, found, rest = uri.partition("://")
    if not found or not scheme:
        raise ValueError(f"{field}={uri!r} is not a sink URI; expected one of {', '.join(_FORMS.values())}")
    form = _FORMS.get(scheme)
    if form is None:
        raise UnknownSinkSchemeError(f"{field}={uri!r} has scheme {scheme!r}; known are {', '.join(_FORMS)}")
    if scheme in _REFUSED.get(field, ()):
        raise ValueError(f"{field}={uri!r}: a {scheme} sink cannot take this stream; use kafka or pubsub")
    head, *path = rest.split("/")
    hosts = head.split(",")
    if not _well_formed(scheme, hosts, path):
        raise ValueError(f"{field}={uri!r} is malformed; expected {form}")
    return SinkAddress(scheme, tuple(hosts), tuple(path))


def _well_formed(scheme: str, hosts: list[str], path: list[str]) -> bool:
    if not all(hosts) or not all(path):
        return False
    if scheme == "kafka":
        return len(path) == 1 and all(_has_port(host) for host in hosts)
    if len(hosts) != 1:
        return False
    if scheme == "otlp":
        return not path and (":" not in hosts[0] or _has_port(hosts[0]))
    return len(path) == (1 if scheme == "pubsub" else 2)


def _has_port(host: str) -> bool:
    name, _, port = host.rpartition(":")
    return bool(name) and port.isdecimal() and 0 < int(port) < 65536


class DefaultSinkResolver:
    """Turns a sink URI into a Beam sink; here it knows the addresses and says where the sinks are."""

    def __call__(self, uri: str) -> NoReturn:
        """Raises ValueError for a malformed URI, otherwise RuntimeError: there is no Beam here."""
        address = parse_sink_uri(uri, field="sink")
        raise RuntimeError(f"a {address.scheme} sink needs Apache Beam: {BEAM_REMEDY}")
