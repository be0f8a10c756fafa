import pytest
import torch
from hypothesis import settings

# torch's first call alone breaks hypothesis' 200 ms deadline; derandomised, a failure repeats everywhere.
settings.register_profile("secateur", deadline=None, derandomize=True)
settings.load_profile("secateur")


@pytest.fixture(autouse=True)
def _seeded_on_one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def command(capsys):
    """Run a command in this process: its exit code, what it printed, and what it complained of."""
    from secateur.cli import main

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        except SystemExit as end:  # --help
            code = end.code
        return code, *capsys.readouterr()

    return run
