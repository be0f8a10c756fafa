import torch
from torch.testing import assert_close
from toy_networks import mlp

from secateur import Budget, Pruner, build_sibling
from secateur.experiments.training import measure_progress
from secateur.methods.continuous_sparsification import ContinuousSparsification
from secateur.train.recipe import Recipe


def measured(model):
    """Return the log line of a network, and the answers of every network that was evaluated for it."""
    x, answers = torch.randn(5, 12), []

    def error(network):
        with torch.no_grad():
            answers.append(network(x))
        return float(len(answers))

    return measure_progress(model, error), answers, x


def test_a_network_with_a_budget_answers_as_the_one_that_is_cut_and_is_evaluated_once():
    model = mlp()
    Pruner(model, Budget(ratio=3)).advance(5, 10)
    line, [answers], x = measured(model)
    assert line["ratio"] > 2
    assert line["sibling_error"] == line["error"]
    with torch.no_grad():
        assert_close(answers, model(x), rtol=0, atol=0)


def test_a_soft_sibling_is_evaluated_as_it_is_too():
    line, answers, _ = measured(build_sibling(mlp()))
    assert len(answers) == 2
    assert line["sibling_error"] != line["error"]


def test_a_network_with_scores_is_measured_as_if_it_were_cut_now_even_if_a_layer_would_be_empty():
    model = mlp()
    next(ContinuousSparsification(ratio=None).stages(model, Recipe()))
    assert measured(model)[0]["kept"] == 0  # gates start at zero
    layer = model[0].parametrizations.weight
    layer[0].gate.data[:2] = 1.0
    assert measured(model)[0]["kept"] == 2 * layer.original.shape[1]
