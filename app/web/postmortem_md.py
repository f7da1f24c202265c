"""The post-mortem as Markdown, for a wiki or a ticket: the page's order, and nothing of a record read as markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from app.web.formats import NOT_RECORDED, number, size, utc
from app.web.values import Shown
from app.web.views_postmortem import Judged, PostMortem, facts
from app.web.views_story import Step

_TIMES = frozenset({"event time"})


def as_markdown(told: PostMortem, url: str) -> str:
    """Write the whole document; `url` is where the incident is."""
    return "\n".join([*_lines(told, url), ""])


def _lines(told: PostMortem, url: str) -> Iterator[str]:
    yield f"# Post-mortem: {words(told.incident.title)}"
    yield ""
    for name, value in facts(told).items():
        shown = utc(value) if name in _TIMES else NOT_RECORDED if value is None else str(value)
        yield f"- {name}: {code(shown) if name in ('key', 'incident') else words(shown)}"
    yield f"- page: <{url}>"
    yield from ("", "## What happened", "", words(told.summary))
    yield from _events(told)
    yield from ("", "## Verdicts", "")
    yield from _runs(told)
    yield from ("", "## What the model saw, said, and what followed", "")
    yield from _excerpt(told)
    yield from ("", "## Timeline of what people did", "")
    for moment in told.moments:
        yield f"- {utc(moment.at)} {words(moment.who)}: {words(moment.what)}"
        if moment.note:
            yield from ("", *(f"  > {line}".rstrip() for line in moment.note.split("\n")), "")
    yield from ("", "## Evidence", "")
    yield from _evidence(told)
    yield from ("", "## The same in a terminal", "")
    yield from _commands(told)


def _events(told: PostMortem) -> Iterator[str]:
    if not told.events:
        return
    yield from ("", "| event | type | what | |", "| ---: | --- | --- | --- |")
    for event in told.events:
        mark = "differs in the replay" if event.differs else ""
        yield f"| {event.ordinal} | {cell(event.type)} | {cell(event.words)} | {mark} |"
    if told.more_events:
        yield from ("", f"And {number(told.more_events)} more events.")


def _runs(told: PostMortem) -> Iterator[str]:
    if not told.runs:
        yield "It was not replayed."
    for run in told.runs:
        kind = " (what-if)" if run.kind == "what-if" else ""
        headline = words(run.headline or "")
        yield f"- run {run.number}{kind} of {code(run.build)}: **{run.status.word}**. {headline}".rstrip()
        yield from _divergence(run)


def _divergence(run: Judged) -> Iterator[str]:
    first = run.first
    if first is None:
        return
    about = " ".join(part for part in (first.event_type, first.label, first.about) if part)
    yield f"  - first divergence at event {first.ordinal}, {words(about)}: {words(first.field or first.kind)}"
    yield f"    - recorded: {_value(first.recorded)}"
    yield f"    - replayed: {_value(first.replayed)}"
    if first.others:
        yield f"  - {first.others} later events differ, {first.follow} of them because of this one"


def _excerpt(told: PostMortem) -> Iterator[str]:
    if told.told_by is None or not told.excerpt:
        yield "No run has told it yet."
        return
    yield f"From the ledger of run {told.told_by.number}."
    for step in told.excerpt:
        yield from _step(step)


def _step(step: Step) -> Iterator[str]:
    for line in step.lines:
        yield from ("", f"**{words(line.what)}**" + (f" ({words(', '.join(line.facts))})" if line.facts else ""))
        for text in line.texts:
            if text.label:
                yield from ("", f"{words(text.label)}:")
            yield from ("", *fenced(_text(text.value)))


def _evidence(told: PostMortem) -> Iterator[str]:
    if not told.evidence:
        yield "Nothing was kept."
        return
    yield from ("| role | file | records | size | sha256 | came from |", "| --- | --- | ---: | ---: | --- | --- |")
    for file in told.evidence:
        yield (
            f"| {file.role} | {cell(file.name)} | {number(file.records)} | {size(file.size)} | `{file.sha256}` |"
            f" {cell(file.came_from)} |"
        )


def _commands(told: PostMortem) -> Iterator[str]:
    yield f"Download the bundle, `hindcast-{told.incident.id}.zip`, then, where it lies:"
    for run in told.runs:
        if run.command is not None:
            yield from ("", f"Run {run.number}:", "", *fenced(run.command))
    if not any(run.command for run in told.runs):
        yield from ("", "No build of these runs is configured any more.")


# Texts of records, which must never be read as markup ----------------------------------------------------------------


def words(text: str) -> str:
    """A text on one line, every character of Markdown's made plain."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~&-])", r"\\\1", " ".join(text.split()))


def cell(text: str) -> str:
    """A text in a table."""
    return words(text) or NOT_RECORDED


def code(text: str) -> str:
    """A text as code, whatever backticks are in it."""
    line = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else NOT_RECORDED


def fenced(text: str) -> list[str]:
    """A text as a block of code, whatever fences are in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{fence}text", *text.split("\n"), fence]


def _text(shown: Shown) -> str:
    if shown.spans is None:
        return NOT_RECORDED
    parts = (f"⋯ {span.folded} {shown.unit} ⋯" if span.folded else span.text for span in shown.spans)
    return "".join(parts)


def _value(shown: Shown) -> str:
    return NOT_RECORDED if shown.spans is None else code(_text(shown)[:2000])
