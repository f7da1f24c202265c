"""Runs an agent of Flink Agents in the confined child, over the plan that its own framework compiles; it does nothing."""
