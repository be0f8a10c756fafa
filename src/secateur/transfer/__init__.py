"""Do a network's features serve other tasks? The paper's evaluation of transfer, for any two networks."""
