"""Where agent code runs and reaches nothing: one forked child per replay, no network, no writes, bounded time and memory."""
