"""A whole world in one command: a database, a broker and a live pipeline with a story to investigate."""
