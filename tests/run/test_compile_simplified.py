"""What is left out of a compiled network."""

import pytest
import torch
from compiled import assert_same, chains, decide, sparsened
from torch import Tensor, nn

from secateur.run import compile_sparse

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def test_units_that_no_layer_reads_are_removed(sparse_wins):
    model = sparsened(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), 0.6)
    with torch.no_grad():
        model[2].weight[:, ::2] = 0  # read by no one
        model[0].weight[1], model[0].bias[1] = 0, 0  # always zero
    x = torch.randn(5, 6)
    compiled = compile_sparse(model, x)
    assert [shape for shape, _ in compiled.plan.weights.values()] == [(3, 6), (3, 3)]
    with torch.no_grad():
        assert_same(compiled(x), model(x))


@pytest.mark.parametrize("flatten", [nn.Flatten(), nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout())])
def test_filters_that_no_linear_layer_reads_are_removed(flatten, sparse_wins):
    pixels = 36 if isinstance(flatten, nn.Flatten) else 9
    model = sparsened(nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), flatten, nn.Linear(5 * pixels, 4)), 0.6).eval()
    with torch.no_grad():
        model[3].weight.view(4, 5, pixels)[:, 1] = 0  # read by no one
        model[0].weight[3], model[0].bias[3] = 0, 0  # always zero
    x = torch.randn(5, 2, 8, 8)
    compiled = compile_sparse(model, x)
    assert [shape for shape, _ in compiled.plan.weights.values()] == [(3, 2, 3, 3), (4, 3 * pixels)]
    with torch.no_grad():
        assert_same(compiled(x), model(x))


@pytest.mark.parametrize("between", [nn.Sigmoid(), nn.Hardtanh(0.5, 2.0), nn.Softmax(1), nn.LayerNorm(9)])
def test_units_that_are_not_zero_behind_their_activation_stay(between, sparse_wins):
    model = sparsened(nn.Sequential(nn.Linear(6, 9), between, nn.Linear(9, 3)), 0.6)
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1] = 0, 0
    x = torch.randn(5, 6)
    compiled = compile_sparse(model, x)
    assert chains(compiled)
    with torch.no_grad():
        assert_same(compiled(x), model.eval()(x))


def test_denormals_are_gone_wherever_weights_stay_dense(sparse_wins):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.layer = nn.LSTM(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            y, _ = self.memory(x)
            return self.layer(y) if y.sum() < 1e9 else y

    model, x = sparsened(Recurrent()), torch.randn(4, 2, 6)
    with torch.no_grad():
        model.memory.weight_ih_l0[0, 0] = 1e-40
    compiled = compile_sparse(model, x)
    assert chains(compiled)
    assert compiled.memory.weight_ih_l0[0, 0] == 0 != model.memory.weight_ih_l0[0, 0]
    with torch.no_grad():
        assert_same(compiled(x), model(x))


def test_denormal_weights_of_dense_layers_are_flushed(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), sparsened(nn.Linear(8, 8)))
    model[0].weight.data[0] = 1e-40
    decide(monkeypatch, 0.1)
    compiled = compile_sparse(model, torch.randn(2, 6))
    assert chains(compiled)
    assert model[0].weight[0].eq(1e-40).all()
    for value in compiled.state_dict().values():
        if value.is_floating_point():
            assert not ((value != 0) & (value.abs() < torch.finfo(torch.float32).tiny)).any()
