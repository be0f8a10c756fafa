"""Learned thresholds in Lightning."""
