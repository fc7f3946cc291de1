"""Settings: one table, and where each value comes from."""
