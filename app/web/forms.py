"""Reads form bodies as they stream in: files go to disk while they are measured, so size never becomes memory.

The framework's own form parser keeps every byte it is sent. This one stops keeping a file at its limit but reads on,
so that one file too large is a message beside that file and not a broken connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.web.config import MIB
from app.web.formats import size
from app.web.problems import Problem, Refused

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks


BUNDLE: Final = "bundle"  # the part that holds a whole import


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of an upload is kept (per file, in all) and how much is read at most, in bytes."""

    file: int = 64 * MIB
    kept: int = 256 * MIB
    request: int = 1024 * MIB
    text: int = 256 * 1024
    parts: int = 500

    def of(self, part: str) -> int:
        """The limit of one part: a bundle holds all files of an import, and a little of its own."""
        return self.kept + MIB if part == BUNDLE else self.file


DEFAULT_LIMITS: Final = Limits()


@dataclass(slots=True)
class Upload:
    """One file of a form. `size` counts what was sent; `too_large` tells that its bytes were not kept."""

    part: str
    name: str
    size: int = 0
    too_large: bool = False
    _file: SpooledTemporaryFile[bytes] | None = None
    _hash: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return str(self._hash.hexdigest())

    def add(self, chunk: bytes) -> None:
        if self._file is None:
            self._file = SpooledTemporaryFile(max_size=MIB)  # noqa: SIM115  closed with the form
        self._file.write(chunk)
        self._hash.update(chunk)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> bytes:
        """All bytes, once more in memory; only for what is within the limit."""
        if self.too_large or self._file is None:
            return b""
        self._file.seek(0)
        return self._file.read()


@dataclass(slots=True)
class Form:
    """A form's texts (all values of each field, in order) and files."""

    values: dict[str, list[str]] = field(default_factory=dict)
    uploads: list[Upload] = field(default_factory=list)

    def value(self, name: str) -> str | None:
        """The last value of a field."""
        return self.values[name][-1] if name in self.values else None

    def close(self) -> None:
        for upload in self.uploads:
            upload.close()


async def read_form(request: Request, limits: Limits | None = None) -> Form:
    """Read the request's form, once: later calls get the same object. Raises `Refused` with 400, 413 or 415."""
    known = request.scope.get("hindcast.form")
    if known is not None:
        return cast(Form, known)
    limits = limits or request.app.state.limits
    media, options = parse_options_header(request.headers.get("content-type"))
    if media == b"multipart/form-data":
        form = await _read_multipart(request, options.get(b"boundary", b""), limits)
    elif media == b"application/x-www-form-urlencoded":
        form = await _read_urlencoded(request, limits)
    else:
        raise Refused(_wrong_type(media.decode("latin-1")))
    request.scope["hindcast.form"] = form
    return form


async def body_of(request: Request, limit: int) -> bytes:
    """Read a small body whole. Raises `Refused` with 413 as soon as it is larger than `limit` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Refused(_too_large(f"the body is larger than {size(limit)}", f"at most {size(limit)}"))
    return bytes(body)


async def _read_urlencoded(request: Request, limits: Limits) -> Form:
    text = (await body_of(request, limits.text)).decode("utf-8", "replace")
    form = Form()
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=limits.parts)
    except ValueError as error:
        raise Refused(_malformed(f"the form has more than {limits.parts} fields")) from error
    for name, value in pairs:
        form.values.setdefault(name, []).append(value)
    return form


async def _read_multipart(request: Request, boundary: bytes, limits: Limits) -> Form:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limits.request:
        raise Refused(_request_too_large(limits))
    if not boundary:
        raise Refused(_malformed("the Content-Type header names no boundary"))
    reader = _Reader(limits)
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        await _feed(parser, request.stream(), limits)
        parser.finalize()
    except FormParserError as error:
        reader.form.close()
        raise Refused(_malformed(str(error))) from error
    except BaseException:
        reader.form.close()
        raise
    if not reader.ended:
        reader.form.close()
        raise Refused(_malformed("the body ends before its last part does"))
    return reader.form


async def _feed(parser: MultipartParser, chunks: AsyncIterator[bytes], limits: Limits) -> None:
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > limits.request:
            raise Refused(_request_too_large(limits))
        parser.write(chunk)


class _Reader:
    """Collects what the multipart parser calls out."""

    def __init__(self, limits: Limits) -> None:
        self.form = Form()
        self.ended = False
        self._limits = limits
        self._parts = 0
        self._kept = 0
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._disposition = b""
        self._name = ""
        self._upload: Upload | None = None
        self._text = bytearray()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > self._limits.parts:
            raise Refused(_malformed(f"the form has more than {self._limits.parts} parts"))
        self._disposition, self._upload = b"", None
        self._text.clear()

    def _header_end(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise Refused(_malformed("a part of the form has no name"))
        self._name = options[b"name"].decode("utf-8", "replace")
        if b"filename" in options:
            filename = options[b"filename"].decode("utf-8", "replace")
            self._upload = Upload(self._name, _base_name(filename))

    def _data(self, data: bytes, start: int, end: int) -> None:
        chunk = data[start:end]
        upload = self._upload
        if upload is None:
            self._text += chunk
            if len(self._text) > self._limits.text:
                raise Refused(_too_large(f"the field {self._name!r} is too long", size(self._limits.text)))
            return
        upload.size += len(chunk)
        if upload.too_large:
            return
        self._kept += len(chunk)
        together = self._limits.of(BUNDLE) if upload.part == BUNDLE else self._limits.kept
        if upload.size > self._limits.of(upload.part) or self._kept > together:
            self._kept -= upload.size
            upload.too_large = True
            upload.close()
        else:
            upload.add(chunk)

    def _part_end(self) -> None:
        if self._upload is None:
            self.form.values.setdefault(self._name, []).append(self._text.decode("utf-8", "replace"))
        elif self._upload.name or self._upload.size:  # a file input left empty sends neither
            self.form.uploads.append(self._upload)

    def _end(self) -> None:
        self.ended = True


def _base_name(filename: str) -> str:
    """The name without folders: some clients send the whole path, and none of it is our business."""
    return filename.replace("\\", "/").rsplit("/", 1)[-1][:200]


def _wrong_type(media: str) -> Problem:
    return Problem(
        415,
        "Wrong content type",
        f"The body is {media or 'of no declared type'}.",
        "multipart/form-data (files) or application/x-www-form-urlencoded",
        "Send the form as a browser does; with curl, use -F field=@file.",
    )


def _malformed(what: str) -> Problem:
    return Problem(
        400,
        "Malformed form",
        f"The form cannot be read: {what}.",
        "a whole multipart/form-data or URL-encoded body",
        "Send it again; if it was cut on its way, look at the proxy in between.",
    )


def _too_large(what: str, expected: str) -> Problem:
    return Problem(
        413, "Too large", f"{what[0].upper()}{what[1:]}.", expected, "Send less.", headers={"Connection": "close"}
    )


def _request_too_large(limits: Limits) -> Problem:
    return Problem(
        413,
        "Too large",
        f"The whole upload is larger than {size(limits.request)}.",
        f"files of at most {size(limits.file)} each, {size(limits.kept)} together",
        "Cut the streams to the records of the key and the hours in question, and import those.",
        headers={"Connection": "close"},
    )
