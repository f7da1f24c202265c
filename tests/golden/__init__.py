"""Recordings of real pipelines, kept as one small archive and unpacked once for every test that reads them."""

from tests.golden.recordings import corpus

__all__ = ["corpus"]
