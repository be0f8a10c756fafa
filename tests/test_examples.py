"""The examples run, finish with a smaller network, and keep its error low."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "own_loop.py": ("sklearn",),
    "pretrained.py": ("sklearn",),
    "lightning_module.py": ("sklearn", "lightning"),
    "hugging_face_trainer.py": ("transformers", "accelerate"),
}


def test_every_example_is_listed_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == NEEDS.keys()


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_ends_with_a_smaller_network_and_a_low_error(name, tmp_path):
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    words = [sys.executable, str(EXAMPLES / name)]
    # Two threads that wait for each other on a busy machine took over four minutes where one takes ten seconds.
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"([\d.]+)× fewer", done.stdout)[1]) > 4
    assert float(re.findall(r"error[a-z ]* ([\d.]+) %", done.stdout)[-1]) < 8
    assert list(tmp_path.iterdir()) == []  # an example cleans up


def test_an_example_says_how_it_is_run_and_how_long_it_takes():
    for name in NEEDS:
        docstring = (EXAMPLES / name).read_text().split('"""')[1]
        assert f"python examples/{name}" in docstring
        assert "minute" in docstring
