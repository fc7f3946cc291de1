"""Whoever runs the job, spoken to by job id. One file each."""
