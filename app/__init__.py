"""Why did this activation emit that intent? Replay it against its record and see where the two part."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"


def resource(name: str) -> Path:
    """Find a folder that ships beside the code, so that a checkout and an installed wheel read the same files.

    `name` is `templates`, `static`, `migrations` or `proto`. In a checkout these lie beside `app`; the wheel
    carries them inside it, under `app/_resources`. Raises `FileNotFoundError` for anything else.
    """
    from pathlib import Path  # only here: it would cost each replay's process ten milliseconds

    package = Path(__file__).parent
    for folder in (package / "_resources" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"Hindcast was built without its {name!r} folder; reinstall it, or run `make setup` in a checkout"
    )
