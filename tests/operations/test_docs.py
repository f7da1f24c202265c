"""What docs/operations.md says of metrics, checks, commands and settings is what there is."""

import re
from pathlib import Path

import yaml
from prometheus_client import REGISTRY

from app.cli import COMMANDS
from app.operations import metrics
from app.settings import Collector, Console, Sandbox, Worker

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operations.md").read_text()
RULES = yaml.safe_load(re.search(r"```yaml\n(groups:.*?)```", TEXT, re.DOTALL)[1])["groups"][0]["rules"]  # type: ignore[index]


def names() -> set[str]:
    """Every metric of ours, as Prometheus stores it."""
    assert metrics.INFO is not None
    told = set()
    for family in REGISTRY.collect():
        if family.name.startswith("hindcast_"):
            told.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return told


def test_every_metric_is_described_and_every_described_metric_is_there() -> None:
    assert set(re.findall(r"`(hindcast_[a-z_]+?)(?:\{[a-z,]+\})?`", TEXT)) == names()


def test_alerts_rest_on_metrics_that_are_there_and_each_has_its_runbook() -> None:
    for rule in RULES:
        used = set(re.findall(r"hindcast_[a-z_]+", rule["expr"]))
        assert used <= names(), rule
        assert f"| {rule['alert']} |" in TEXT
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == len(re.findall(r"(?m)^\| Hindcast", TEXT))


def test_commands_and_settings_that_are_named_are_there() -> None:
    assert set(re.findall(r"`hindcast ([a-z]+)", TEXT)) <= set(COMMANDS)
    sections = {"worker": Worker, "console": Console, "sandbox": Sandbox, "collector": Collector}
    for section, setting in re.findall(r"`(worker|console|sandbox|collector)\.([a-z_]+)`", TEXT):
        assert setting in sections[section].model_fields, f"{section}.{setting}"
