"""Which of several processes this is, where `torchrun` started more than one."""

import os

import torch


def is_main_process() -> bool:
    """Return whether this process writes and prints: the first one that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def number_of_processes() -> int:
    """Return how many processes torchrun started: 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join_processes() -> None:
    """Connect the processes that torchrun started, if there are several, so that they can wait for each other."""
    if number_of_processes() > 1:
        from accelerate import PartialState  # which the training loop needs anyway

        # Without `cpu` it takes processes that have no GPU for unrelated ones, and each would train alone.
        PartialState(cpu=not torch.cuda.is_available())


def wait_for_all() -> None:
    """Wait until every process that torchrun started is here: files of the first one then exist for all."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
