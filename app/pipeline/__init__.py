"""One key's life: an envelope is routed, activated and committed, timers fire, an export is answered read-only."""
