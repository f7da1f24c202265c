"""The run page's side of a verdict: banner, counts, panels, all read from the one JSON object that scripts get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.incidents.service import Run
from app.web.formats import NOT_RECORDED, plural, utc
from app.web.values import Shown, show_pair
from app.web.views import Pair, pairs, took
from app.web.views_miss import Miss, miss_of, other_details
from app.web.views_products import Products, products_of
from app.web.views_timeline import RowBody, field_label

_EXPLAINED: Final = ("reproduced", "what-if")
_SUSPECTS: Final = 5
_SURFACE_GLYPHS: Final = {"equal": "=", "different": "≠", "not compared": "–"}


@dataclass(frozen=True, slots=True)
class FirstDivergence:
    """Where the two part: what the banner names and links to."""

    ordinal: int
    event_type: str
    label: str
    about: str
    surface: str
    field: str
    kind: str
    recorded: Shown
    replayed: Shown
    others: int
    follow: int
    titles: tuple[str, str] | None = None  # what either side is, where that itself differs


@dataclass(frozen=True, slots=True)
class Read:
    """A memory read that the state of the run could not vouch for; `proven` where a recorded request carries it."""

    name: str
    why: str
    vindicated: bool
    proven: bool


@dataclass(frozen=True, slots=True)
class VerdictView:
    """A verdict's parts in the order of the page. `miss` is the request that nothing recorded answers."""

    headline: str
    reason: Mapping[str, Any] | None
    details: Sequence[Pair]
    miss: Miss | None
    reads: Sequence[Read]
    products: Products
    first: FirstDivergence | None
    counts: Sequence[str]
    surfaces: Sequence[Pair]
    served: Sequence[Pair]
    executed: Sequence[str]
    plan: Sequence[Pair]
    confinement: Sequence[Pair]
    driver: Sequence[Pair]
    code: Sequence[Pair]
    suspects: Sequence[str]
    digests: Sequence[Pair]
    replayed: Sequence[Pair]
    notes: Sequence[str]
    skipped: Sequence[str]
    plan_hint: str
    tier: str


def verdict_view(
    verdict: Mapping[str, Any], first_row: RowBody | None = None, evidence: Mapping[str, str] | None = None
) -> VerdictView:
    """Take a verdict apart; `first_row` is the row at which the two part, `evidence` links files by their names."""
    reason = verdict.get("reason")
    return VerdictView(
        headline=verdict["headline"],
        reason=reason,
        details=pairs(other_details(reason["details"])) if reason else (),
        miss=miss_of(reason["details"], evidence or {}) if reason else None,
        reads=[
            Read(read["read"], read["why"], read["vindicated"], read.get("proven", False))
            for read in verdict.get("reads", ())
        ],
        products=products_of(verdict.get("replayed", {})),
        first=first_divergence(verdict, first_row),
        counts=counts(verdict.get("counts", {})),
        surfaces=[surface(item) for item in verdict.get("surfaces", ())],
        served=pairs(served(verdict.get("served", {}))),
        executed=executed(verdict.get("served", {})),
        plan=pairs(verdict.get("plan", {})),
        confinement=pairs(verdict.get("confinement", {})),
        driver=pairs(verdict.get("driver", {})),
        code=pairs(code_of(verdict.get("code", {}))),
        suspects=suspects_of(verdict),
        digests=pairs(verdict.get("digests", {})),
        replayed=pairs({name: value for name, value in verdict.get("replayed", {}).items() if name != "printed"}),
        notes=verdict.get("notes", ()),
        plan_hint=str(verdict.get("plan", {}).get("row") or ""),
        tier=str(verdict.get("confinement", {}).get("tier") or ""),
        skipped=[item["name"] for item in verdict.get("surfaces", ()) if not item["compared"]],
    )


def code_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """What ran, with its packages counted, and each way in which it is not what production runs."""
    kept = {name: value for name, value in told.items() if name not in ("packages", "suspects")}
    if isinstance(told.get("packages"), Mapping):
        kept["packages"] = f"{len(told['packages'])}, listed in the JSON"
    return kept | ({"not as in production": suspects} if (suspects := _texts(told)) else {})


def suspects_of(verdict: Mapping[str, Any]) -> list[str]:
    """What to look at before anything else, where there is something to explain."""
    return [] if verdict["verdict"] in _EXPLAINED else _texts(verdict.get("code", {}))


def _texts(code: Mapping[str, Any]) -> list[str]:
    """The first suspects in words; none for whoever is shown a verdict without its texts."""
    suspects = code.get("suspects", ())
    texts = [suspect["text"] for suspect in suspects[:_SUSPECTS] if isinstance(suspect.get("text"), str)]
    left = len(suspects) - _SUSPECTS
    return [*texts, f"{left} more packages have other versions"] if texts and left > 0 else texts


def served(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was served, with the answers counted by where they came from: each one is told at its event."""
    counted = Counter(str(answer.get("source")) for answer in told.get("answers", ()))
    kept = {name: value for name, value in told.items() if name not in ("answers", "supplied")}
    return {**kept, "answers": [{"from": source, "count": count} for source, count in counted.most_common()]}


def executed(told: Mapping[str, Any]) -> list[str]:
    """What a run of Flink Agents did for real, each resource with its count; empty where that is hidden, or nothing."""
    calls = told.get("executed")
    return [f"{name} ({count} ×)" for name, count in calls.items()] if isinstance(calls, Mapping) else []


def first_divergence(verdict: Mapping[str, Any], row: RowBody | None = None) -> FirstDivergence | None:
    """The first difference with how many others there are, and how many of those merely follow from it."""
    at = verdict.get("first_divergence")
    here = [item for item in verdict.get("differences", ()) if item["ordinal"] == at]
    if at is None or not here:
        return None
    head = here[0]
    later = {item["ordinal"]: item.get("cause") for item in verdict["differences"] if item["ordinal"] != at}
    recorded, replayed = show_pair(head["recorded"], head["replayed"])
    return FirstDivergence(
        ordinal=at,
        event_type=head["event_type"],
        label=head["label"],
        about="" if row is None else row.about,
        surface=head["surface"],
        field=field_label(head["field"]),
        kind=head["class"],
        recorded=recorded,
        replayed=replayed,
        others=len(later),
        follow=sum(cause == at for cause in later.values()),
        titles=None if row is None else _titles(row),
    )


def _titles(row: RowBody) -> tuple[str, str] | None:
    one, other = row.recorded, row.replayed
    if one is None or other is None:
        return None
    recorded, replayed = (
        " ".join(str(part) for part in (side["type"], side["label"], side["about"]) if part) for side in (one, other)
    )
    return None if recorded == replayed else (recorded, replayed)


def counts(tally: Mapping[str, int]) -> list[str]:
    """The line above the timeline; a zero is left out, the total never."""
    if not tally:
        return []
    words = {
        "equal": ("equal", "equal"),
        "normalised": ("normalised", "normalised"),
        "changed": ("changed", "changed"),
        "recorded-only": ("only in the record", "only in the record"),
        "replayed-only": ("only in the replay", "only in the replay"),
        "consequence": ("consequence", "consequences"),
    }
    parts = [plural(tally[name], *forms) for name, forms in words.items() if tally.get(name)]
    return [plural(tally.get("rows", 0), "event"), *parts]


def surface(item: Mapping[str, Any]) -> Pair:
    """One compared surface; the reason why it was not compared reads below its name."""
    state = item["state"]
    glyph = _SURFACE_GLYPHS.get(state, "?")
    if not item["compared"]:
        return Pair(
            item["name"], f"not compared: {item['detail']}" if item["detail"] else "not compared", glyph, wide=True
        )
    return Pair(item["name"], item["detail"] or state, glyph, wide=len(item["detail"]) > 32)


def about(run: Run) -> list[Pair]:
    """The run itself: who asked, when, which worker, how long."""
    return [
        Pair("id", run.id, mono=True, wide=True),
        Pair("asked for", utc(run.created_at)),
        Pair("by", run.created_by),
        Pair("started", utc(run.started_at)),
        Pair("finished", utc(run.finished_at)),
        Pair("took", took(run) or NOT_RECORDED),
        Pair("worker", run.worker or NOT_RECORDED),
        Pair("taken by a worker", f"{run.attempt} ×", mono=True),
        Pair("build digest", run.build_digest or NOT_RECORDED, wide=bool(run.build_digest)),
    ]
