"""Makes an environment of its own, as a build may name one, out of packages that are installed here."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# What the driver `runtime` needs, and what that needs.
NEEDED = ("protobuf", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
_MODULES = ("google", "pydantic", "pydantic_core", "annotated_types", "typing_extensions.py", "typing_inspection")


def environment(folder: Path, packages: tuple[str, ...] = NEEDED) -> Path:
    """Make one below `folder` and return its interpreter; nothing is fetched."""
    # Whatever started this process, a link to the real interpreter works where a copy might miss its library.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    here, there = Path(sysconfig.get_path("purelib")), site(folder)
    for name, module in zip(NEEDED, _MODULES, strict=True):
        if name not in packages:
            continue
        for source in (*here.glob(f"{name}-*.dist-info"), here / module):
            if source.is_dir():
                shutil.copytree(source, there / source.name)
            else:
                shutil.copy(source, there)
    return folder / "bin" / "python"


def site(folder: Path) -> Path:
    """Where its packages lie."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def install(folder: Path, name: str, version: str, text: str) -> None:
    """Put a package of one module into it, in the place of an earlier version."""
    for old in site(folder).glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    (site(folder) / f"{name}.py").write_text(text)
    info = site(folder) / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}.py,sha256=of-{version},{len(text)}\n")
