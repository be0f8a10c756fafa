"""Signs of weights and inputs: values, scales, straight-through gradients, and what is drawn."""

import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from secateur.functions.inputs import SignInputs, attach_inputs
from secateur.functions.sign import Sign


def test_the_scale_of_a_filter_is_the_best_for_its_signs():
    weight = torch.randn(3, 8)
    read = Sign(None)(weight)
    assert_close(read, weight.sign() * weight.abs().mean(1, keepdim=True))
    for factor in (0.9, 1.1):
        assert ((weight - read) ** 2).sum() < ((weight - factor * read) ** 2).sum()


def test_the_gradient_passes_where_a_weight_is_not_clipped():
    weight = torch.tensor([[-0.7, 0.2], [0.0, 3.0]], requires_grad=True)
    read = Sign(0.5)(weight)
    assert read.tolist() == [[-0.5, 0.5], [0.5, 0.5]]
    read.backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert weight.grad.tolist() == [[0.0, 2.0], [3.0, 0.0]]
    with torch.no_grad():
        Sign(0.5).after_step(weight)
    assert_close(weight.detach(), torch.tensor([[-0.5, 0.2], [0.0, 0.5]]))


def test_drawn_signs_are_unbiased_in_training_and_fixed_after_it():
    function, weight = Sign(0.5, is_stochastic=True), torch.full((40_000,), 0.2)
    assert_close(function(weight).mean(), torch.tensor(0.2), atol=0.01, rtol=0)
    assert set(function.eval()(weight).tolist()) == set(function.settle(weight).tolist()) == {0.5}


def test_inputs_become_signs_around_their_mean_whose_gradient_is_that_of_the_hard_tanh():
    function, x = SignInputs(3, scaled=False), torch.randn(200, 3, requires_grad=True)
    out = function(x.relu())
    assert (out.detach().unique().tolist(), bool((out.mean(0).abs() < 0.6).all())) == ([-1.0, 1.0], True)
    out.sum().backward()
    hard = x.detach().requires_grad_()
    functional.hardtanh(functional.batch_norm(hard.relu(), None, None, training=True)).sum().backward()
    assert_close(x.grad, hard.grad)


def test_products_are_multiplied_by_the_mean_size_of_their_inputs_before_the_bias():
    layer, x = nn.Conv2d(2, 3, 3, stride=2), torch.randn(4, 2, 7, 7)
    plain = nn.Conv2d(2, 3, 3, stride=2)
    plain.load_state_dict(layer.state_dict())
    attach_inputs(layer, SignInputs(2, scaled=True))
    hat = functional.batch_norm(x, None, None, training=True)
    sizes = functional.avg_pool2d(hat.abs().mean(1, keepdim=True), 3, stride=2)
    bias = plain.bias.view(-1, 1, 1)
    assert_close(layer(x), (plain(hat.sign()) - bias) * sizes + bias)
