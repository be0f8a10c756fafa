"""Tables of published results for the terminal, the README and docs/results.md."""
