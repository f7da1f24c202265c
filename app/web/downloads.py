"""Answers with bytes that the browser keeps as a file and never shows."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response


def download(data: bytes, name: str, media_type: str) -> Response:
    """A response that saves as `name`; the name may be anything a record or an upload said."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name) or "file"
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, errors='replace')}"
    }
    return Response(data, media_type=media_type, headers=headers)
