"""The commands. Each is thin: it reads, calls one room, and prints."""
