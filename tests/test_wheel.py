"""The wheel carries what the code reads at run time, so that an installed console works as a checkout does."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import app

ROOT = Path(__file__).parents[1]
RESOURCES = ("examples", "migrations", "proto", "static", "templates")


def test_wheel_holds_code_and_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of the package and of the folders beside it, and nothing from the tests."""
    monkeypatch.setenv("HINDCAST_SKIP_ASSETS", "1")  # `make setup` has fetched them already
    source = tmp_path / "source"
    wanted = ("app", "scripts", *RESOURCES)
    for name in wanted:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=source, check=True)
    (wheel,) = tmp_path.glob("*.whl")

    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {path.relative_to(source).as_posix() for path in (source / "app").rglob("*") if path.is_file()}
    for name in RESOURCES:
        files = (path for path in (source / name).rglob("*") if path.is_file())
        expected |= {f"app/_resources/{path.relative_to(source).as_posix()}" for path in files}
    assert packed == expected
    assert "app/_resources/static/vendor/htmx.min.js" in packed


def test_resources_of_a_checkout() -> None:
    """In a checkout the folders lie beside the package; an unknown one is named in the error."""
    assert app.resource("proto") == ROOT / "proto"
    with pytest.raises(FileNotFoundError, match="'nothing' folder"):
        app.resource("nothing")
