"""Step 6, run: pruned networks, faster than dense ones."""
