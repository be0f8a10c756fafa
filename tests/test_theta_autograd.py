"""The native θ does what the paper's formula says, in the same bits whatever the number of threads."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from secateur import native, theta_autograd
from secateur.theta_autograd import layout, usable_layout

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the native library is not built")

ALPHA = 128.0
SHARPNESS = [0.0, 1e-3, 0.1, 1.0, 2.0, 5.0, 20.0, 30.0, 100.0, 1e3, 1e4]  # α·t
SETTLED = math.exp(-17)  # what settling far-away weights may change: this much of t, or of a derivative

# (weight, threshold, (outer, groups, inner)); odd sizes, so that no vector and no block comes out even.
LAYOUTS = [
    ((), (), (1, 1, 1)),
    ((7,), (), (1, 1, 7)),
    ((20011,), (1,), (1, 1, 20011)),
    ((301, 113), (301, 1), (1, 301, 113)),
    ((301, 113), (1, 113), (301, 113, 1)),
    ((301, 113), (113,), (301, 113, 1)),
    ((301, 113), (301, 113), (1, 34013, 1)),
    ((3, 5001), (1, 5001), (3, 5001, 1)),
    ((19, 13, 3, 3), (19, 1, 1, 1), (1, 19, 117)),
    ((67, 13, 3, 3), (1, 13, 1, 1), (67, 13, 9)),
    ((5, 7, 11, 9), (1, 7, 1, 1), (5, 7, 99)),
    ((5, 7, 11, 9), (1, 7, 11, 1), (5, 77, 9)),
    ((1, 7, 1, 9), (1, 7, 1, 1), (1, 7, 9)),
    ((0,), (), (1, 1, 0)),
    ((0, 5), (1, 5), (0, 5, 1)),
    ((5, 0), (5, 1), (1, 5, 0)),
]


def literal_theta(weight: Tensor, threshold: Tensor, alpha: float) -> Tensor:
    """The paper's formula, to be read with max(t, 0)."""
    t = threshold.clamp(min=0)

    def half(x: Tensor) -> Tensor:
        return torch.relu(x - t) + t * torch.sigmoid(alpha * (x - t))

    return half(weight) - half(-weight)


def literal_with_derivatives(weight: Tensor, threshold: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """θ, ∂θ/∂x and ∂θ/∂t of every weight, in float64."""
    x = weight.double().requires_grad_()
    t = threshold.double().expand(weight.shape).clone().requires_grad_()
    theta = literal_theta(x, t, alpha)
    return theta.detach(), *torch.autograd.grad(theta.sum(), (x, t))


def weights_around(threshold: float, generator: torch.Generator) -> Tensor:
    """Weights of every size, most of them near the threshold, none on it: there autograd takes H(0) = 0."""
    scales = [threshold, 0.003, 0.05, 1e-6]
    spread = torch.cat([torch.randn(1001, generator=generator) * scale for scale in scales])
    near = threshold + torch.randn(2003, generator=generator) * torch.tensor([0.05, 1e-3, 1e-5]).repeat(668)[:2003]
    weight = torch.cat([spread, near, -near])
    return weight[(weight.abs() != threshold) & (weight != 0)]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=[build for build in native._builds() if native._open(build)])
def build(request, monkeypatch):
    """Each build of the library that this machine can run, in turn."""
    library = native._open(request.param)
    monkeypatch.setattr(native, "_library", lambda: library)
    theta_autograd._kernels.cache_clear()
    yield
    theta_autograd._kernels.cache_clear()


def theta_forward(weight, threshold, alpha, **options):
    return theta_autograd.native_forward(weight, threshold, alpha, usable_layout(weight, threshold), **options)


def theta_backward(grad, norm_grad, weight, threshold, alpha, *needs):
    shape = usable_layout(weight, threshold)
    return theta_autograd.native_backward(grad, norm_grad, weight, threshold, alpha, shape, needs=needs)


@pytest.mark.parametrize(("capability", "runs"), [("AVX512", True), ("AVX2", False), ("DEFAULT", False)])
def test_a_machine_with_less_than_a_library_was_built_for_does_not_load_it(capability, runs, monkeypatch):
    opened = []
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    # As after an install that built for x86-64-v4 alone.
    monkeypatch.setattr(native, "_open", lambda build: opened.append(build) or (build == "x86_64_v4" or None))
    assert (native._library.__wrapped__() is not None) == runs
    assert ("x86_64_v4" in opened) == runs


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("sharpness", SHARPNESS)
def test_theta_is_the_papers_formula(sharpness, generator, build):
    threshold = torch.tensor(sharpness / ALPHA)
    weight = weights_around(threshold.item(), generator)
    theta, _, _ = literal_with_derivatives(weight, threshold, ALPHA)
    ours, _ = theta_forward(weight, threshold, ALPHA, want_norm=False)
    assert_close(ours.double(), theta, rtol=1e-5, atol=SETTLED * threshold.item())


@pytest.mark.parametrize("sharpness", SHARPNESS)
def test_derivatives_are_those_of_the_papers_formula(sharpness, generator, build):
    weight = weights_around(sharpness / ALPHA, generator)
    threshold = torch.full_like(weight, sharpness / ALPHA)  # one each, so that none is hidden in a sum
    _, by_weight, by_threshold = literal_with_derivatives(weight, threshold, ALPHA)
    ours = theta_backward(torch.ones_like(weight), 0.0, weight, threshold, ALPHA, True, True)
    assert_close(ours[0].double(), by_weight, rtol=1e-5, atol=SETTLED)
    assert_close(ours[1].double(), by_threshold, rtol=1e-5, atol=5e-7)  # ∂θ/∂t crosses zero near αt = 2


@pytest.mark.parametrize(("weight_shape", "threshold_shape", "expected"), LAYOUTS)
def test_every_layout_reads_its_own_thresholds(weight_shape, threshold_shape, expected, generator, build):
    weight = torch.randn(weight_shape, generator=generator) * 0.1
    threshold = torch.rand(threshold_shape, generator=generator) * 0.2
    grad = torch.randn(weight_shape, generator=generator)
    theta, by_weight, by_threshold = literal_with_derivatives(weight, threshold, ALPHA)

    assert usable_layout(weight, threshold) == expected
    ours, norm = theta_forward(weight, threshold, ALPHA, want_norm=True)
    nothing, slope = theta_backward(None, 1.0, weight, threshold, ALPHA, True, True)
    grad_weight, grad_threshold = theta_backward(grad, 0.5, weight, threshold, ALPHA, True, True)
    shape, outer = threshold.shape, grad + 0.5 * weight.sign()
    assert nothing is None  # the norm sends no gradient to the weights
    assert_close(ours.double(), theta, rtol=1e-5, atol=1e-8)
    assert norm == pytest.approx(theta.abs().sum().item(), rel=1e-6, abs=0)
    assert_close(slope.double(), (weight.sign() * by_threshold).sum_to_size(shape), rtol=1e-5, atol=1e-5)
    assert_close(grad_weight.double(), grad * by_weight, rtol=1e-5, atol=1e-6)
    assert_close(grad_threshold.double(), (outer * by_threshold).sum_to_size(shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("weight_shape", "threshold_shape"),
    [((3, 4, 5), (3, 1, 5)), ((3, 4), (4, 1)), ((3,), (1, 3)), ((3,), (1, 1)), ((1, 4), (3, 4))],
)
def test_other_broadcasts_are_left_to_torch(weight_shape, threshold_shape):
    weight, threshold = torch.zeros(weight_shape), torch.zeros(threshold_shape)
    assert layout(weight, threshold) is None
    assert usable_layout(weight, threshold) is None


@pytest.mark.parametrize(
    ("weight_shape", "threshold_shape"),
    [
        ((300_007,), ()),
        ((601, 331), (601, 1)),
        ((601, 331), (1, 331)),
        ((601, 331), (601, 331)),
        ((601, 67, 3, 3), (1, 67, 1, 1)),
        ((5, 7, 81, 91), (1, 7, 1, 1)),
    ],
)
def test_the_number_of_threads_changes_no_bit(weight_shape, threshold_shape, generator, restored_threads):
    weight, grad = torch.randn(2, *weight_shape, generator=generator)
    threshold = torch.rand(threshold_shape, generator=generator)

    def results(threads: int) -> list[Tensor | float]:
        torch.set_num_threads(threads)
        forward = theta_forward(weight, threshold, ALPHA, want_norm=True)
        return [*forward, *theta_backward(grad, 0.5, weight, threshold, ALPHA, True, True)]

    for one, two, three in zip(results(1), results(2), results(3), strict=True):
        assert_close(one, two, rtol=0, atol=0)
        assert_close(one, three, rtol=0, atol=0)


@given(position=st.integers(0, 40), size=st.floats(0, 1, width=32))
def test_a_weight_does_not_feel_its_neighbours(position, size):
    settled = torch.zeros(41)  # a vector of these alone takes no exponential
    settled[position] = size
    alone = torch.tensor([size])
    threshold = torch.tensor(0.5)
    among, _ = theta_forward(settled, threshold, ALPHA, want_norm=False)
    single, _ = theta_forward(alone, threshold, ALPHA, want_norm=False)
    assert among[position] == single[0]


@given(weights=st.lists(st.floats(-3, 3, width=32, allow_subnormal=False), max_size=40))
def test_a_zero_threshold_changes_nothing(weights):
    weight = torch.tensor(weights)
    assert torch.equal(theta_forward(weight, torch.tensor(0.0), 50.0, want_norm=False)[0], weight)


def test_at_zero_theta_is_zero_and_only_the_threshold_stands_still():
    weight = torch.zeros(3)
    threshold = torch.tensor([0.0, 0.1, 0.9])
    theta, norm = theta_forward(weight, threshold, 100.0, want_norm=True)
    _, slope = theta_backward(None, 1.0, weight, threshold, 100.0, False, True)
    by_weight, by_threshold = theta_backward(torch.ones(3), 0.0, weight, threshold, 100.0, True, True)
    assert theta.tolist() == slope.tolist() == by_threshold.tolist() == [0, 0, 0]
    assert norm == 0
    assert by_weight[0] == 1  # H(0) = 1
    assert by_weight[1] > 0
    assert by_weight[2] == 0  # far below its threshold a weight is settled


def test_a_weight_on_its_threshold_counts_as_alive():
    weight, threshold = torch.tensor([0.25, -0.25]), torch.tensor(0.25)
    by_weight, _ = theta_backward(torch.ones(2), 0.0, weight, threshold, 1e4, True, False)
    assert_close(by_weight, torch.full((2,), 1 + 2500 / 4), rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(3, 1), (3, 70)], ids=["row", "weight"])
def test_a_negative_threshold_reads_as_zero_and_is_left_alone(shape, generator):
    weight, grad = torch.randn(2, 3, 70, generator=generator)
    negative, zero = torch.full(shape, -0.5), torch.zeros(shape)
    ours, theirs = (
        [
            *theta_forward(weight, threshold, ALPHA, want_norm=True),
            *theta_backward(grad, 0.5, weight, threshold, ALPHA, True, True),
        ]
        for threshold in (negative, zero)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert (negative == -0.5).all()  # unless it is asked to project them


def test_projecting_stores_zero_for_negative_thresholds_and_leaves_the_others():
    threshold = torch.tensor([[-0.5], [0.25], [math.nan], [-0.0]])
    theta_forward(torch.randn(4, 70), threshold, ALPHA, want_norm=True, project=True)
    assert_close(threshold, torch.tensor([[0.0], [0.25], [math.nan], [0.0]]), rtol=0, atol=0, equal_nan=True)


def test_nan_weights_stay_nan_and_disturb_no_other():
    weight = torch.linspace(-0.3, 0.3, 100)
    clean, _ = theta_forward(weight, torch.tensor(0.1), ALPHA, want_norm=False)
    weight[[3, 99]] = math.nan
    theta, norm = theta_forward(weight, torch.tensor(0.1), ALPHA, want_norm=True)
    _, slope = theta_backward(None, 1.0, weight, torch.tensor(0.1), ALPHA, False, True)
    by_weight, _ = theta_backward(torch.ones(100), 0.0, weight, torch.tensor(0.1), ALPHA, True, True)
    assert theta.isnan().nonzero().flatten().tolist() == by_weight.isnan().nonzero().flatten().tolist() == [3, 99]
    assert torch.equal(theta[~theta.isnan()], clean[~theta.isnan()])
    assert math.isnan(norm)
    assert slope.isnan()


@pytest.mark.parametrize("sharpness", SHARPNESS)
def test_infinite_weights_are_infinitely_alive(sharpness):
    weight, threshold = torch.tensor([math.inf, -math.inf]), torch.tensor(sharpness / ALPHA)
    theta, _ = theta_forward(weight, threshold, ALPHA, want_norm=True)
    _, slope = theta_backward(None, 1.0, weight, threshold, ALPHA, False, True)
    by_weight, by_threshold = theta_backward(torch.ones(2), 0.0, weight, threshold, ALPHA, True, True)
    assert torch.equal(theta, weight)
    assert by_weight.tolist() == [1, 1]
    assert slope.item() == pytest.approx(0, abs=1e-9)
    assert by_threshold.item() == pytest.approx(0, abs=1e-9)


def test_an_infinite_threshold_kills_everything():
    weight, threshold = torch.randn(100), torch.tensor(math.inf)
    theta, norm = theta_forward(weight, threshold, ALPHA, want_norm=True)
    _, slope = theta_backward(None, 1.0, weight, threshold, ALPHA, False, True)
    assert theta.count_nonzero() == norm == slope == 0


def test_no_denormal_leaves_theta():
    weight = torch.logspace(-45, -30, 1000)
    for threshold in (0.0, 1e-3, 0.1):
        theta, _ = theta_forward(weight, torch.tensor(threshold), ALPHA, want_norm=False)
        assert not ((theta != 0) & (theta.abs() < torch.finfo(torch.float32).tiny)).any()


def test_gradients_may_be_expanded_and_are_made_only_on_demand(generator):
    weight, threshold = torch.randn(60, 70, generator=generator), torch.full((60, 1), 0.1)
    grad = torch.tensor(0.5).expand(60, 70)
    both = theta_backward(grad, 0.0, weight, threshold, ALPHA, True, True)
    dense = theta_backward(grad.contiguous(), 0.0, weight, threshold, ALPHA, True, False)
    slope = theta_backward(grad.t().contiguous().t(), 0.0, weight, threshold, ALPHA, False, True)
    # Not to the bit: a compiler may fuse additions in one of them and not in the other.
    assert_close(both[0], dense[0], rtol=1e-6, atol=0)
    assert dense[1] is None
    assert_close(both[1], slope[1], rtol=1e-6, atol=0)
    assert slope[0] is None


def test_a_gradient_without_memory_is_zero():
    weight, threshold = torch.randn(4, 5), torch.tensor(0.1)
    grads = theta_backward(torch._efficientzerotensor(4, 5), 0.0, weight, threshold, ALPHA, True, True)
    assert not any(grad.any() for grad in grads)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(4, 4, dtype=torch.float64),
        torch.zeros(4, 4, dtype=torch.bfloat16),
        torch.zeros(4, 4, device="meta"),
        torch.zeros(4, 8)[:, ::2],
        torch.zeros(4, 4).to_sparse(),
        torch.zeros(4, 4).as_subclass(Subclass),
    ],
    ids=["float64", "bfloat16", "meta", "strided", "sparse", "subclass"],
)
def test_only_plain_float32_in_cpu_memory_is_touched(weight):
    assert usable_layout(weight, torch.tensor(0.1)) is None
    assert usable_layout(torch.nn.Parameter(torch.zeros(4, 4)), torch.tensor(0.1)) == (1, 1, 16)


def test_tracers_and_transforms_get_the_formulas_in_torch():
    seen = []

    def watched(weight: Tensor) -> Tensor:
        seen.append(usable_layout(weight, torch.tensor(0.1)))
        return weight.sum()

    torch.func.vmap(watched)(torch.zeros(4, 4))
    torch.func.grad(watched)(torch.zeros(4))
    torch.export.export(Watched(watched), (torch.zeros(4),))
    assert seen
    assert seen == [None] * len(seen)


class Watched(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_large_results_keep_their_values_on_huge_pages(generator):
    weight = torch.randn(1200, 1000, generator=generator)
    threshold = torch.tensor(0.5)
    whole, _ = theta_forward(weight, threshold, ALPHA, want_norm=True)
    rows = [theta_forward(row, threshold, ALPHA, want_norm=False)[0] for row in weight]
    assert torch.equal(whole, torch.stack(rows))
