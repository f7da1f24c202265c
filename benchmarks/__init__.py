"""Figures that docs and notes may claim, each with the command that measures it: `python -m benchmarks`."""
