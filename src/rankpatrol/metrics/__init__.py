"""What a job's state and events are in Prometheus's words, and the two ways out: a port, and a file for node_exporter."""
