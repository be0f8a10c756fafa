import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from secateur.measure import dense_bytes, file_bytes


def test_parameters_and_persistent_buffers_weigh_their_own_dtypes():
    model = nn.Sequential(nn.Linear(3, 2).half(), nn.BatchNorm1d(2))
    model.register_buffer("scratch", torch.ones(100), persistent=False)
    # 8 halves; 2 scales, 2 shifts, 2 means, 2 variances in float32; one int64 counter
    assert dense_bytes(model) == 8 * 2 + 8 * 4 + 8


def test_a_tied_tensor_weighs_once():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    assert dense_bytes(model) == 15 * 4


def test_tensors_without_memory_are_not_taken_for_one():
    layers = [nn.Linear(3, 5, device="meta") for _ in range(2)]
    assert dense_bytes(nn.Sequential(*layers)) == 2 * 20 * 4


def test_the_weight_as_float32_does_not_depend_on_the_stored_dtype():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    expected = dense_bytes(model)
    assert dense_bytes(model.half(), dtype=torch.float32) == expected == 8 * 4 + 8 * 4 + 8
    assert dense_bytes(model) < expected


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(2, 3))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.mask


def test_a_parametrized_or_masked_model_weighs_what_the_plain_one_does():
    model = nn.Linear(3, 2)
    parametrize.register_parametrization(model, "weight", Masked())
    assert dense_bytes(model) == dense_bytes(nn.Linear(3, 2)) == 8 * 4
    assert dense_bytes(prune.random_unstructured(nn.Linear(3, 2), "weight", amount=2)) == 8 * 4


def test_a_parametrized_buffer_still_weighs():
    model = nn.Module()
    model.register_buffer("table", torch.ones(2, 3))
    parametrize.register_parametrization(model, "table", Masked())
    assert dense_bytes(model) == 6 * 4


def test_a_file_weighs_its_bytes(tmp_path):
    path = tmp_path / "model.cut"
    path.write_bytes(b"12345")
    assert file_bytes(path) == 5
