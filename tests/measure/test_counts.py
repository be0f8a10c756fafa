import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from secateur import targets
from secateur.measure import TensorCount, count, prunable_names


class HardThreshold(nn.Module):
    """Zero what lies at or below a threshold that is itself a parameter."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.tensor(threshold))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (weight.abs() > self.threshold)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embed.weight


def linear(rows: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows))
    layer.weight.data = torch.tensor(rows, dtype=torch.float32)
    nn.init.ones_(layer.bias)
    return layer


def test_whole_model_and_prunable_sparsity_differ_by_biases_and_norms():
    model = nn.Sequential(linear([[1, 0, 0], [0, 2, 3]]), nn.BatchNorm1d(2))
    counts = count(model)
    assert counts.prunable.tensors == (TensorCount("0.weight", (2, 3), weights=6, zeros=3),)
    assert (counts.prunable.sparsity, counts.prunable.ratio) == (3 / 6, 2.0)
    # 6 weights, 2 biases, 2 scales (ones) and 2 shifts (zeros) of the norm; running statistics are buffers.
    assert [tensor.name for tensor in counts.whole.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert (counts.whole.weights, counts.whole.zeros) == (12, 5)
    assert (counts.whole.sparsity, counts.whole.ratio) == (5 / 12, 12 / 7)


def test_kept_sparsity_and_ratio_say_three_views_of_one_tensor():
    tensor = TensorCount("w", (2, 5), weights=10, zeros=6)
    assert (tensor.kept, tensor.sparsity, tensor.ratio) == (4, 0.6, 2.5)


def test_the_ratio_of_a_tensor_without_survivors_is_infinite():
    tensor = TensorCount("w", (4,), weights=4, zeros=4)
    assert (tensor.sparsity, tensor.ratio) == (1.0, math.inf)


def test_a_model_without_prunable_weights_has_lost_none_of_them():
    prunable = count(nn.ReLU()).prunable
    assert (prunable.weights, prunable.sparsity, prunable.ratio) == (0, 0.0, 1.0)


def test_only_exact_zeros_are_zeros():
    values = [math.nan, math.inf, 1e-38, -0.0, 0.0]
    assert count(linear([values])).prunable.zeros == 2


def test_a_tied_tensor_is_counted_once_under_its_first_name():
    model = Tied()
    assert prunable_names(model) == ("embed.weight",)
    assert [tensor.name for tensor in count(model).whole.tensors] == ["embed.weight", "head.bias"]
    assert count(model).whole.weights == 15 + 5


def test_parameters_that_share_memory_are_one_tensor():
    model = Tied()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    assert count(model).prunable.weights == 15


def test_a_module_used_under_two_names_is_counted_once():
    layer = nn.Linear(2, 2)
    assert count(nn.Sequential(layer, nn.ReLU(), layer)).whole.weights == 6


def test_a_tensor_that_any_prunable_layer_reads_is_prunable_even_if_another_names_it_first():
    model = nn.Module()
    model.table = nn.Parameter(torch.ones(2, 3))
    model.head = nn.Linear(3, 2)
    model.head.weight = model.table
    assert prunable_names(model) == ("table",)


def test_a_parametrized_weight_is_counted_as_its_layer_reads_it():
    model = nn.Sequential(linear([[0.1, 0.2, 3], [0.3, 4, 5]]))
    plain = count(model).whole
    parametrize.register_parametrization(model[0], "weight", HardThreshold(0.2))
    assert count(model).prunable.tensors == (TensorCount("0.weight", (2, 3), weights=6, zeros=2),)
    assert [tensor.name for tensor in count(model).whole.tensors] == [tensor.name for tensor in plain.tensors]
    assert count(model).whole.weights == plain.weights


def test_a_parametrization_chain_is_counted_at_its_end():
    model = linear([[1, 2, 3, 4]])
    parametrize.register_parametrization(model, "weight", HardThreshold(1.0))
    parametrize.register_parametrization(model, "weight", HardThreshold(3.0))
    assert count(model).prunable.zeros == 3


def test_a_weight_made_of_two_originals_is_one_tensor():
    model = parametrizations.weight_norm(nn.Linear(3, 2))
    assert count(model).whole.tensors == (
        TensorCount("weight", (2, 3), weights=6, zeros=0),
        TensorCount("bias", (2,), weights=2, zeros=0),
    )


def tie_parametrized(shared: bool) -> Tied:
    model, first = Tied(), HardThreshold(0.5)
    model.embed.weight.data = torch.linspace(0, 1, 15).view(5, 3)  # the first 8 values are at most 0.5
    parametrize.register_parametrization(model.embed, "weight", first)
    parametrize.register_parametrization(model.head, "weight", first if shared else HardThreshold(-1.0))
    model.head.parametrizations.weight.original = model.embed.parametrizations.weight.original
    return model


def test_a_tied_tensor_behind_one_parametrization_is_counted_once():
    counts = count(tie_parametrized(shared=True))
    assert counts.prunable.tensors == (TensorCount("embed.weight", (5, 3), weights=15, zeros=8),)


def test_one_original_read_through_two_parametrizations_is_two_tensors():
    counts = count(tie_parametrized(shared=False))
    assert [(tensor.name, tensor.zeros) for tensor in counts.prunable.tensors] == [
        ("embed.weight", 8),
        ("head.weight", 1),
    ]


def test_a_tensor_masked_by_torch_prune_is_counted_masked():
    model = prune.l1_unstructured(linear([[1, 2], [3, 4]]), "weight", amount=3)
    counts = count(model)
    assert counts.prunable.tensors == (TensorCount("weight", (2, 2), weights=4, zeros=3),)
    assert counts.whole.weights == 6


def test_counting_leaves_a_training_spectral_norm_where_it_was():
    model = parametrizations.spectral_norm(nn.Linear(4, 4)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_counting_does_not_poison_the_cache_of_parametrizations():
    model = linear([[1, 2]])
    parametrize.register_parametrization(model, "weight", HardThreshold(0.5))
    with parametrize.cached():
        count(model)
        assert model.weight.requires_grad


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (nn.Linear(2, 2), ["weight"]),
        (nn.Conv1d(1, 2, 3), ["weight"]),
        (nn.ConvTranspose3d(1, 2, 3), ["weight"]),
        (nn.Embedding(3, 2), ["weight"]),
        (nn.EmbeddingBag(3, 2), ["weight"]),
        (nn.Bilinear(2, 2, 2), ["weight"]),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), ["in_proj_weight", "out_proj.weight"]),
        (
            nn.MultiheadAttention(4, 2, kdim=3),
            ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"],
        ),
        (nn.LSTM(2, 3, proj_size=1), ["weight_ih_l0", "weight_hh_l0", "weight_hr_l0"]),
        (nn.GRUCell(2, 3), ["weight_ih", "weight_hh"]),
        (nn.LayerNorm((2, 2)), []),
        (nn.BatchNorm2d(2), []),
        (nn.PReLU(2), []),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_the_matrices_of_a_layer_are_prunable_and_nothing_else(layer, names):
    assert list(prunable_names(layer)) == names


def test_a_vector_is_not_prunable_even_in_a_prunable_layer():
    layer = nn.Linear(2, 2)
    layer.weight_scale = nn.Parameter(torch.ones(2))
    assert prunable_names(layer) == ("weight",)


def test_a_parametrized_buffer_is_not_a_parameter():
    model = linear([[1, 2]])
    model.register_buffer("table", torch.ones(3))
    parametrize.register_parametrization(model, "table", nn.Identity())
    assert count(model).whole.weights == 3


def test_the_caller_may_say_which_tensors_are_prunable():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    counts = count(model, prunable=["1.weight", "1.bias"])
    assert [tensor.name for tensor in counts.prunable.tensors] == ["1.weight", "1.bias"]
    assert counts.whole.weights == 6 + 9


def test_a_prunable_tensor_may_be_given_by_any_of_its_names():
    counts = count(Tied(), prunable=["head.weight"])
    assert [tensor.name for tensor in counts.prunable.tensors] == ["embed.weight"]


def test_an_unknown_prunable_name_is_refused_by_name():
    with pytest.raises(ValueError, match=r'no parameter "0\.wieght"'):
        count(nn.Sequential(nn.Linear(2, 2)), prunable=["0.wieght"])


@settings(max_examples=30)
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    density=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_totals_are_the_sums_over_parameters(widths, density, seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(*[nn.Linear(inner, outer) for inner, outer in pairwise(widths)])
    for parameter in model.parameters():
        parameter.data = (torch.rand(parameter.shape, generator=generator) < density).float()
    whole, weights = count(model).whole, [layer.weight for layer in model]
    assert whole.weights == sum(math.prod(parameter.shape) for parameter in model.parameters())
    assert whole.kept == sum(int(parameter.sum()) for parameter in model.parameters())
    assert count(model).prunable.kept == sum(int(weight.sum()) for weight in weights)


class LowRankAdapted(nn.Linear):
    """A linear layer with two further matrices, as some LoRA implementations have it."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.lora_a = nn.Parameter(torch.ones(2, 4))
        self.lora_b = nn.Parameter(torch.ones(3, 2))


class Adapter(nn.Module):
    """A LoRA adapter as a module of its own around a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3)
        self.lora_a, self.lora_b = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)


def tied_in_memory() -> Tied:
    model = Tied()
    model.head.weight = nn.Parameter(model.embed.weight.data)
    return model


def named_by_another_layer_first() -> nn.Module:
    model = nn.Module()
    model.table = nn.Parameter(torch.ones(2, 3))
    model.head = nn.Linear(3, 2)
    model.head.weight = model.table
    return model


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (LowRankAdapted, 3),
        (Adapter, 3),
        (Tied, 1),
        (tied_in_memory, 1),
        (named_by_another_layer_first, 1),
        (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), 2),
        (lambda: nn.MultiheadAttention(4, 2, kdim=3), 4),
        (lambda: prune.l1_unstructured(nn.Linear(3, 3), "weight", amount=3), 1),
    ],
)
def test_what_is_pruned_is_what_is_counted(make, number):
    model = make()
    counted = {tensor.name: tensor.weights for tensor in count(model).prunable.tensors}
    assert counted == {target.name: target.weights for target in targets(model)}
    assert len(counted) == number


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_normalised_weight_counts_as_the_plain_layer_is_pruned_and_is_not_pruned_itself(norm):
    planned = [(target.name, target.weights) for target in targets(nn.Linear(3, 2))]
    model = norm(nn.Linear(3, 2))
    assert [(tensor.name, tensor.weights) for tensor in count(model).prunable.tensors] == planned
    with pytest.raises(ValueError, match="nothing to prune"):
        targets(model)
