"""Where agent code runs and reaches nothing: a forked child per replay, offline, read-only, bounded."""
