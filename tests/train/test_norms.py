"""Statistics of batch norms after pruning."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from secateur.train.norms import match_statistics


@pytest.fixture
def dense():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4))
    for norm in (model[1], model[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return model.eval()


@pytest.fixture
def batches():
    return list(torch.randn(4, 16, 3, 8, 8, generator=torch.Generator().manual_seed(1)))


def test_a_network_that_was_not_changed_keeps_its_statistics_on_any_inputs(dense, batches):
    model = copy.deepcopy(dense)
    match_statistics(model, dense, [3 * batch + 1 for batch in batches])
    for name, tensor in dense.state_dict().items():
        assert_close(model.state_dict()[name], tensor, msg=name)


def test_a_layer_whose_outputs_are_moved_computes_the_same_again(dense, batches):
    model = copy.deepcopy(dense)
    with torch.no_grad():
        model[0].bias += 5
    match_statistics(model, dense, [3 * batch + 1 for batch in batches])
    assert_close(model(batches[0]), dense(batches[0]), atol=1e-4, rtol=1e-4)


def test_a_layer_with_outputs_twice_as_large_has_four_times_the_variance(dense, batches):
    model = copy.deepcopy(dense)
    with torch.no_grad():
        model[0].weight *= 2
    match_statistics(model, dense, [3 * batch + 1 for batch in batches])
    assert_close(model[1].running_var, 4 * dense[1].running_var, atol=0, rtol=1e-3)


def test_with_the_data_of_the_training_statistics_are_those_of_the_pruned_network(dense, batches):
    torch.optim.swa_utils.update_bn(batches, dense)
    dense.eval()
    model = copy.deepcopy(dense)
    with torch.no_grad():
        model[0].weight[:, 0] = 0
    expected = copy.deepcopy(model)
    torch.optim.swa_utils.update_bn(batches, expected)
    match_statistics(model, dense, batches)
    for name in ("1.running_mean", "1.running_var", "4.running_mean", "4.running_var"):
        assert_close(model.state_dict()[name], expected.state_dict()[name], atol=1e-5, rtol=1e-3)


def test_a_channel_without_variance_keeps_its_statistics(dense, batches):
    with torch.no_grad():
        dense[0].weight[0] = 0
    model = copy.deepcopy(dense)
    match_statistics(model, dense, batches)
    assert_close(model[1].running_var, dense[1].running_var)


def test_networks_without_batch_norm_stay_as_they_are_and_keep_their_mode():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).eval()
    match_statistics(model, copy.deepcopy(model), [torch.randn(5, 3)])
    assert not model.training


def test_modes_and_the_dense_network_are_left_alone(dense, batches):
    model, before = copy.deepcopy(dense), copy.deepcopy(dense.state_dict())
    match_statistics(model, dense, batches)
    assert not model.training
    assert not model[1].training
    assert all(torch.equal(tensor, before[name]) for name, tensor in dense.state_dict().items())


def test_another_network_and_no_batches_are_refused(dense, batches):
    with pytest.raises(ValueError, match="the networks have 2 and 0 batch norms"):
        match_statistics(dense, nn.Linear(2, 2), batches)
    with pytest.raises(ValueError, match="at least one batch of inputs, got none"):
        match_statistics(copy.deepcopy(dense), dense, [])
