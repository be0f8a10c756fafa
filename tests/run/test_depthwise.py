"""Depthwise convolutions: all weights are multiplied, and the answer is that of torch, whatever the shape."""

import copy

import pytest
import torch
import torch.nn.functional as F
from compiled import assert_same, chains, sparsened
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sparse_layers import (
    ACTIVATIONS,
    BUILDS,
    assert_near,
    chain_of,
    dense,
    needs_native,
    sparse_layer,
    steps_of,
    threads,
    ways,
)
from torch import Tensor, nn

import secateur
from secateur.run import Group, Kernel, SparseChain, compile_sparse, load_sparse, timing
from secateur.run.kernels import bindings
from secateur.run.sparse_layer import Pool, SparseLayer, Window

sides = st.one_of(st.integers(0, 4), st.integers(0, 20))
sizes = st.one_of(st.integers(1, 20), st.sampled_from([28, 31, 32, 33, 56, 112]), st.integers(1, 150))


def depthwise(channels: int, filters: tuple[int, int], window: Window | None = None, **options) -> SparseLayer:
    window = Window(groups=channels) if window is None else window
    return sparse_layer((channels, 1, *filters), options.pop("density", 1.0), window=window, **options)


@settings(max_examples=500)
@given(
    channels=st.integers(1, 9),
    filters=st.one_of(st.sampled_from([(3, 3), (5, 5), (7, 7)]), st.tuples(st.integers(1, 8), st.integers(1, 8))),
    stride=st.one_of(st.sampled_from([(1, 1), (2, 2)]), st.tuples(st.integers(1, 4), st.integers(1, 4))),
    frame=st.one_of(st.integers(0, 3).map(lambda side: (side,) * 4), st.tuples(*[sides] * 4)),
    size=st.tuples(sizes, sizes),
    batch=st.integers(1, 3),
    density=st.sampled_from([0.0, 0.3, 1.0]),
    activation=st.sampled_from(ACTIVATIONS),
    adds=st.booleans(),
    way=ways,
    seed=st.integers(0, 2**20),
)
def test_a_depthwise_convolution_is_the_dense_one(
    channels, filters, stride, frame, size, batch, density, activation, adds, way, seed
):
    torch.manual_seed(seed)
    window = Window(stride, groups=channels).framed_by(frame)
    out = window.out(size, filters)
    assume(min(out) >= 1)
    layer = depthwise(channels, filters, window, density=density, activation=activation)
    assert layer.is_depthwise
    x = torch.randn(batch, channels, *size)
    residual = torch.randn(batch, channels, *out) if adds else None
    chain = chain_of([layer], Kernel(), way)
    for _ in range(2):
        assert_near(chain(x, residual), dense([layer], x, residual))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_a_filter_of_one_weight_scales_its_channel(way):
    layer = depthwise(5, (1, 1))
    x = torch.randn(2, 5, 9, 11)
    found = chain_of([layer], Kernel(), way)(x)
    torch.testing.assert_close(found, x * layer.weight.dense().view(-1, 1, 1) + torch.tensor(layer.bias)[:, None, None])


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_a_filter_of_ones_counts_the_pixels_that_it_reads(way):
    layer = depthwise(2, (3, 3), Window((2, 2), (1, 1), groups=2))
    layer.weight.values[:], layer.bias[:] = 1, 0
    found = chain_of([layer], Kernel(), way)(torch.ones(1, 2, 5, 5))
    assert found[0, 1].tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [6, 19, 70])
def test_nan_and_infinities_come_out_as_in_torch(way, stride, size):
    layer = depthwise(3, (3, 3), Window((stride,) * 2, (1, 1), groups=3), density=0.5)
    x = torch.randn(2, 3, size, size)
    odd = torch.rand(x.shape)
    x[odd < 0.01], x[odd > 0.99], x[(odd > 0.5) & (odd < 0.51)] = torch.nan, -torch.inf, torch.inf
    wanted = F.conv2d(x, layer.weight.dense(), torch.from_numpy(layer.bias), stride, 1, groups=3)
    assert not wanted.isfinite().all()
    torch.testing.assert_close(chain_of([layer], Kernel(), way)(x), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("way", BUILDS)
@pytest.mark.parametrize("filters", [3, 5, 9])
def test_images_that_fill_the_cache_are_made_in_bands(way, filters):
    for stride, size in ((1, (131, 120)), (2, (97, 241)), (3, (40, 500))):
        layer = depthwise(3, (filters, filters), Window((stride,) * 2, (filters // 2,) * 2, groups=3))
        x = torch.randn(1, 3, *size)
        assert_near(chain_of([layer], Kernel(), way)(x), dense([layer], x))


@pytest.mark.parametrize("way", BUILDS)
@pytest.mark.parametrize("size", [4, 14, 40])
def test_there_are_zeros_around_an_image_whatever_the_thread_worked_with_before(way, size):
    layer, x = depthwise(3, (5, 5), Window(padding=(2, 2), groups=3)), torch.randn(1, 3, size, size)
    other, noise = depthwise(2, (3, 3), Window(padding=(1, 1), groups=2)), torch.full((1, 2, 90, 90), 1e6)
    chain_of([other], Kernel(), way)(noise)
    assert_near(chain_of([layer], Kernel(), way)(x), dense([layer], x))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_an_empty_batch_gives_an_empty_answer(way):
    layer = depthwise(3, (3, 3), Window((2, 2), groups=3))
    assert chain_of([layer], Kernel(), way)(torch.randn(0, 3, 9, 9)).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_one_chain_takes_images_of_any_size(way):
    chain = chain_of([depthwise(4, (3, 3))], Kernel(), way)
    for size in ((9, 9), (5, 6), (30, 7), (9, 9), (3, 3)):
        x = torch.randn(3, 4, *size)
        assert_near(chain(x), dense(chain.layers(), x))
    with pytest.raises(ValueError, match="smaller than the layer's filters"):
        chain(torch.randn(1, 4, 2, 9))


@pytest.mark.parametrize("way", BUILDS)
def test_denormals_are_flushed(way):
    layer = depthwise(1, (1, 1))
    layer.weight.values[:], layer.bias[:] = 1e30, 0
    assert chain_of([layer], Kernel(), way)(torch.full((1, 1, 3, 20), 1e-39)).count_nonzero() == 0


@needs_native
@pytest.mark.parametrize("activation", ["relu6", "silu"])
def test_the_bits_do_not_depend_on_the_number_of_threads(activation):
    layer = depthwise(37, (3, 3), Window(padding=(1, 1), groups=37), activation=activation)
    x, found = torch.randn(1, 37, 60, 61), []
    for count in (1, 2, 3):
        with threads(count):
            found.append(SparseChain([layer])(x))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert_near(found[0], dense([layer], x))


def is_depthwise(module: nn.Module) -> bool:
    return SparseLayer.of(module).is_depthwise


def test_what_a_depthwise_convolution_is():
    assert is_depthwise(nn.Conv2d(6, 6, 3, 2, 1, groups=6))
    assert is_depthwise(nn.Conv1d(6, 6, 3, groups=6))
    assert not is_depthwise(nn.Conv2d(6, 12, 3, groups=6))
    assert not is_depthwise(nn.Conv2d(6, 6, 3, groups=3))
    assert not is_depthwise(nn.Conv2d(6, 6, 3, dilation=2, groups=6))
    assert not is_depthwise(nn.Conv2d(6, 6, 3, dilation=(1, 2), groups=6))
    assert not depthwise(6, (3, 3), pool=Pool(2, 2)).is_depthwise


@needs_native
@pytest.mark.parametrize("kernel", [Kernel(), Kernel(aligned=True, spread=2), Kernel(1)])
def test_only_single_samples_have_a_kernel_of_their_own(kernel):
    chain = SparseChain([depthwise(4, (3, 3))], kernel)
    chain(torch.randn(17, 4, 9, 9))
    assert (steps_of(chain)[0].kind == bindings.DEPTHWISE) == (kernel.vectors == 0)


class Separable(nn.Module):
    """A block of EfficientNet-Lite: uneven zeros, a depthwise convolution and two of 1 × 1 pixel."""

    def __init__(self, stride: int = 2) -> None:
        super().__init__()
        self.expand, self.norm0 = nn.Conv2d(4, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, stride, groups=12, bias=False)
        self.norm1 = nn.BatchNorm2d(12)
        self.project = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(F.relu6(self.norm0(self.expand(x))), (0, 1, 1, 0))
        return self.project(F.relu6(self.norm1(self.depthwise(x))))


def separable() -> nn.Module:
    model = sparsened(Separable())
    nn.init.normal_(model.depthwise.weight)
    return model.eval()


def test_a_depthwise_convolution_takes_what_stands_around_it_into_its_call(monkeypatch):
    monkeypatch.setattr(timing, "race", lambda calls, **_: [0.2, *[0.1 for _ in calls[1:]]])
    model, x = separable(), torch.randn(1, 4, 8, 8)
    fast = compile_sparse(model, x)
    assert [group.layers for group in fast.plan.groups] == [("expand", "depthwise", "project")]
    assert fast.plan.weights["depthwise"] == ((12, 1, 3, 3), 108)
    assert not fast.plan.dense
    assert [node.op for node in fast.graph.nodes] == ["placeholder", "get_attr", "call_method", "output"]
    with torch.no_grad():
        for network in (fast, copy.deepcopy(fast), compile_sparse(model, x, plan=fast.plan)):
            assert_same(network(x), model(x))


def timed_as(monkeypatch, sparse_ms: float) -> None:
    """Let each way of a depthwise convolution take so long, and all others lose."""

    def race(calls, **_):
        for call in calls:
            call()
        return [1.0, *[sparse_ms if len(calls) == 2 else 5.0 for _ in calls[1:]]]

    monkeypatch.setattr(timing, "race", race)


@pytest.mark.parametrize(("sparse_ms", "wins"), [(0.9, True), (0.95, False)])
def test_our_kernel_is_used_where_it_wins_by_the_same_rule_as_others(monkeypatch, sparse_ms, wins):
    timed_as(monkeypatch, sparse_ms)
    model, x = nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.MaxPool2d(2)).eval(), torch.randn(1, 6, 9, 9)
    fast = compile_sparse(model, x)
    assert fast.plan.groups == (Group(("0",), Kernel() if wins else None, 1.0, sparse_ms),)
    assert len(chains(fast)) == wins
    if not wins:
        assert fast.plan.dense["0"].startswith("not faster")
    with torch.no_grad():
        assert_same(fast(x), model(x))


def test_a_layer_that_is_too_dense_stays_so_next_to_a_depthwise_convolution(monkeypatch):
    timed_as(monkeypatch, 0.5)
    model = separable()
    nn.init.normal_(model.project.weight)
    fast = compile_sparse(model, torch.randn(1, 4, 8, 8))
    ways = {name: group.kernel is not None for group in fast.plan.groups for name in group.layers}
    assert ways["depthwise"]
    assert not ways["project"]
    assert fast.plan.dense["project"] == "too dense: 100% of its weights are left"


@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize("planned", [False, True])
def test_a_file_is_loaded_with_our_kernels(tmp_path, monkeypatch, batch, planned):
    monkeypatch.setattr(timing, "race", lambda calls, **_: [1.0, *[0.5 for _ in calls[1:]]])
    model = secateur.networks.build("efficientnet-lite0", seed=0, input_shape=(3, 32, 32)).eval()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1):
            layer.weight.data[torch.rand(layer.weight.shape) < 0.8] = 0
    x = torch.randn(batch, 3, 32, 32)
    metadata = {"plan": compile_sparse(model, x).plan.to_json()} if planned else {}
    secateur.save(model, tmp_path / "model.cut", metadata=metadata)
    network = load_sparse(tmp_path / "model.cut", batch=batch)
    assert len([name for group in network.plan.sparse_groups for name in group.layers if "depthwise" in name]) == 16
    with torch.no_grad():
        assert_same(network(x), model(x))


@pytest.mark.parametrize(("channels", "is_tried"), [(3, True), (4, True), (5, False)])
def test_a_dense_convolution_of_few_channels_is_tried_all_the_same(monkeypatch, channels, is_tried):
    monkeypatch.setattr(timing, "race", lambda calls, **_: [1.0, *[0.5 for _ in calls[1:]]])
    model, x = nn.Sequential(nn.Conv2d(channels, 8, 3, 2)).eval(), torch.randn(1, channels, 9, 9)
    fast = compile_sparse(model, x)
    assert len(chains(fast)) == is_tried
    with torch.no_grad():
        assert_same(fast(x), model(x))


@pytest.mark.parametrize(
    ("dense_ms", "batch", "joins"),
    [(1.6, 1, True), (1.7, 1, False), (6.0, 2, True), (13.3, 8, True), (13.4, 8, False)],
)
def test_depthwise_convolutions_are_joined_with_their_neighbours_up_to_five_milliseconds_an_image(
    monkeypatch, dense_ms, batch, joins
):
    monkeypatch.setattr(timing, "race", lambda calls, **_: [dense_ms, *[0.1 for _ in calls[1:]]])
    fast = compile_sparse(separable(), torch.randn(batch, 4, 8, 8))
    assert len(fast.plan.groups) == (1 if joins else 3)
