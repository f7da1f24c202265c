"""Reads what Flink Agents leaves behind (event logs, captured inputs) as runs of neutral events."""
