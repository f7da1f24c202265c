"""Says how a process is doing: log lines, health checks, metrics and traces, the same in every process."""
