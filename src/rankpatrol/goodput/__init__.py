"""Where a job's time went, told from its events alone. Pure: bytes of events.jsonl come in, an account goes out."""
