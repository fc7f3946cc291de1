"""Actions are data before they are deeds: `plan` is pure, `execute` alone changes the world."""
