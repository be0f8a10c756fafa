"""The native code under address and undefined-behaviour sanitizers: spoilt streams, and chains of every shape."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLANG = shutil.which("clang++")
COMPILER = os.environ.get("CXX") or shutil.which("g++") or CLANG

pytestmark = pytest.mark.skipif(
    COMPILER is None or not (ROOT / "native").exists(), reason="needs a C++ compiler and the sources"
)


def build(program: Path, *arguments: str | Path, compiler: str | None = COMPILER) -> None:
    flags = ["-std=c++17", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-psabi"]
    built = subprocess.run([compiler, *flags, *arguments, "-o", program], capture_output=True, text=True)
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr


def run(program: Path, cases: int) -> str:
    done = subprocess.run([program, str(cases)], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("cases", [2_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_no_stream_makes_the_native_coders_leave_their_buffers(tmp_path, cases):
    program = tmp_path / "sanitize"
    build(program, "-O1", ROOT / "tests/sanitize_coders.cpp", ROOT / "native/context.cpp", ROOT / "native/rans.cpp")
    refused = int(run(program, cases).split()[2])
    assert 0.3 * cases < refused < cases


# The narrowest vectors there are, and the widest that this machine has. All kernels take minutes to build with
# sanitizers; a quick run builds a quarter of them, for one type of weights.
SPARSE = (ROOT / "tests/sanitize_sparse.cpp", ROOT / "native/sparse_wide.cpp")
ALL_SPARSE = (*SPARSE, ROOT / "native/sparse_narrow.cpp", ROOT / "native/sparse_shared.cpp")


@pytest.mark.parametrize(
    ("machine", "level", "cases"),
    [
        ("-march=native", "-O0 -DSECATEUR_ONE_TYPE", 1_000),
        pytest.param("-mtune=generic", "-O1", 50_000, marks=pytest.mark.slow),
        pytest.param("-march=native", "-O1", 50_000, marks=pytest.mark.slow),
    ],
)
def test_no_chain_of_sparse_layers_leaves_its_buffers(tmp_path, machine, level, cases):
    program = tmp_path / "sanitize"
    sources = SPARSE if "SECATEUR_ONE_TYPE" in level else ALL_SPARSE
    build(program, *level.split(), machine, *sources)
    assert run(program, cases) == f"{cases} cases\n"


@pytest.mark.skipif(CLANG is None or COMPILER == CLANG, reason="needs Clang and another compiler")
def test_clang_builds_the_same_kernels(tmp_path):
    program = tmp_path / "sanitize"
    build(program, "-O0", "-DSECATEUR_ONE_TYPE", "-march=native", *SPARSE, compiler=CLANG)
    assert run(program, 1_000) == "1000 cases\n"
