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
