"""What crosses the walls between rooms: records, identity, Missing, errors. Pure: no clock, no file, no process."""
