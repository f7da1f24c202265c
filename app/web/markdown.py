"""Notes as people wrote them, in Markdown, made into HTML that can do nothing: sanitised, whatever the renderer did.

Headings are made smaller than the page's own, links open elsewhere without telling where from, pictures are left out:
a page of ours loads nothing from anywhere.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

_TAGS: Final = {
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}}
_PAGE: Final = 2  # the level of the heading under which notes stand
_SCHEMES: Final = {"http", "https", "mailto"}


def markdown(text: str) -> Markup:
    """Render a note; any text is one, and no text can bring more than the tags above."""
    clean = nh3.clean(
        _renderer().render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
        strip_comments=True,
    )
    return Markup(clean)  # noqa: S704  nh3 has just made it harmless


@cache
def _renderer() -> MarkdownIt:
    renderer = MarkdownIt("commonmark", {"html": False, "breaks": True, "linkify": False}).enable(
        ["table", "strikethrough"]
    )
    # A picture becomes its words and its address, as a link.
    renderer.disable("image")
    renderer.core.ruler.push("small_headings", _small_headings)
    return renderer


def _small_headings(state: object) -> None:
    """`#` in a note is a heading below those of the page; levels that are left out are no levels."""
    level = _PAGE
    for token in state.tokens:  # type: ignore[attr-defined]
        if token.type == "heading_open":
            level = min(6, int(token.tag[1]) + _PAGE, level + 1)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{level}"
