"""What works here, what is missing, what is touched; each with its fix or its switch."""
