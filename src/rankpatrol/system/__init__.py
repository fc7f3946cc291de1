"""The few ways in which rankpatrol touches the machine: clock, commands, process identity and signals, atomic files."""
