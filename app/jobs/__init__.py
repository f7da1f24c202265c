"""The worker pool: queued tasks on Postgres that collect evidence and run replays."""
