"""The console of the web's tests, for whoever watches over it."""

from tests.web.conftest import app, settings

__all__ = ["app", "settings"]
