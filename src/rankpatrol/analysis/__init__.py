"""Who waits for whom, and why. Pure: a Snapshot comes in, a Diagnosis goes out."""
