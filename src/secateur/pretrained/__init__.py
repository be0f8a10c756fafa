"""Pretrained weights by the name of their network, and weights in files, for a run to start from.

New weights are an entry `Pretrained`, listed in the table in `table.py`. Another package adds some through an entry
point of the group `secateur.pretrained` whose value is such an entry.
"""

from secateur.pretrained.entry import Pretrained
from secateur.pretrained.start import BY_NAME, Start, read_start, require_start
from secateur.pretrained.table import PRETRAINED

__all__ = ["BY_NAME", "PRETRAINED", "Pretrained", "Start", "read_start", "require_start"]
