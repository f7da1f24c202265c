"""Runs an agent of Flink Agents in the confined child, over the plan that its own framework compiles, contained."""
