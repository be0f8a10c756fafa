"""Learned thresholds in the Hugging Face Trainer: a small transformer, cut and saved."""
