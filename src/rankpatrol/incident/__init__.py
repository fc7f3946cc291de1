"""The life of one incident. Pure: events and state come in, the next state and instructions go out."""
