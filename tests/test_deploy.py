"""What the compose file and its neighbours say must hold for the code they start. No container is started here."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import ENVIRONMENT, load

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]


def test_every_variable_is_one_that_hindcast_reads() -> None:
    """A variable that nobody reads would look like a setting that works."""
    ours = {name for service, told in SERVICES.items() if service != "postgres" for name in told["environment"]}
    assert ours <= set(ENVIRONMENT)
    asked = set(re.findall(r"\$\{(\w+)", TEXT))
    named_at_the_head = set(re.findall(r"HINDCAST_\w+", TEXT.partition("services:")[0]))
    assert asked <= named_at_the_head


def test_only_the_migration_is_the_owner() -> None:
    """What runs for long works as a role that owns nothing."""
    owners = {name for name, told in SERVICES.items() if "HINDCAST_DATABASE_OWNER_URL" in told["environment"]}
    assert owners == {"migrate"}


@pytest.mark.parametrize("name", SERVICES)
def test_confined(name: str) -> None:
    """No process is root, keeps a capability, or can write where it need not."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user") == "postgres" or "\nUSER hindcast\n" in (ROOT / "Dockerfile").read_text()
    assert "healthcheck" in service or service["restart"] == "no"


def test_mounted_files_are_there() -> None:
    """A missing file would be mounted as an empty folder."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists()


def test_configuration_loads() -> None:
    """The example is a valid configuration, and the port is the one that is published."""
    settings = load(ROOT / "deploy" / "hindcast.toml", environment={})
    assert settings.console.host == "0.0.0.0"
    assert SERVICES["console"]["ports"] == [f"127.0.0.1:{settings.console.port}:{settings.console.port}"]
