"""Which reshapes a compiled network takes over."""

import pytest
import torch
from compiled import assert_same, chains, sparsened
from torch import Tensor, nn
from zoo import FLATTENS, IMAGES
from zoo_networks import Functional

from secateur.graph.simplify import simplify
from secateur.graph.trace import note_shapes, trace
from secateur.run import compile_sparse
from secateur.run.fusion import fused_layers, sequences

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@pytest.mark.parametrize("shape", [(4, 8, 16), (4, 1, 16)])
def test_flattening_other_dimensions_is_not_taken_for_making_vectors(shape, sparse_wins):
    class Merging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(end_dim=1))

    model = sparsened(Merging())
    compiled = compile_sparse(model, torch.randn(shape))
    assert chains(compiled)
    for x in (torch.randn(shape), torch.randn(2, 3, 16)):
        with torch.no_grad():
            assert_same(compiled(x), model(x))


@pytest.mark.parametrize(
    "view", [lambda x: x.view(-1, 20), lambda x: x.reshape((-1, 20)), lambda x: torch.reshape(x, shape=(-1, 20))]
)
def test_a_view_of_so_many_features_takes_what_it_took(view, sparse_wins):
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(view(x))

    model = sparsened(Viewing())
    compiled = compile_sparse(model, torch.randn(6, 4, 5))
    assert chains(compiled)
    for shape in ((6, 4, 5), (4, 5), (20,), (3, 2, 4, 5), (3, 40)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert_same(compiled(x), model(x))
    with pytest.raises(ValueError, match="takes 20 features, got an input of shape"):
        compiled(torch.randn(3, 7))


class ViewingWithResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x.view(-1, 20)) + y


class ViewingInTheMiddle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).view(-1, 20))


def test_something_can_be_added_to_a_view_of_so_many_features(sparse_wins):
    model, x, y = sparsened(ViewingWithResidual()), torch.randn(6, 4, 5), torch.randn(6, 3)
    compiled = compile_sparse(model, (x, y))
    assert chains(compiled)
    with torch.no_grad():
        for given in ((x, y), (x, y), (x[:1], y), (x[0], y[:1])):
            assert_same(compiled(*given), model(*given))


def test_a_view_between_joined_layers_makes_one_dimension_of_samples(sparse_wins):
    model = sparsened(ViewingInTheMiddle())
    compiled = compile_sparse(model, torch.randn(4, 6))
    assert [len(chain.names) for chain in chains(compiled)] == [2]
    for shape in ((4, 6), (2, 3, 6), (6,)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert_same(compiled(x), model(x))


def test_a_single_image_keeps_its_filters(sparse_wins):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    with torch.no_grad():
        sparsened(model)[0].weight[1], model[0].bias[1] = 0, 0
    x = torch.randn(2, 8, 8)  # whose channels become vectors, of as many pixels as 4 filters could have
    compiled = compile_sparse(model, x)
    with torch.no_grad():
        assert_same(compiled(x), model(x))


@pytest.mark.parametrize("name", FLATTENS)
def test_a_network_is_one_run_of_layers_however_its_images_are_flattened(name):
    graph = trace(sparsened(Functional(FLATTENS[name])).eval())
    note_shapes(graph, (torch.randn(IMAGES),))
    simplify(graph)
    note_shapes(graph, (torch.randn(IMAGES),))
    assert [len(sequence) for sequence in sequences(fused_layers(graph))] == [4]
