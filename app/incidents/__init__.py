"""The domain and its memory: incidents, evidence, replays, shares and the audit trail."""
