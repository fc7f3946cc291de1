"""How long is too long. Pure: events and state come in, the next state and findings go out."""
