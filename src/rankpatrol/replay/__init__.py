"""A recording driven through the same judge and incident desk in virtual time. It reads no clock and touches nothing."""
