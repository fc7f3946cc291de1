"""What can be seen of ranks from outside, each fact with a deadline or a reason why it is missing."""
