"""Vector quantisation: what the three quantisers leave, how they are counted, and codebooks of a budget."""

import pytest
import torch
from small_training import carry_out, small_network
from torch import nn
from torch.testing import assert_close

from secateur import networks
from secateur.budget import Budget
from secateur.encode.formulas import Vectors
from secateur.functions.vector_codebook import VectorCodebook
from secateur.measure import count
from secateur.methods.vector_quantization import VectorQuantization
from secateur.train.recipe import Recipe


@pytest.mark.parametrize(
    "formula", [Vectors(3, 1, 3, 4), Vectors(3, 1, 1, 4), Vectors(1, 2, 1, 4), Vectors(6, 1, 1, 3)]
)
def test_every_entry_is_the_mean_of_what_it_stands_for(formula):
    weight = torch.randn(40, 6, dtype=torch.float64)
    function = VectorCodebook.fitted(weight, formula)
    left = (weight - function(weight)).view(40, formula.segments, -1)
    of_own = torch.arange(formula.segments) % formula.codebooks * formula.centroids + function.index[-1]
    sums = torch.zeros(formula.codebooks * formula.centroids, left.shape[2]).double()
    sums.index_add_(0, of_own.flatten(), left.detach().flatten(0, 1))
    assert_close(sums, torch.zeros_like(sums), atol=1e-9, rtol=0)  # Lloyd's iteration has ended


def test_more_codebooks_leave_less_and_enough_entries_nothing():
    weight = torch.randn(30, 8)
    errors = [(VectorCodebook.fitted(weight, Vectors(1, n, 1, 4))(weight) - weight).norm().item() for n in (1, 2, 4)]
    assert errors[0] > errors[1] > errors[2]
    assert_close(VectorCodebook.fitted(weight, Vectors(4, 1, 4, 50))(weight), weight)  # more than there are rows


def test_the_gradient_of_an_entry_is_the_sum_over_its_segments():
    function, upstream = VectorCodebook.fitted(torch.randn(9, 6), Vectors(2, 2, 2, 3)), torch.randn(9, 6)
    function(upstream).backward(upstream)
    for t, segment, entry in ((0, 0, 0), (1, 1, 2)):
        own = function.index[t, :, segment] == entry
        found = function.codebook.grad.view(2, 2, 3, 3)[t, segment, entry]
        assert_close(found, upstream.view(9, 2, 3)[own, segment].sum(0))


@pytest.mark.parametrize("scheme", ["product", "residual"])
@pytest.mark.parametrize("ratio", [2.5, 3])
def test_a_budget_is_met_with_indices_counted_and_convolutions_left_alone(scheme, ratio):
    method = VectorQuantization(scheme=scheme).with_budget(Budget(ratio=ratio))
    kept = count(carry_out(method, small_network())).prunable
    assert kept.kept <= 840 / ratio
    assert [tensor.kept for tensor in kept.tensors if tensor.weights == 36] == [36, 36]  # too small for codebooks


@pytest.mark.parametrize("ratio", [3, 10, 30])
def test_classes_do_not_share_segments(ratio):
    model = networks.build("lenet-300-100", seed=0)
    before = model.fc3.weight.clone()
    _, finished = (stage.model for stage in VectorQuantization(ratio=ratio).stages(model, Recipe()))
    assert torch.equal(finished.fc3.weight, before)
    assert 0.8 * 266_200 / ratio < count(finished).prunable.kept <= 266_200 / ratio


def test_kmeans_stores_an_index_for_every_weight():
    finished = carry_out(VectorQuantization(scheme="kmeans", centroids=5), small_network())
    assert all(len(layer.weight.unique()) <= 5 for layer in finished if isinstance(layer, nn.Linear))
    with pytest.raises(ValueError, match='"kmeans" stores an index for every weight'):
        VectorQuantization(scheme="kmeans").with_budget(Budget(ratio=4))
    with pytest.raises(ValueError, match="cannot reach a ratio of 50: choose a smaller one"):
        VectorQuantization(ratio=50).check(small_network())
