"""Pictures of 8 × 8 pixels."""

import pytest
import torch

from secateur.transfer.task import Picture


@pytest.fixture
def pictures(tmp_path):
    """150 pictures of three colours with noise: red, green, blue, red, …"""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    made = []
    (tmp_path / "pictures").mkdir()
    for index in range(150):
        pixels = torch.randint(120, (8, 8, 3), generator=generator, dtype=torch.uint8)
        pixels[..., index % 3] += 80
        path = tmp_path / "pictures" / f"{index:03}.png"
        Image.fromarray(pixels.numpy()).save(path)
        made.append(Picture(path))
    return tuple(made)
