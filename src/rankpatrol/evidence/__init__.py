"""The sealed bundle: captured, redacted, hashed and whole before anything is touched."""
