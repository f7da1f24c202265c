"""Captured inputs of a job: written by a gate in front of its agent, read back in order, refused where not whole.

This folder needs nothing but Python's own library, so that a job can carry a copy of it. docs/capture.md has the
format: `part-*.jsonl`, `keys.jsonl`, and `manifest.json`, which is written last and names the digest of all others.
"""

from .format import About, Captured, CaptureError, Manifest, Operator, Part, SourcePosition, Typed
from .reading import read_capture, read_manifest, verify
from .writing import CaptureWriter

__all__ = [
    "About",
    "CaptureError",
    "CaptureWriter",
    "Captured",
    "Manifest",
    "Operator",
    "Part",
    "SourcePosition",
    "Typed",
    "read_capture",
    "read_manifest",
    "verify",
]  # fmt: skip
