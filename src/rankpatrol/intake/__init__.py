"""Foreign files, opened with care: what cannot be read costs its own reason and nothing else. Understood elsewhere."""
