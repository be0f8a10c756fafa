"""DST: a hard mask with a long-tailed gradient, thresholds of rows, and their reset."""

import pytest
import torch
from small_training import small_network, train

from secateur.functions.row_threshold import RowThreshold
from secateur.measure import count
from secateur.methods.dst import Dst
from secateur.train.recipe import Recipe


@pytest.mark.parametrize(("distance", "slope"), [(0.1, 1.6), (-0.3, 0.8), (0.7, 0.4), (-0.9, 0.4), (1.5, 0.0)])
def test_the_step_has_the_published_slope(distance, slope):
    """∂(w·S(|w| − t))/∂t = −w·S′, and by w it is S + |w|·S′."""
    weight = torch.tensor([[2.0]], requires_grad=True)
    function = RowThreshold(weight.detach(), (1, 1), 0.01)
    function.threshold.data.fill_(2 - distance)
    read = function(weight)
    read.backward()
    assert read.item() == (2 if distance > 0 else 0)
    assert function.threshold.grad.item() == pytest.approx(-2 * slope, abs=1e-6)
    assert weight.grad.item() == pytest.approx((distance > 0) + 2 * slope, abs=1e-6)


def test_rows_have_thresholds_of_their_own_and_a_penalty_raises_them():
    weight = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    function = RowThreshold(weight, (2, 1), 0.01)
    function.threshold.data.copy_(torch.tensor([[0.5], [1.5]]))
    assert function(weight).tolist() == [[1, 2], [0, 2]]
    function.penalty(weight).backward()
    torch.testing.assert_close(function.threshold.grad, -torch.exp(-function.threshold.detach()))


def test_thresholds_of_a_layer_that_reads_less_than_one_in_a_hundred_begin_anew():
    weight = torch.linspace(0, 1, 1000).view(10, 100)
    function = RowThreshold(weight, (10, 1), 0.01)
    for threshold, left in ((0.985, 0.985), (0.995, 0.0)):
        function.threshold.data.fill_(threshold)
        with torch.no_grad():
            function.after_step(weight)
        assert function.threshold.unique().item() == pytest.approx(left)


def test_filters_of_convolutions_are_rows_and_the_cut_is_exact():
    stages = Dst(ratio=10).stages(model := small_network(), Recipe())
    next(stages)
    assert model[0].parametrizations.weight[0].threshold.shape == (4, 1, 1, 1)
    train(model)
    assert count(next(stages).model).prunable.kept == 84
