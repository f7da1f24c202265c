"""Logging in at an OpenID Connect provider: authorization code with PKCE, nonce and state, by way of Authlib.

Where requests go is said by the configuration (the issuer) and by the issuer's own document, never by a browser. What
the document says is held to the issuer: the same name, encrypted addresses, signatures that can be checked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import RedirectResponse

from app.web.config import Oidc, WebSettings

if TYPE_CHECKING:
    from authlib.integrations.starlette_client import StarletteOAuth2App

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
_LEEWAY_S: Final = 60
# Signed by a key that the provider alone has: not `none`, and nothing made with a secret that both know.
_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
_CALLED: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint", "end_session_endpoint")
_NEEDED: Final = _CALLED[:3]


class ProviderError(Exception):
    """The provider cannot be used, or did not vouch for the person; the text is for the log and the audit trail."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the provider says of somebody who logged in."""

    person: str
    shown_as: str
    groups: tuple[str, ...]
    id_token: str


class Provider:
    """The one provider of this console. Its document is read at the first log-in, so that a start does not need it."""

    def __init__(self, told: Oidc, secret: str | None, base: str) -> None:
        self.told = told
        self.callback = f"{base}/login/callback"
        self.home = f"{base}/enter"
        self._secret = secret
        self._made: StarletteOAuth2App | None = None

    @classmethod
    def of(cls, settings: WebSettings) -> Provider | None:
        """The provider of the configuration; None where people enter in another way."""
        if settings.access.mode != "oidc" or settings.access.oidc is None:
            return None
        return cls(settings.access.oidc, settings.client_secret, settings.public_url or "")

    async def redirect(self, request: Request) -> RedirectResponse:
        """Send a browser to the provider; what must come back lies in `request.session`. Raises `ProviderError`."""
        client = await self._client()
        answer: RedirectResponse = await client.authorize_redirect(request, self.callback)
        return answer

    async def finish(self, request: Request) -> Known:
        """Take somebody who comes back from the provider. Raises `ProviderError`."""
        from authlib.integrations.base_client import OAuthError
        from joserfc.errors import JoseError

        client = await self._client()
        issuer = request.query_params.get("iss")
        if issuer is not None and issuer != self.told.issuer:  # RFC 9207
            raise ProviderError(f"the answer comes from another issuer: {issuer!r}")
        claims_options = {
            "iss": {"essential": True, "value": self.told.issuer},
            "aud": {"essential": True, "value": self.told.client_id},
        }
        try:
            token = await client.authorize_access_token(request, claims_options=claims_options, leeway=_LEEWAY_S)
            claims = dict(token.get("userinfo") or {})
            if not claims:
                raise ProviderError("the answer holds no ID token")
            more = await self._userinfo(client, token, claims)
        except (OAuthError, JoseError, ValueError, KeyError) as error:
            raise ProviderError(f"{type(error).__name__}: {error}") from error
        except _http_errors() as error:
            raise ProviderError(f"the provider does not answer: {type(error).__name__}") from error
        return self._known({**more, **claims}, str(token["id_token"]))

    async def logout_url(self, id_token: str | None) -> str | None:
        """Where the provider's own session is ended; None where it offers no such place, or does not answer."""
        try:
            client = await self._client()
            if "end_session_endpoint" not in client.server_metadata:
                return None
            made = await client.create_logout_url(
                post_logout_redirect_uri=self.home, id_token_hint=id_token, client_id=self.told.client_id
            )
        except ProviderError as error:
            log.warning("the provider's log-out is not known: %s", error)
            return None
        return str(made["url"])

    async def _userinfo(
        self, client: StarletteOAuth2App, token: dict[str, Any], claims: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Ask for what the ID token does not hold, where the provider has a place for it."""
        wanted = {self.told.groups_claim, self.told.user_claim}
        if wanted <= set(claims) or "userinfo_endpoint" not in client.server_metadata:
            return {}
        more = dict(await client.userinfo(token=token))
        if more.get("sub") != claims.get("sub"):
            raise ProviderError("the user info is about somebody else than the ID token")
        return more

    def _known(self, claims: Mapping[str, Any], id_token: str) -> Known:
        person = claims.get(self.told.user_claim)
        if not isinstance(person, str) or not person:
            raise ProviderError(f"the claim {self.told.user_claim!r} (access.oidc.user_claim) is missing")
        if self.told.user_claim == "email" and claims.get("email_verified") is not True:
            raise ProviderError("the provider does not vouch for the e-mail address (email_verified)")
        groups = claims.get(self.told.groups_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise ProviderError(f"the claim {self.told.groups_claim!r} (access.oidc.groups_claim) is no list of names")
        names = (claims.get(name) for name in ("name", "preferred_username", "email"))
        shown_as = next((name for name in names if isinstance(name, str) and name.strip()), person)
        return Known(person, shown_as[:100], tuple(groups), id_token)

    async def _client(self) -> StarletteOAuth2App:
        if self._made is None:
            self._made = self._make()
        try:
            metadata = await self._made.load_server_metadata()
        except _http_errors() as error:
            raise ProviderError(f"the document of {self.told.issuer} cannot be read: {type(error).__name__}") from error
        if "_checked" not in metadata:
            try:
                _check(metadata, self.told.issuer)
            except ProviderError:
                self._made = None  # it is read anew next time
                raise
            metadata["_checked"] = True
        return self._made

    def _make(self) -> StarletteOAuth2App:
        from authlib.integrations.starlette_client import OAuth

        options: dict[str, Any] = {
            "scope": " ".join(self.told.scopes),
            "code_challenge_method": "S256",
            "timeout": TIMEOUT_S,
            "follow_redirects": False,
        }
        if self._secret is None:
            options["token_endpoint_auth_method"] = "none"  # noqa: S105  a method, no secret
        made: StarletteOAuth2App = OAuth().register(
            "provider",
            client_id=self.told.client_id,
            client_secret=self._secret,
            server_metadata_url=f"{self.told.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs=options,
        )
        return made


def _check(metadata: dict[str, Any], issuer: str) -> None:
    """Hold the provider's document to what we rely on. Raises `ProviderError`."""
    if metadata.get("issuer") != issuer:
        raise ProviderError(f"the document of {issuer} is of another issuer: {metadata.get('issuer')!r}")
    for name in _CALLED:
        address = metadata.get(name)
        if address is None and name not in _NEEDED:
            continue
        scheme = urlsplit(str(address)).scheme
        if scheme != "https" and not (scheme == "http" and issuer.startswith("http:")):
            raise ProviderError(f"{name} of {issuer} is no encrypted address: {address!r}")
    offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
    algorithms = [name for name in offered if name in _ALGORITHMS]
    if not algorithms:
        raise ProviderError(f"{issuer} signs in no way that can be checked: {offered!r}")
    metadata["id_token_signing_alg_values_supported"] = algorithms


def _http_errors() -> tuple[type[Exception], ...]:
    import httpx

    return (httpx.HTTPError, httpx.InvalidURL, ValueError)  # a document that is no JSON
