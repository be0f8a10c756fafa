"""Denil et al. 2013: the prediction is kernel ridge regression, and smooth weights are predicted by few."""

import pytest
import torch
from small_training import carry_out, small_network
from torch.testing import assert_close

from secateur import networks
from secateur.encode.formulas import Predicted
from secateur.functions.predicted import PredictedWeights
from secateur.measure import count
from secateur.methods.denil2013 import Denil2013
from secateur.train.recipe import Recipe


def test_the_prediction_is_kernel_ridge_regression():
    weight, formula = torch.randn(6, 2, 5, 7, dtype=torch.float64), Predicted(3, 11, 2, 5, 7)
    function = PredictedWeights.like(weight, formula, length=1.5, ridge=0.1, seed=0)
    grid = torch.cartesian_prod(torch.arange(2) * 1e6, torch.arange(5.0), torch.arange(7.0)).double()  # channels apart
    kernel = torch.exp(-(grid[:, None] - grid).square().sum(2) / (2 * 1.5**2))
    for group, (places, own) in enumerate(zip(function.places.long(), weight.flatten(1).chunk(3), strict=True)):
        known = kernel[places][:, places] + 0.1 * torch.eye(11, dtype=torch.float64)
        expected = own[:, places] @ torch.linalg.solve(known, kernel[places])
        assert_close(function(weight).flatten(1).chunk(3)[group], expected, rtol=1e-9, atol=1e-9)
    assert_close(function.settle(weight), function(weight), rtol=1e-12, atol=1e-12)


def test_smooth_weights_are_predicted_by_a_twentieth_of_them():
    height, width = torch.meshgrid(torch.linspace(0, 3, 28), torch.linspace(0, 3, 28), indexing="ij")
    weight = torch.stack([torch.sin(height * k) * torch.cos(width) for k in range(1, 4)]).view(3, 784).double()
    function = PredictedWeights.like(weight, Predicted(1, 39, 1, 28, 28), length=6, ridge=1e-6, seed=0)
    assert (function(weight) - weight).square().mean() < 0.01 * weight.square().mean()


@pytest.mark.parametrize("ratio", [2, 4])
def test_every_layer_stores_its_share(ratio):
    finished = carry_out(Denil2013(ratio=ratio), small_network())
    kept = count(finished).prunable
    assert 840 / ratio - 36 < kept.kept <= 840 / ratio
    assert [tensor.kept < tensor.weights for tensor in kept.tensors] == [True, True, False]


def test_the_first_layer_sees_the_image_and_groups_have_places_of_their_own():
    model = networks.build("lenet-300-100", seed=0)
    next(Denil2013(ratio=20, groups=7).stages(model, Recipe()))
    first, second = (layer.parametrizations.weight[0] for layer in (model.fc1, model.fc2))
    assert first.formula == Predicted(6, 35, 1, 28, 28)  # 10,917 numbers for 300 + 6 rows; 6 divides 300
    assert second.formula.height == second.formula.channels == 1
    assert not hasattr(model.fc3, "parametrizations")
    assert len({tuple(places) for places in first.places.tolist()}) == 6


@pytest.mark.parametrize("ratio", [30, 60, 100])
def test_the_last_layer_stays_as_it_is_so_that_classes_differ(ratio):
    finished = next(Denil2013(ratio=ratio).stages(networks.build("lenet-300-100", seed=0), Recipe())).model
    assert not hasattr(finished.fc3, "parametrizations")
    assert 0.9 * 266_200 / ratio < count(finished).prunable.kept <= 266_200 / ratio


@pytest.mark.parametrize("settings", [{"ratio": 1.0}, {"groups": 0}, {"length": 0.0}, {"ridge": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}.* must"):
        Denil2013(**settings)
