"""Which nodes failed before: a memory over jobs, and what to tell a scheduler of it."""
