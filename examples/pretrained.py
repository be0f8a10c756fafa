"""Prune a network that is trained already, starting from exactly what it computes."""
