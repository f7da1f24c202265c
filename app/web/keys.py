"""Keys of this installation, derived from the one that its database holds: for cookies, forms and digests."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

from app.incidents import logins
from app.incidents.store import Store

_LOGIN_S: Final = 600  # how long somebody may take at the provider


class Keys:
    """Loaded once when the process starts; until then nothing can be signed."""

    def __init__(self) -> None:
        self._key: bytes | None = None

    async def load(self, store: Store) -> None:
        async with store.write() as session:
            self._key = await logins.console_key(session)

    @property
    def viewers(self) -> bytes:
        """Makes the digests that viewers see."""
        return self.derived("viewers")

    @property
    def previews(self) -> bytes:
        """Makes the digests of previews, which mean nothing in the share that is made of one."""
        return self.derived("previews")

    def derived(self, purpose: str) -> bytes:
        if self._key is None:
            raise RuntimeError("the keys of this installation are not loaded yet")
        return hmac.digest(self._key, purpose.encode(), "sha256")

    def csrf(self, session: str) -> str:
        """What forms of a session carry; `session` is whatever stays the same while it lasts."""
        return hmac.new(self.derived("csrf"), session.encode("utf-8", "surrogatepass"), "sha256").hexdigest()

    def sealed(self, purpose: str, value: str) -> str:
        """A value for a cookie, signed: one that was made up costs no look into the database."""
        return f"{value}.{self._signature(purpose, value)}"

    def unsealed(self, purpose: str, cookie: str) -> str | None:
        """The value of a cookie that we signed; None for any other."""
        value, _, signature = cookie.rpartition(".")
        offered = signature.encode("utf-8", "surrogatepass")
        return value if hmac.compare_digest(offered, self._signature(purpose, value).encode()) else None

    def packed(self, content: dict[str, Any]) -> str:
        """What a browser keeps for us while its person is at the provider: signed, and of use for ten minutes."""
        body = urlsafe_b64encode(json.dumps([int(time.time()), content]).encode()).decode().rstrip("=")
        return self.sealed("login", body)

    def unpacked(self, cookie: str) -> dict[str, Any]:
        """Read it again; empty when it is not ours, was changed, or is too old."""
        body = self.unsealed("login", cookie)
        if body is None:
            return {}
        made, content = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return content if isinstance(content, dict) and -60 <= time.time() - made <= _LOGIN_S else {}

    def _signature(self, purpose: str, value: str) -> str:
        text = f"{purpose}\0{value}".encode("utf-8", "surrogatepass")
        return hmac.new(self.derived("cookies"), text, "sha256").hexdigest()
