"""Thresholds in a training loop of your own: what changes, and what does not."""
