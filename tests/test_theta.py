"""θ is what the paper says it is, everywhere in the range that training reaches."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from secateur import hard_theta, theta, theta_derivatives, theta_inverse
from secateur.theta_autograd import theta_with_norm

values = st.floats(-3, 3, width=32)
weights = st.lists(values, min_size=1, max_size=20).map(lambda xs: torch.tensor(xs, dtype=torch.float64))
thresholds = st.floats(0, 2).map(lambda t: torch.tensor(t, dtype=torch.float64))
alphas = st.sampled_from([1.0, 10.0, 50.0, 100.0, 1000.0])


def paper_theta(x, t, alpha):
    sigmoid = torch.sigmoid
    return torch.relu(x - t) + t * sigmoid(alpha * (x - t)) - torch.relu(-x - t) - t * sigmoid(alpha * (-x - t))


def paper_derivatives(x, t, alpha):
    up, down = torch.sigmoid(alpha * (x - t)), torch.sigmoid(alpha * (-x - t))
    above, below = (x >= t).double(), (-x >= t).double()
    by_x = above + below + alpha * t * (up * (1 - up) + down * (1 - down))
    by_t = -above + below + up - down - alpha * t * (up * (1 - up) - down * (1 - down))
    return by_x, by_t


@given(weights, thresholds, alphas)
def test_theta_is_the_papers_formula(weight, threshold, alpha):
    assert_close(theta(weight, threshold, alpha), paper_theta(weight, threshold, alpha), rtol=1e-9, atol=1e-12)


@given(weights, thresholds, alphas)
def test_the_derivatives_are_the_papers(weight, threshold, alpha):
    weight = weight[(weight.abs() - threshold).abs() > 1e-9]
    for ours, paper in zip(
        theta_derivatives(weight, threshold, alpha), paper_derivatives(weight, threshold, alpha), strict=True
    ):
        assert_close(ours, paper, rtol=1e-8, atol=1e-11)


@given(weights, thresholds, alphas)
def test_theta_is_odd(weight, threshold, alpha):
    assert torch.equal(theta(-weight, threshold, alpha), -theta(weight, threshold, alpha))


@given(thresholds, alphas)
def test_theta_of_zero_is_zero(threshold, alpha):
    assert theta(torch.zeros(1, dtype=torch.float64), threshold, alpha) == 0


@given(weights, alphas)
def test_a_zero_threshold_changes_nothing(weight, alpha):
    assert torch.equal(theta(weight, torch.tensor(0.0, dtype=torch.float64), alpha), weight)


@given(weights, thresholds, alphas)
def test_theta_does_not_decrease(weight, threshold, alpha):
    mapped = theta(weight.sort().values, threshold, alpha)
    assert (mapped.diff() >= -1e-15).all()


@given(weights, st.floats(0.1, 1))
def test_a_sharp_theta_is_the_hard_threshold(weight, threshold):
    weight = weight[(weight.abs() - threshold).abs() > 0.01]
    threshold = torch.tensor(threshold, dtype=torch.float64)
    assert_close(theta(weight, threshold, 1e4), hard_theta(weight, threshold))


def test_the_hard_threshold_keeps_what_lies_on_it():
    weight = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
    assert hard_theta(weight, 1.0).tolist() == [-2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0]


@given(weights, thresholds, alphas)
def test_the_inverse_is_undone_by_theta(mapped, threshold, alpha):
    assert_close(theta(theta_inverse(mapped, threshold, alpha), threshold, alpha), mapped, rtol=1e-9, atol=1e-12)


@given(weights, thresholds, alphas)
def test_the_inverse_undoes_theta_outside_the_deep_dead_zone(weight, threshold, alpha):
    weight = weight[alpha * (threshold - weight.abs()) < 25]
    assert_close(theta_inverse(theta(weight, threshold, alpha), threshold, alpha), weight, rtol=1e-6, atol=1e-9)


def test_the_inverse_of_more_than_is_taken_at_once_is_that_of_each_row():
    mapped, threshold = torch.randn(3, 50_000), torch.tensor([[0.1], [0.5], [0.0]])
    rows = [theta_inverse(row, t, 20.0) for row, t in zip(mapped, threshold, strict=True)]
    assert_close(theta_inverse(mapped, threshold, 20.0), torch.stack(rows), rtol=0, atol=0)


@pytest.mark.parametrize("b", [1e-3, 0.5, 5.0, 50.0, 1e3])
def test_the_inverse_of_float32_is_that_of_float64_to_a_few_units_in_the_last_place(b):
    torch.manual_seed(0)
    mapped, threshold, alpha = torch.randn(20_000) * 0.1, torch.tensor(0.05), b / 0.05
    exact = theta_inverse(mapped.double(), threshold.double(), alpha)
    assert_close(theta_inverse(mapped, threshold, alpha).double(), exact, rtol=8 * 2**-23, atol=0)


def test_theta_works_in_inference_mode():
    weight, threshold = torch.randn(9), torch.tensor(0.1)
    wanted = theta(weight, threshold, 10.0)
    with torch.inference_mode():
        assert_close(theta(weight.clone(), threshold, 10.0), wanted)


@pytest.mark.parametrize("b", [1e-3, 1.0, 100.0, 1e4])
def test_the_inverse_holds_for_tiny_values_far_inside_the_dead_zone(b):
    threshold, alpha = torch.tensor(0.5, dtype=torch.float64), b / 0.5
    mapped = 0.5 * torch.logspace(-16, 0, 60, dtype=torch.float64)
    assert_close(theta(theta_inverse(mapped, threshold, alpha), threshold, alpha), mapped, rtol=1e-6, atol=1e-18)


@pytest.mark.parametrize("b", [0.0, 1e-3, 1.0, 30.0, 88.0, 1e3, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_derivatives_are_accurate_for_every_sharpness(b, dtype):
    alpha = 100.0
    threshold = torch.tensor(b / alpha, dtype=dtype)
    near = threshold.item() + torch.linspace(-0.3, 0.3, 2001, dtype=torch.float64)
    weight = torch.cat([near, torch.linspace(-2, 2, 2001, dtype=torch.float64)]).to(dtype).requires_grad_()
    t = threshold.clone().requires_grad_()
    mapped = theta(weight, t, alpha)
    mapped.sum().backward()
    # The reference sees the rounded inputs: the error of θ, not of the numbers that go in.
    x, exact = weight.detach().double(), threshold.double()
    reference = paper_theta(x, exact, alpha)
    # The paper's formula cancels; what it cannot resolve itself is not our error. The floor t·e⁻⁴⁰ is documented.
    floor = 1e-15 * max(1.0, exact.item())
    assert_close(mapped.double(), reference, rtol=1e-5, atol=floor + (1e-9 if dtype == torch.float32 else 0))
    by_x = paper_derivatives(x, exact, alpha)[0]
    off_the_step = (x.abs() - exact).abs() > 1e-6
    # Far from the threshold the native θ takes the derivative for 0 or 1; it is within 1e-7 of that there.
    assert_close(weight.grad.double()[off_the_step], by_x[off_the_step], rtol=2e-5, atol=1e-7)
    assert torch.isfinite(t.grad)


def test_gradients_match_finite_differences():
    weight = torch.linspace(-1, 1, 24, dtype=torch.float64).view(4, 3, 2, 1).requires_grad_()
    threshold = torch.full((4, 1, 1, 1), 0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, t: theta(w, t, 10), (weight, threshold))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (4, 1, 1), (1, 3, 1), (3, 1), (1, 1, 2), (4, 1, 2), (4, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_broadcast_like_any_tensor(shape, dtype):
    weight = torch.randn(4, 3, 2, dtype=dtype, requires_grad=True)
    threshold = torch.rand(shape, dtype=dtype).requires_grad_()
    theta(weight, threshold, 20).square().sum().backward()
    x, t = weight.detach().double(), threshold.detach().double()
    by_x, by_t = paper_derivatives(x, t.expand_as(x), 20)
    outer = 2 * paper_theta(x, t, 20)
    assert_close(weight.grad.double(), outer * by_x, rtol=1e-4, atol=1e-5)
    assert_close(threshold.grad.double(), (outer * by_t).sum_to_size(t.shape), rtol=1e-4, atol=1e-4)


@given(weights, thresholds, alphas)
def test_the_norm_comes_with_theta_and_reaches_the_threshold_alone(weight, threshold, alpha):
    x, t = weight.clone().requires_grad_(), threshold.clone().requires_grad_()
    mapped, norm = theta_with_norm(x, t, alpha)
    by_threshold = theta_derivatives(weight, threshold, alpha)[1]
    assert norm.item() == pytest.approx(mapped.abs().sum().item(), rel=1e-5, abs=1e-5)
    norm.backward(retain_graph=True)
    assert x.grad is None
    assert_close(t.grad, (weight.sign() * by_threshold).sum().reshape(t.shape))
    t.grad = None
    (mapped.sum() + 3 * norm).backward()
    assert_close(t.grad, ((1 + 3 * weight.sign()) * by_threshold).sum().reshape(t.shape))


def test_the_native_norm_agrees_with_plain_torch():
    weight, threshold = torch.randn(37, 53), torch.rand(37, 1) * 0.3
    exact_threshold = threshold.double().requires_grad_()
    threshold.requires_grad_()
    mapped, norm = theta_with_norm(weight, threshold, 50)
    exact, exact_norm = theta_with_norm(weight.double(), exact_threshold, 50)
    assert_close(mapped.double(), exact, rtol=1e-5, atol=1e-9)
    assert norm.item() == pytest.approx(exact_norm.item(), rel=1e-6, abs=0)
    norm.backward()
    exact_norm.backward()
    assert_close(threshold.grad.double(), exact_threshold.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_computed_in_float32(dtype):
    weight = torch.randn(64).to(dtype).requires_grad_()
    threshold = torch.tensor([0.3], requires_grad=True)
    mapped = theta(weight, threshold, 100)
    exact = theta(weight.detach().double(), threshold.double(), 100)
    assert_close(mapped.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-7)  # one rounding, at the end
    mapped.sum().backward()
    assert weight.grad.dtype == dtype
    assert threshold.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_negative_threshold_reads_as_zero_and_still_gets_its_gradient(dtype):
    weight = torch.randn(50, dtype=dtype)
    at = {}
    for stored in (-0.1, 0.0):
        threshold = torch.tensor([stored], dtype=dtype, requires_grad=True)
        mapped = theta(weight, threshold, 30)
        mapped.abs().sum().backward()
        assert torch.equal(mapped.detach(), weight)
        at[stored] = threshold.grad
    assert torch.equal(at[-0.1], at[0.0])
    assert at[0.0].item() < 0


def test_theta_leaves_its_arguments_alone():
    threshold = torch.tensor([-0.1])
    theta(torch.randn(50), threshold, 30)
    assert threshold.item() == pytest.approx(-0.1)


def test_nan_weights_stay_nan():
    mapped = theta(torch.tensor([math.nan, 1.0]), torch.tensor([0.5]), 10)
    assert mapped.isnan().tolist() == [True, False]


def test_compiled_theta_agrees_with_eager_theta():
    weight, threshold = torch.randn(30, 20, requires_grad=True), torch.full((30, 1), 0.2, requires_grad=True)
    eager = theta(weight, threshold, 40)
    expected = torch.autograd.grad(eager.square().sum(), (weight, threshold))
    compiled = torch.compile(theta, fullgraph=True, backend="aot_eager")(weight, threshold, 40)
    assert_close(compiled, eager, rtol=1e-5, atol=1e-7)
    for ours, other in zip(torch.autograd.grad(compiled.square().sum(), (weight, threshold)), expected, strict=True):
        assert_close(ours, other, rtol=1e-4, atol=1e-4)


def test_a_second_derivative_is_refused():
    weight, threshold = torch.randn(4, requires_grad=True), torch.tensor([0.2], requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(theta(weight, threshold, 10).sum(), weight, create_graph=True)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (6, 1, 1, 1), (1, 4, 1, 1)])
def test_channels_last_weights_keep_their_order_and_their_values(shape):
    weight = torch.randn(6, 4, 3, 3)
    threshold = torch.rand(shape) * 0.5
    results = []
    for order in (torch.contiguous_format, torch.channels_last):
        x = weight.clone(memory_format=order).requires_grad_()
        t = threshold.clone().requires_grad_()
        mapped, norm = theta_with_norm(x, t, 20)
        (mapped.square().sum() + norm).backward()
        assert mapped.is_contiguous(memory_format=order)
        results.append((mapped, norm.float(), x.grad, t.grad))
    for plain, last in zip(*results, strict=True):
        assert_close(last, plain, rtol=1e-4, atol=1e-5)
