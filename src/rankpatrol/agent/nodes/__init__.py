"""One job on several nodes: what their agents tell each other, and how one judges over all."""
