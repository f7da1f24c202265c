"""What all sections of the configuration share: the strict model, kinds of values, the error."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


class SettingsError(Exception):
    """A mistake in the configuration, told so that the operator can mend it without reading code."""


def _reference(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value):
        raise ValueError(f"{value!r} is not a reference of the form module:attribute")
    return value


def _moment(value: object) -> object:
    """Read an RFC 3339 time, quoted or as TOML has it, as epoch milliseconds; a time without offset is refused."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{value!r} is not an RFC 3339 time such as 2026-05-01T12:00:00Z") from error
    if not isinstance(moment, datetime):
        raise ValueError(f"{value!r} is not an RFC 3339 time such as 2026-05-01T12:00:00Z")
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} does not say in which time zone; add Z or an offset")
    return round(moment.timestamp() * 1000)


def _module(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value):
        raise ValueError(f"{value!r} is not the name of a module")
    return value


Module = Annotated[str, AfterValidator(_module)]
Reference = Annotated[str, AfterValidator(_reference)]
Moment = Annotated[int, BeforeValidator(_moment)]


class Section(BaseModel):
    """One table of the file: fixed once read, and no key passes that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
