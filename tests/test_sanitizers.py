"""The native coders under address and undefined-behaviour sanitizers, with streams that no encoder wrote."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


@pytest.mark.skipif(COMPILER is None or not (ROOT / "native").exists(), reason="needs a C++ compiler and the sources")
@pytest.mark.parametrize("cases", [2_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_no_stream_makes_the_native_coders_leave_their_buffers(tmp_path, cases):
    program = tmp_path / "sanitize"
    sources = [ROOT / "tests/sanitize_coders.cpp", ROOT / "native/context.cpp", ROOT / "native/rans.cpp"]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run([COMPILER, *flags, *sources, "-o", program], capture_output=True, text=True)
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, str(cases)], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    refused = int(done.stdout.split()[2])
    assert 0.3 * cases < refused < cases
