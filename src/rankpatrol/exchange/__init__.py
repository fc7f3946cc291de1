"""How the agents of one job on several nodes speak: states to the hub, orders to the nodes, and copies of files."""
