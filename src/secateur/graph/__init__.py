"""What saving and running networks share of torch.fx: tracing, simplifying, and finding hidden units."""
