"""Step 6, run: from a file to answers."""
