"""`[access]`: how people prove who they are, and which role each has in which pipeline."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from app.incidents.roles import Role
from app.settings.base import Section, SettingsError

_HEADER = r"^[A-Za-z][A-Za-z0-9-]{0,63}$"


class SecretPlace(Section):
    """Where a secret is kept: `{ env = "NAME" }` or `{ file = "path" }`."""

    env: str | None = Field(None, description="Environment variable that holds it.", pattern=r"^[A-Za-z_]\w*$")
    file: Path | None = Field(None, description="File that holds it; a line end at its end does not count.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError('a secret is given by reference: either { env = "NAME" } or { file = "path" }')
        return self

    def read(self, setting: str, base: Path, environment: Mapping[str, str] | None = None) -> str:
        """Fetch the secret itself. Raises `SettingsError` that names the setting and the place, never the content."""
        if self.env is not None:
            value = (os.environ if environment is None else environment).get(self.env, "")
            place = f"the environment variable {self.env}"
        else:
            path = base / (self.file or Path()).expanduser()
            place = f"the file {path}"
            try:
                value = path.read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError):
                value = ""
        if not value:
            raise SettingsError(f"{setting} is to come from {place}, which is missing, unreadable or empty")
        return value


class Oidc(Section):
    """The OpenID Connect provider that people log in at."""

    issuer: str = Field(description="The provider's issuer; `/.well-known/openid-configuration` is found below it.")
    client_id: str = Field(description="Under which id the provider knows this console.", min_length=1)
    client_secret: SecretPlace | None = Field(
        None, description="The client's secret, by reference; without it the client is public and PKCE alone protects."
    )
    scopes: tuple[str, ...] = Field(
        ("openid", "profile", "email"), description="What is asked for; some providers need `groups` as well."
    )
    groups_claim: str = Field("groups", description="Claim that lists a person's groups.", min_length=1)
    user_claim: str = Field(
        "sub", description="Claim that names a person, in `access.roles` and the audit trail; must not be reusable."
    )

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        parts = urlsplit(value)
        if not parts.hostname or parts.query or parts.fragment or parts.username or parts.scheme not in _WEB:
            raise ValueError(f"{value!r} is not an issuer such as https://id.example.org")
        if parts.scheme != "https" and not is_loopback(parts.hostname):
            raise ValueError(f"the issuer {value!r} is not https: what it says could be forged on the way")
        return value

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in value:
            raise ValueError("openid is missing: without it the provider does not say who somebody is")
        return value


class Proxy(Section):
    """The headers by which a proxy in front says who somebody is; only `console.proxies` are believed."""

    user_header: str = Field(
        "X-Forwarded-User", description="Header that names the person; the proxy must remove it from what it is sent.",
        pattern=_HEADER,
    )  # fmt: skip
    groups_header: str = Field("X-Forwarded-Groups", description="Header that lists their groups.", pattern=_HEADER)
    separator: str = Field(",", description="What stands between two groups.", min_length=1, max_length=4)
    logout_url: str | None = Field(None, description="Where *leave* leads: the proxy's own address for logging out.")


class RoleRule(Section):
    """Gives a role in some pipelines to some people."""

    role: Role = Field(description="`viewer`, `responder` or `admin`; each may what the one before it may.")
    groups: tuple[str, ...] = Field((), description="Groups whose members have it, as the provider or proxy tells.")
    users: tuple[str, ...] = Field((), description="People who have it, by name.")
    pipelines: tuple[str, ...] = Field(
        description='Names of pipelines, or of `access.files_scope`; `"*"` stands for all.', min_length=1
    )

    @model_validator(mode="after")
    def _is_for_somebody(self) -> Self:
        if not self.groups and not self.users:
            raise ValueError("the rule gives its role to nobody: name groups or users")
        return self


class Access(Section):
    """How people prove who they are, and what each may do."""

    mode: Literal["token", "oidc", "proxy"] | None = Field(
        None,
        description="`token` (the start-up token: one person alone), `oidc` or `proxy`. Without it `token`, and only"
        " on a loopback address.",
    )
    files_scope: str = Field(
        "files",
        description="Under which name incidents from files, which are of no pipeline, stand in roles and tokens.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    session_hours: float = Field(12.0, description="Hours after which somebody has to log in again.", gt=0, le=720)
    oidc: Oidc | None = Field(None, description="The provider; needed where `mode` is `oidc`.")
    proxy: Proxy = Field(Proxy(), description="The headers; used where `mode` is `proxy`.")
    roles: tuple[RoleRule, ...] = Field((), description="Who has which role; needed where `mode` is not `token`.")


def problem_of(access: Access, host: str, url: str | None, proxies: tuple[str, ...]) -> str | None:
    """Why a console with these settings must not start; None where it may. Names the setting and the remedy."""
    if access.mode is None and not is_loopback(host):
        return (
            f"console.host {host!r} can be reached from other machines, and access.mode is not set; set access.mode"
            ' to "oidc" or "proxy", so that everybody is known by name, or to "token", if one person alone uses it'
            " (then let a proxy add TLS). docs/access.md shows each"
        )
    if access.mode == "oidc" and access.oidc is None:
        return 'access.mode is "oidc", and no provider is named; add [access.oidc] with issuer and client_id'
    if access.mode == "oidc" and url is None:
        return (
            'access.mode is "oidc", and console.url is not set: the provider has to send people back to it; set it to'
            " the address under which browsers reach the console"
        )
    if access.mode == "oidc" and (parts := urlsplit(url or "")).scheme != "https" and not is_loopback(parts.hostname):
        return f"console.url {url!r} is not https: sessions could be stolen on the way; let a proxy add TLS"
    if access.mode == "proxy" and not proxies:
        return (
            'access.mode is "proxy", and console.proxies is empty: nobody could be believed; name the addresses from'
            " which the proxy connects"
        )
    if access.mode in ("oidc", "proxy") and not access.roles:
        return f'access.mode is "{access.mode}", and nobody has a role; add [[access.roles]]'
    return None


def is_loopback(host: str | None) -> bool:
    """Whether nobody but this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def network(value: str) -> str:
    """Check an address or a network of addresses. Raises `ValueError`."""
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError as error:
        raise ValueError(f"{value!r} is not an address such as 10.0.0.5, nor a network such as 10.0.0.0/24") from error
    if re.fullmatch(r"(0\.0\.0\.0|::)/0", value):
        raise ValueError(f"{value!r} is every address there is: anybody could say who they are")
    return value


_WEB = ("http", "https")
