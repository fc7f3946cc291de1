"""GPU memory held by dead jobs: found, proved, shown, and released only with proof. Nobody unproven is ever signalled."""
