"""A network's tensors: which there are, which rule each obeys, and how a layer reads one through a function."""
