"""Two processes that train together, as torchrun would start them."""

import multiprocessing
import os
import time
import traceback
from datetime import timedelta

import pytest
import torch
from torch import distributed

SECONDS = 240

# Children of a server that has imported everything already start at once.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["accelerate", "sklearn.datasets", "secateur.experiments.runner"])


def _enter(work, rank, folder):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=SECONDS / 2), rank=rank, world_size=2
    )
    try:
        work(rank, folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # Everything is saved. On a busy machine torch's own threads may abort the interpreter while it ends.
    os._exit(0)


def run_two_ranks(work, folder):
    """Let both ranks do `work(rank, folder)`."""
    ranks = [CHILDREN.Process(target=_enter, args=(work, rank, folder), daemon=True) for rank in (0, 1)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + SECONDS
    while any(process.is_alive() for process in ranks):
        if time.monotonic() > deadline or any(process.exitcode for process in ranks):
            for process in ranks:
                process.kill()
            pytest.fail(f"two ranks ended with {[process.exitcode for process in ranks]} or took {SECONDS} s")
        time.sleep(0.05)
    assert [process.exitcode for process in ranks] == [0, 0]
