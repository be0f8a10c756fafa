"""Which of several processes this is, where `torchrun` started more than one."""

import os
from datetime import timedelta

import torch

# The first process evaluates and writes files while the others wait. A process that has died is noticed by torchrun.
_PATIENCE = timedelta(hours=2)


def process_count() -> int:
    """Return how many processes torchrun started, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Return whether this process writes and prints: the first one that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def join_processes() -> None:
    """Connect the processes that torchrun started, if there are several, so that they can wait for each other."""
    if process_count() > 1:
        from accelerate import PartialState  # which the training loop needs anyway

        # Without `cpu` it takes processes that have no GPU for unrelated ones, and each would train alone.
        PartialState(cpu=not torch.cuda.is_available(), timeout=_PATIENCE)


def wait_for_all() -> None:
    """Wait until every process that torchrun started is here: files of the first one then exist for all."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
