"""Step 6, run: pruned networks, faster than dense ones."""

from secateur.run.compile import compile_sparse
from secateur.run.kernels.kernel import Kernel
from secateur.run.load import load_sparse
from secateur.run.operator import OPERATOR
from secateur.run.plan import Group, Plan
from secateur.run.sparse_chain import SparseChain

__all__ = ["OPERATOR", "Group", "Kernel", "Plan", "SparseChain", "compile_sparse", "load_sparse"]
