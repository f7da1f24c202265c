"""The start-up token: for one person alone, who may do everything."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import Final

from app.web.access import ALL, Principal

SESSION_S: Final = 7 * 24 * 3600


class Keeper:
    """Knows the token and signs sessions with a key made of it, so that a new token ends all old sessions."""

    def __init__(self, token: str, files_scope: str = "files") -> None:
        if not token:
            raise ValueError("the console needs a start-up token: leave HINDCAST_TOKEN unset to get a random one")
        self._token = token.encode()
        self._files_scope = files_scope
        self._key = hmac.digest(self._token, b"hindcast session", "sha256")
        # Consoles on one machine share the host name and so the cookie jar; each takes a name of its own.
        self.cookie = f"hindcast_{self._sign('cookie name')[:8]}"

    def is_token(self, offered: str) -> bool:
        """Compare in constant time; both sides are hashed first, so not even the length shows."""
        digest = hashlib.sha256(offered.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(digest, hashlib.sha256(self._token).digest())

    def open_session(self, now_s: float | None = None) -> str:
        """Make the cookie value of a fresh session."""
        body = f"{int(time.time() if now_s is None else now_s)}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign('session', body)}"

    def principal(self, cookie: str, now_s: float | None = None) -> Principal | None:
        """The person behind a cookie; None when it is not ours, was changed, or is too old."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        age = (time.time() if now_s is None else now_s) - int(body.partition(".")[0])
        if not -60 <= age <= SESSION_S:
            return None
        return Principal("operator", ALL, self._sign("csrf", body), self._files_scope)

    def bearer(self, offered: str) -> Principal | None:
        """The script behind a token; None when it is another."""
        return Principal("script", ALL, None, self._files_scope) if self.is_token(offered) else None

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._key, "\0".join(parts).encode(), "sha256").hexdigest()
