"""Runs, presets, and the paper's tables made from them."""
