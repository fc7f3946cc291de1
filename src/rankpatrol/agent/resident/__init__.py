"""Agents that stay on nodes, whoever's jobs run there, and one hub that judges the jobs of all of them."""
