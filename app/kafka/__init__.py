"""Talking to the broker: ask for an export, await its snapshot, find records by key and time, and say what was read."""
