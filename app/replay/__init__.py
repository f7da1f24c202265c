"""From evidence to a verdict: choose the attempt, fuse snapshots, re-run, align, compare; bytes in, data out."""
