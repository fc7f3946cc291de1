"""What people really have: files, folders, pasted text, packed logs. Opened here, understood elsewhere."""
