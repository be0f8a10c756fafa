"""Compare the speed of a network, sparse and dense, with other engines and with the machine's limits."""

from secateur.run.bench.benchmark import LEAST_REPEATS, bench
from secateur.run.bench.results import BatchSpeed, Bench, GroupSpeed, LayerSpeed
from secateur.run.bench.roofline import Limit, Machine

__all__ = ["LEAST_REPEATS", "BatchSpeed", "Bench", "GroupSpeed", "LayerSpeed", "Limit", "Machine", "bench"]
