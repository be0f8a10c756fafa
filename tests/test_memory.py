"""Large buffers keep their memory."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from secateur import compile_sparse
from secateur.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(10 << 20)  # 40 MB, which is 10,240 pages: more than glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
{call}
for _ in range(3):
    faults()  # what the heap has not held yet
print(first, faults())
"""
ONE_CALL = "compile_sparse(torch.nn.Linear(4, 4), torch.rand(1, 4))"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what other libraries do is up to them")
@pytest.mark.parametrize("call", ["keep_freed_memory()", ONE_CALL])
def test_buffers_are_reused(call: str) -> None:
    program = [sys.executable, "-c", FAULTS.replace("{call}", call)]
    before, after = map(int, subprocess.run(program, capture_output=True, text=True, check=True).stdout.split())
    assert before > 40_000
    assert after < before / 4  # a small object may lie where a buffer was, and the next one takes new memory
