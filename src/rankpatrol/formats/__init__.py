"""Foreign evidence into our own records: bytes and text in, records out. Pure: no clock, no file, no process."""
