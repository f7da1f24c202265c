"""Reads pages as a strict browser would: what they hold, and what no page may hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx

VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """Text, ids, links and forms of one page. Raises AssertionError for what the policy would refuse."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        assert answer.headers["content-type"].startswith("text/html"), answer.text[:200]
        self.status = answer.status_code
        self.html = answer.text
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.elements = 0
        self.feed(answer.text)
        self.close()
        assert self.open == [], f"unclosed: {self.open}"
        assert len(self.ids) == len(set(self.ids)), f"an id twice: {sorted(self.ids)}"

    @property
    def text(self) -> str:
        """What a reader sees, with one blank between elements and none before punctuation."""
        return re.sub(r" ([,.:;)])", r"\1", " ".join("".join(self.words).split()))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements += 1
        if tag != "wbr":
            self.words.append(" ")
        if tag not in VOID:
            self.open.append(tag)
        given = dict(attrs)
        assert "style" not in given, "an inline style"
        assert not [name for name in given if name.startswith(("on", "hx-on"))], "an inline handler"
        assert tag != "style"
        assert tag != "script" or given.get("src", "").startswith("/static/"), "an inline script"  # type: ignore[union-attr]
        if "id" in given:
            self.ids.append(given["id"] or "")
        for name in ("href", "src", "action"):
            if name in given:
                self.links.append(given[name] or "")
                assert not (given[name] or "").startswith(("http:", "https:", "//", "javascript:", "data:")), given

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()
        self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "title"):
            self.words.append(data)
