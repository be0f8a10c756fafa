import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_sequence
from torch.utils.flop_counter import FlopCounterMode

from secateur.measure import LayerFlops, count_flops

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def macs(layer: nn.Module, *example_inputs: object) -> int:
    flops = count_flops(layer, *example_inputs)
    assert flops.uncounted == ()
    return flops.macs


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(3, 2), (4, 3), 4 * 6),
        (nn.Linear(3, 2), (3,), 6),
        (nn.Linear(3, 2), (2, 5, 3), 10 * 6),
        # 7 − 3 + 1 = 5 places without padding
        (nn.Conv1d(2, 4, 3), (1, 2, 7), 5 * 4 * 2 * 3),
        (nn.Conv1d(2, 4, 3), (2, 7), 5 * 4 * 2 * 3),
        (nn.Conv1d(1, 1, 3, padding="same", dilation=2), (1, 1, 5), 5 * 3),
        # a kernel of 3 at dilation 2 spans 5: (9 − 5) ÷ 2 + 1 = 3 places a side
        (nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2), (1, 4, 9, 9), 9 * 6 * 2 * 9),
        (nn.Conv2d(3, 3, 3, padding=1, groups=3), (2, 3, 4, 4), 2 * 16 * 3 * 9),
        (nn.Conv2d(1, 1, (1, 3), stride=(2, 1)), (1, 1, 4, 5), (2 * 3) * 3),
        (nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 4), (2 * 2 * 3) * 2 * 8),
        # every weight meets every input position once, whatever the stride and the cropping
        (nn.ConvTranspose1d(2, 3, 4, padding=1), (1, 2, 5), 5 * 2 * 3 * 4),
        (nn.ConvTranspose2d(2, 3, 2, stride=2), (1, 2, 3, 3), 9 * 2 * 3 * 4),
        (nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), (2, 4, 2, 2), 2 * 4 * 4 * 3 * 9),
        (nn.ConvTranspose3d(1, 1, 2), (1, 1, 2, 2, 2), 8 * 8),
        # 5 steps of 2 sequences; 4, 3 and 1 gates of 4 units, each reading 3 inputs and 4 states
        (nn.LSTM(3, 4), (5, 2, 3), 10 * 4 * 4 * (3 + 4)),
        (nn.GRU(3, 4, batch_first=True), (2, 5, 3), 10 * 3 * 4 * (3 + 4)),
        (nn.RNN(3, 4), (5, 3), 5 * 4 * (3 + 4)),
        # layer 1 reads both directions: 8 inputs
        (nn.RNN(3, 4, num_layers=2, bidirectional=True), (5, 1, 3), 5 * 2 * (4 * (3 + 4) + 4 * (8 + 4))),
        # states projected from 4 to 2
        (nn.LSTM(3, 4, proj_size=2), (5, 1, 3), 5 * (16 * (3 + 2) + 2 * 4)),
        (nn.LSTMCell(3, 4), (2, 3), 2 * 16 * (3 + 4)),
        (nn.GRUCell(3, 4), (2, 3), 2 * 12 * (3 + 4)),
        (nn.RNNCell(3, 4), (3,), 4 * (3 + 4)),
        (nn.BatchNorm2d(3), (2, 3, 4, 4), 0),
        (nn.PReLU(), (2, 3), 0),
    ],
    ids=lambda value: repr(value) if isinstance(value, nn.Module) else "",
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_layer_does_the_products_counted_by_hand(layer, shape, expected):
    assert macs(layer, torch.ones(shape)) == expected


def test_a_flop_is_half_a_multiply_accumulate():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight[0])
    flops = count_flops(layer, torch.ones(4, 3))
    assert flops.layers == (LayerFlops("", calls=1, macs=24, sparse_macs=12),)
    assert (flops.flops, flops.sparse_flops) == (48, 24)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
def test_a_layer_without_outputs_does_nothing():
    assert macs(nn.Linear(3, 0), torch.ones(2, 3)) == 0


def test_a_look_up_multiplies_nothing():
    assert macs(nn.Embedding(5, 3), torch.tensor([1, 2])) == 0
    assert macs(nn.EmbeddingBag(5, 3), torch.tensor([[1, 2]])) == 0


def test_inputs_may_be_named_in_any_order():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(2, 1, kdim=3, vdim=4)
            self.rnn = nn.RNN(2, 2)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return self.rnn(hx=None, input=self.attention(value=v, key=k, query=q)[0])

    flops = count_flops(Named(), torch.ones(1, 2), torch.ones(5, 3), torch.ones(5, 4))
    attention, rnn = (layer.macs for layer in flops.layers)
    assert attention == 2 * 4 + 5 * 6 + 5 * 8 + 2 * (5 * 2)
    assert rnn == 2 * (2 + 2)


def test_a_weight_computed_by_a_hook_is_counted_and_its_ingredients_named():
    flops = count_flops(nn.utils.spectral_norm(nn.Linear(3, 2)), torch.ones(4, 3))
    assert (flops.macs, flops.uncounted) == (24, ("weight_orig",))


def test_a_packed_batch_counts_only_its_real_steps():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert macs(nn.RNN(2, 4), packed) == (3 + 1) * 4 * (2 + 4)


def test_a_bilinear_layer_multiplies_by_its_weights_then_by_its_second_input():
    layer = nn.Bilinear(2, 3, 4)
    layer.weight.data[0] = 0
    flops = count_flops(layer, torch.ones(5, 2), torch.ones(5, 3))
    assert flops.macs == 5 * (4 * 2 * 3 + 4 * 3)
    assert flops.sparse_macs == 5 * (3 * 2 * 3 + 4 * 3)


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_projects_each_input_by_its_own_length(batch_first):
    layer = nn.MultiheadAttention(4, 2, batch_first=batch_first)
    layer.in_proj_weight.data[4:8] = 0  # the projection of keys
    query, key = torch.ones(3, 2, 4), torch.ones(5, 2, 4)  # 3 queries, 5 keys, 2 sequences
    if batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    flops = count_flops(layer, query, key, key)
    between = 2 * (2 * 3 * 5 * 4)  # query × key, then attention × value
    assert flops.macs == 6 * 16 + 10 * 16 + 10 * 16 + 6 * 16 + between
    assert flops.sparse_macs == 6 * 16 + 10 * 16 + 6 * 16 + between
    assert flops.uncounted == ()


def test_attention_over_other_widths_and_extra_keys_counts_both():
    query, key, value = torch.ones(2, 4), torch.ones(6, 3), torch.ones(6, 5)
    projections = 2 * 16 + 6 * 12 + 6 * 20 + 2 * 16
    options = {"kdim": 3, "vdim": 5, "batch_first": True}  # no batch: the first dimension is the length all the same
    for extra, keys in [({}, 6), ({"add_zero_attn": True}, 7), ({"add_zero_attn": True, "add_bias_kv": True}, 8)]:
        layer = nn.MultiheadAttention(4, 2, **options, **extra)
        assert macs(layer, query, key, value) == projections + 2 * (2 * keys * 4)


def test_a_transformer_layer_is_counted_past_its_fused_path():
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    source, padding = torch.ones(1, 3, 4), torch.tensor([[False, False, True]])
    torch.backends.mha.set_fastpath_enabled(True)
    assert macs(encoder, source, None, padding) == 2 * (4 * 3 * 16 + 2 * 3 * 3 * 4 + 2 * 3 * 32)
    assert torch.backends.mha.get_fastpath_enabled()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(input=self.fc(x)[:1])


def test_a_layer_called_twice_counts_twice():
    assert count_flops(Twice(), torch.ones(4, 3)).layers == (
        LayerFlops("fc", calls=2, macs=(4 + 1) * 9, sparse_macs=(4 + 1) * 9),
    )


def test_tied_weights_count_once_for_each_layer_that_multiplies_by_them():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    flops = count_flops(model, torch.ones(1, 3))
    assert [(layer.name, layer.macs) for layer in flops.layers] == [("0", 9), ("1", 9)]


class Unseen(nn.Module):
    """A product written by hand, one layer read but not called, and one that does more than its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(3, 3))
        self.read = nn.Linear(3, 3)
        self.more = nn.Linear(3, 3)
        self.more.lora_a = nn.Parameter(torch.ones(3, 1))
        self.norm = nn.LayerNorm(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.more(nn.functional.linear(x, self.read.weight)) @ self.matrix)


def test_weights_whose_products_were_not_seen_are_named():
    flops = count_flops(Unseen(), torch.ones(1, 3))
    assert flops.uncounted == ("matrix", "read.weight", "more.lora_a")
    assert flops.macs == 9


class Halve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.ones(1, 1))
        self.inner = nn.Linear(2, 2)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        self.inner(torch.ones(1, 2))
        return weight * (weight.abs() > self.threshold)


def test_a_parametrized_layer_is_counted_by_what_it_reads_and_its_parametrization_not_at_all():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight.data = torch.tensor([[0.5, 2], [3, 4]])
    parametrize.register_parametrization(model[0], "weight", Halve())
    flops = count_flops(model, torch.ones(5, 2))
    assert flops.layers == (LayerFlops("0", calls=1, macs=20, sparse_macs=15),)
    assert flops.uncounted == ()


def test_measuring_leaves_modes_statistics_and_hooks_alone():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten()).train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count_flops(model, torch.randn(4, 1, 5, 5))
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_batch_norm_statistics_of_a_training_network_do_not_move():
    model = nn.BatchNorm1d(2).train()
    count_flops(model, torch.randn(4, 2))
    assert torch.equal(model.running_mean, torch.zeros(2))
    assert model.num_batches_tracked == 0


def test_a_forward_that_raises_leaves_no_trace():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4)).train()
    with pytest.raises(RuntimeError, match="shapes"):
        count_flops(model, torch.ones(1, 3))
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert torch.is_grad_enabled()


@st.composite
def convolutions(draw, kinds=CONVS, **options):
    dimensions, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    sizes = st.tuples(*[st.integers(1, 3)] * dimensions)
    layer = kinds[dimensions](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        draw(sizes),
        stride=draw(sizes),
        dilation=draw(st.integers(1, 2)),
        groups=groups,
        bias=False,
        **options,
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    layer.weight.data = (torch.rand(layer.weight.shape, generator=generator) < 0.6).float()
    image = torch.ones(draw(st.integers(1, 2)), layer.in_channels, *[draw(st.integers(5, 7))] * dimensions)
    return layer, image


# Ones times ones: each product adds exactly one to the sum of the outputs, so torch does the counting. The
# input must hold no zeros, hence no padding, or padding that repeats the input.
@settings(max_examples=40)
@given(convolutions() | convolutions(padding=1, padding_mode="circular") | convolutions(TRANSPOSED))
def test_a_convolution_of_ones_sums_to_its_sparse_macs(case):
    layer, image = case
    flops = count_flops(layer, image)
    assert flops.sparse_macs == int(layer(image).sum())
    nn.init.ones_(layer.weight)
    assert flops.macs == int(layer(image).sum())


@settings(max_examples=25)
@given(
    size=st.integers(5, 7),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_a_padded_convolution_multiplies_as_a_plain_loop_does(size, kernel, stride, dilation, padding, seed):
    layer = nn.Conv2d(2, 4, kernel, stride, padding, dilation, groups=2)
    layer.weight.data *= torch.rand(layer.weight.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    starts = [place for place in range(size + 2 * padding) if place % stride == 0]
    starts = [place for place in starts if place + dilation * (kernel - 1) < size + 2 * padding]
    products = sum(1 for _ in starts for _ in starts for value in layer.weight.flatten().tolist() if value != 0)
    assert count_flops(layer, torch.ones(1, 2, size, size)).sparse_macs == products


@settings(max_examples=20)
@given(convolutions(padding=1) | convolutions(TRANSPOSED, padding=1))
def test_dense_flops_are_those_torch_counts(case):
    layer, image = case
    with FlopCounterMode(display=False) as torch_counter:
        layer(image)
    assert count_flops(layer, image).flops == torch_counter.get_total_flops()


def test_attention_flops_are_those_torch_counts():
    layer = nn.MultiheadAttention(8, 2, kdim=3, vdim=5, add_bias_kv=True, batch_first=True)
    inputs = torch.ones(2, 4, 8), torch.ones(2, 6, 3), torch.ones(2, 6, 5)
    with FlopCounterMode(display=False) as torch_counter:
        layer(*inputs)
    assert count_flops(layer, *inputs).flops == torch_counter.get_total_flops()


def tiny_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, stride=2),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 3),
        nn.GRU(3, 2),
    )


@given(batch=st.integers(1, 6))
@settings(max_examples=6)
def test_macs_grow_linearly_with_the_batch(batch):
    one, many = (macs(tiny_network(), torch.randn(size, 1, 5, 5)) for size in (1, batch))
    assert many == batch * one


def test_without_zeros_sparse_and_dense_macs_are_one_number():
    model = tiny_network()
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    flops = count_flops(model, torch.randn(2, 1, 5, 5))
    assert all(layer.sparse_macs == layer.macs > 0 for layer in flops.layers)
    assert flops.sparse_macs == flops.macs == 2 * (4 * 18 + 24 + 6 * (3 + 2))
