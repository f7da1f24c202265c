"""Re-runs recorded runs of Flink Agents, with the same build or another: what is fed, what comes out, the verdict."""
