"""Form bodies as they stream in: nothing of any size is kept in memory, and no body breaks more than its request."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from app.web.config import MIB
from app.web.forms import Form, Limits, read_form
from app.web.problems import Refused

BOUNDARY = b"b0und4ry"


def part(name: str, data: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--{BOUNDARY.decode()}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + data + b"\r\n"


def whole(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def request(chunks: AsyncIterator[bytes], content_type: str, **headers: str) -> Request:
    sent = {"content-type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    app = SimpleNamespace(state=SimpleNamespace(limits=Limits(file=100, kept=250, request=10_000, text=50, parts=5)))
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "app": app}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in sent.items()]

    async def receive() -> dict[str, Any]:
        try:
            return {"type": "http.request", "body": await anext(chunks), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    return Request(scope, receive)


async def pieces(body: bytes, length: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(body), length):
        yield body[start : start + length]


async def read(body: bytes, limits: Limits | None = None, **headers: str) -> Form:
    media = headers.pop("content_type", f"multipart/form-data; boundary={BOUNDARY.decode()}")
    return await read_form(request(pieces(body), media, **headers), limits)


async def refusal(read: Callable[[], Awaitable[Form]]) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        await read()
    return caught.value.problem.status, caught.value.problem.what


async def test_texts_and_files_arrive_whole() -> None:
    data = bytes(range(90))
    form = await read(
        whole(part("title", "é".encode()), part("traces", data, "t.pb"), part("keep", b"1"), part("keep", b"2"))
    )
    assert form.value("title") == "é"
    assert form.values["keep"] == ["1", "2"]
    (upload,) = form.uploads
    assert (upload.part, upload.name, upload.size, upload.read()) == ("traces", "t.pb", 90, data)
    assert upload.sha256 == hashlib.sha256(data).hexdigest()
    assert form.value("nothing") is None


async def test_a_file_too_large_is_marked_and_its_neighbours_are_kept() -> None:
    form = await read(
        whole(part("snapshot", b"a" * 60, "s"), part("traces", b"b" * 101, "t"), part("event", b"c", "e"))
    )
    assert [(u.part, u.size, u.too_large, len(u.read())) for u in form.uploads] == [
        ("snapshot", 60, False, 60),
        ("traces", 101, True, 0),
        ("event", 1, False, 1),
    ]


async def test_files_together_are_limited_too() -> None:
    form = await read(whole(*(part("traces", b"x" * 100, str(n)) for n in range(4))))
    assert [upload.too_large for upload in form.uploads] == [False, False, True, True]


async def test_an_untouched_file_input_is_no_file() -> None:
    assert (await read(whole(part("traces", b"", "")))).uploads == []
    assert [u.size for u in (await read(whole(part("traces", b"", "empty.pb")))).uploads] == [0]


@pytest.mark.parametrize("name", ["../../etc/passwd", "C:\\Users\\x\\passwd", "/passwd"])
async def test_folders_of_a_file_name_are_none_of_our_business(name: str) -> None:
    form = await read(whole(part("traces", b"x", name.replace("\\", "\\\\"))))
    assert form.uploads[0].name == "passwd"


async def test_bodies_that_cannot_be_read_are_refused() -> None:
    sound = whole(part("a", b"1"))
    cases = [
        (sound[:-4], {}, 400),
        (sound[:20], {}, 400),
        (b"", {}, 400),
        (b"nonsense", {}, 400),
        (sound.replace(b'name="a"', b"x"), {}, 400),
        (whole(*(part("a", b"") for _ in range(6))), {}, 400),
        (sound, {"content_type": "multipart/form-data"}, 400),
        (sound, {"content_type": "application/json"}, 415),
        (sound, {"content_type": ""}, 415),
        (whole(part("a", b"x" * 51)), {}, 413),
        (whole(part("a", b"x" * 10_001, "f")), {}, 413),
        (sound, {"content_length": "10001"}, 413),
        (b"a=" + b"x" * 60, {"content_type": "application/x-www-form-urlencoded"}, 413),
        (b"&a=1" * 6, {"content_type": "application/x-www-form-urlencoded"}, 400),
    ]
    for body, headers, status in cases:
        assert (await refusal(lambda body=body, headers=headers: read(body, **headers)))[0] == status, (body, headers)


async def test_a_form_is_read_once() -> None:
    one = request(pieces(whole(part("a", b"1"))), f"multipart/form-data; boundary={BOUNDARY.decode()}")
    assert await read_form(one) is await read_form(one)


async def test_200_mib_do_not_become_memory() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield part("traces", b"", "big.pb")[:-2]
        for _ in range(200):
            yield bytes(MIB)
        yield b"\r\n" + whole(part("event", b"small", "e.pb"))

    sent = request(body(), f"multipart/form-data; boundary={BOUNDARY.decode()}")
    tracemalloc.start()
    form = await read_form(sent, Limits(file=64 * MIB))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    big, small = form.uploads
    assert (big.size, big.too_large, small.read()) == (200 * MIB, True, b"small")
    assert peak < 8 * MIB


@given(st.binary(max_size=400), st.integers(1, 50))
async def test_no_body_raises_anything_but_a_refusal(body: bytes, length: int) -> None:
    statuses = set()
    for media in (f"multipart/form-data; boundary={BOUNDARY.decode()}", "application/x-www-form-urlencoded"):
        for sent in (body, whole(part("a", body), part("b", body, "b")), part("a", b"1") + body):
            try:
                await read_form(request(pieces(sent, length), media))
            except Refused as refused:
                statuses.add(refused.problem.status)
    assert statuses <= {400, 413}
