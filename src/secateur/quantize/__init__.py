"""Step 4, quantize: few values per tensor, learned by gradient descent, behind what prunes the network."""

from secateur.quantize.network import QuantizeConfig, coded_bits, freeze, quantize

__all__ = ["QuantizeConfig", "coded_bits", "freeze", "quantize"]
