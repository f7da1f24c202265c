"""Where a request comes from: the address that connects, or behind a proxy that is believed, the one that it names."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxies:
    """The proxies of the configuration: addresses, or networks of them."""

    def __init__(self, told: Sequence[str]) -> None:
        self._networks: list[Network] = [ipaddress.ip_network(one, strict=False) for one in told]

    def holds(self, host: str) -> bool:
        """Whether this is the address of a proxy that is believed."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    def place(self, scope: Scope, headers: Headers) -> bool:
        """Put into `scope` where the request really comes from; returns whether a proxy that is believed sent it."""
        client = scope.get("client")
        if client is None or not self.holds(client[0]):
            return False
        scope["client"] = (self._origin(headers, client[0]), 0)
        # Several proxies in a row each add theirs; the last one is the one that we believe.
        scheme = headers.getlist("x-forwarded-proto")[-1:]
        if scheme and scheme[0].rpartition(",")[2].strip().lower() in ("http", "https"):
            scope["scheme"] = scheme[0].rpartition(",")[2].strip().lower()
        return True

    def _origin(self, headers: Headers, peer: str) -> str:
        """The last address that no proxy of ours is; whatever stands before it may be made up."""
        named = [part.strip() for value in headers.getlist("x-forwarded-for") for part in value.split(",")]
        origin = peer
        for one in reversed(named):
            try:
                origin = str(ipaddress.ip_address(one))
            except ValueError:
                break
            if not self.holds(origin):
                break
        return origin
