"""Step 6, run: pruned networks, faster than dense ones."""

from secateur.run.chain import SparseChain
from secateur.run.files import load_sparse
from secateur.run.layout import Kernel
from secateur.run.plan import Group, Plan
from secateur.run.planner import compile_sparse

__all__ = ["Group", "Kernel", "Plan", "SparseChain", "compile_sparse", "load_sparse"]
