"""θ, the differentiable pruning function of the paper's section on preliminaries: tensors in, tensors out.

    θ^α(x; t) = relu(x − t) + t·σ(α(x − t)) − relu(−x − t) − t·σ(α(−x − t))

Written like this it needs four sigmoids and loses digits where they cancel. θ is odd in x, so with

    a = α|x|,  b = αt,  e = exp(−a),  p = exp(b − a),  r = exp(−b − a),  i = 1 / (1 + e² + p + r)

everything follows from one exponential (multiply the four sigmoids out):

    θ     = sign(x) · [ relu(|x| − t) + t·(1 − e²)·i ]
    ∂θ/∂x = H(|x| − t) + αt·(4e² + (p + r)(1 + e²))·i·i
    ∂θ/∂t = sign(x) · [ −H(|x| − t) + (1 − e²)·i − αt·(1 − e²)·(p − r)·i·i ]

with H(0) = 1. A stored threshold below zero is read as zero and its gradient passes straight through, so that
"read max(t, 0), then project the stored t" is projected gradient descent.

In the deep dead zone, where α(t − |x|) > 40, p is held at e⁴⁰: θ has a floor of about t·e⁻⁴⁰ there instead of
underflowing, which nothing downstream can see.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from secateur import native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from secateur.native import Layout

_LARGEST_EXPONENT = 40.0
_INVERTED_AT_ONCE = 1 << 16
_NEWTON_STEPS, _CLOSE = 60, 1e-15  # at most, until steps are smaller than so much of x: usually four


def theta(weight: Tensor, threshold: Tensor, alpha: float) -> Tensor:
    """Push weights below `threshold` smoothly to zero and leave the others alone.

    As α grows this becomes the hard threshold x·1[|x| ≥ t]; at t = 0 it is the identity. `threshold` broadcasts:
    one value prunes per layer, shape (filters, 1, 1, 1) per filter. Half-precision weights are computed in float32.
    """
    if shape := native.usable_layout(weight, threshold):
        [out] = _NativeTheta.apply((alpha,), (shape,), False, False, weight, threshold)  # type: ignore[no-untyped-call]
    else:
        out = _Theta.apply(weight, threshold, alpha, False)  # type: ignore[no-untyped-call]  # torch's apply
    return cast(Tensor, out)


def theta_with_norm(weight: Tensor, threshold: Tensor, alpha: float, *, project: bool = False) -> tuple[Tensor, Tensor]:
    """Return θ(W; t) and, from the same pass, Σ|θ(W; t)|; with `project`, `project_` t first.

    The gradient of the norm reaches t alone: the paper's L_t sends nothing to W. Both gradients share one backward.
    """
    if shape := native.usable_layout(weight, threshold):
        out, norm = _NativeTheta.apply((alpha,), (shape,), True, project, weight, threshold)  # type: ignore[no-untyped-call]
    else:
        if project:
            project_(threshold)
        out, norm = _Theta.apply(weight, threshold, alpha, True)  # type: ignore[no-untyped-call]  # torch's apply
    return out, norm


def thetas_with_norm(
    weights: Sequence[Tensor], thresholds: Sequence[Tensor], alphas: Sequence[float], shapes: Sequence[Layout]
) -> tuple[Sequence[Tensor], Tensor]:
    """Return θ of several tensors and the sum of their norms, in one node; `shapes` are their `native.usable_layout`.

    Negative thresholds are projected. Two nodes fewer take 0.16 ms off a training step of LeNet-300-100.
    """
    *mapped, norm = _apply_directly(alphas, shapes, True, True, *weights, *thresholds)
    return mapped, norm


def project_(threshold: Tensor) -> None:
    """Lift stored thresholds below zero to zero.

    Every reader reads max(t, 0), so no value that anybody has seen changes; hence `data`, which leaves graphs
    recorded before this moment valid.
    """
    threshold.data.clamp_(min=0)


def hard_theta(weight: Tensor, threshold: Tensor | float) -> Tensor:
    """Apply θ̄, the limit of θ for α → ∞: x where |x| ≥ t, else 0."""
    return torch.where(weight.abs() >= threshold, weight, torch.zeros_like(weight))


def theta_derivatives(weight: Tensor, threshold: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return the weak derivatives ∂θ/∂x and ∂θ/∂t, each broadcast to the weight's shape."""
    x, t = _widen(weight), _widen(threshold)
    by_weight, by_threshold = _derivatives(x, t, alpha)
    return by_weight.to(weight.dtype), by_threshold.to(weight.dtype)


def theta_inverse(mapped: Tensor, threshold: Tensor, alpha: float) -> Tensor:
    """Return the x for which θ(x; t) = `mapped`, computed in float64, so many at a time that memory does not matter.

    Below the threshold, y = θ(x; t)/t = sinh a / (cosh a + cosh b) has the closed form

        a = artanh y + arsinh(y·cosh b / √(1 − y²)).

    Above it, max(θ, t) ≤ x ≤ θ + t, and Newton's steps, held in that bracket, find x.
    """
    pair = torch.broadcast_tensors(mapped, threshold)
    parts = zip(*(each.reshape(-1).split(_INVERTED_AT_ONCE) for each in pair), strict=True)
    found = [_inverse(y.abs().double(), t.double().clamp(min=0), alpha).copysign(y).to(y.dtype) for y, t in parts]
    return torch.cat(found).reshape(pair[0].shape)


def _inverse(target: Tensor, t: Tensor, alpha: float) -> Tensor:
    below = target < t * 0.5 * torch.tanh(alpha * t)  # θ(t; t) = t/2 · tanh(αt)
    above = ~below & (t > 0)
    x = target.clone()
    x[below] = _inverse_below(target[below], t[below], alpha)
    x[above] = _inverse_above(target[above], t[above], alpha)
    return x


def _inverse_below(target: Tensor, t: Tensor, alpha: float) -> Tensor:
    b = alpha * t
    y = (target / t.clamp(min=torch.finfo(t.dtype).tiny)).clamp(max=0.5)
    log_u = torch.log(y) + b + torch.log1p(torch.exp(-2 * b)) - math.log(2) - 0.5 * torch.log1p(-y * y)
    # cosh b overflows for b > 710; there arsinh u = log 2u to the last digit.
    arsinh = torch.where(log_u > 20, log_u + math.log(2), torch.asinh(torch.exp(log_u.clamp(max=20))))
    return (torch.atanh(y) + arsinh) / alpha


def _inverse_above(target: Tensor, t: Tensor, alpha: float) -> Tensor:
    low, high = torch.maximum(target, t), torch.maximum(target + t, t)
    x, found = high, high.clone()
    moving = torch.arange(len(x), device=x.device)
    for _ in range(_NEWTON_STEPS):
        excess = _forward(x, t, alpha) - target
        low, high = torch.where(excess <= 0, x, low), torch.where(excess > 0, x, high)
        newton = x - excess / _derivatives(x, t, alpha)[0]
        far = (newton - x).abs() > _CLOSE * x
        if not far.any():
            break
        moving, newton, low, high, target, t = (each[far] for each in (moving, newton, low, high, target, t))
        x = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        found[moving] = x
    return found


def _widen(tensor: Tensor) -> Tensor:
    """Half-precision values become float32; thresholds and weights are combined in at least that."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _exponentials(size: Tensor, t: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return 1 − e², e², p, r and i, for |x| = `size`."""
    a, b = alpha * size, alpha * t
    # α(t − |x|), not b − a: the difference of two large numbers would lose the digits that matter near t.
    p = torch.exp((alpha * (t - size)).clamp(max=_LARGEST_EXPONENT))
    r = torch.exp(-a - b)
    e_squared = torch.exp(-2 * a)
    return -torch.expm1(-2 * a), e_squared, p, r, 1 / (1 + e_squared + p + r)


def _forward(x: Tensor, t: Tensor, alpha: float) -> Tensor:
    size, t = x.abs(), t.clamp(min=0)
    one_minus_e_squared, _, _, _, i = _exponentials(size, t, alpha)
    return torch.sign(x) * (torch.relu(size - t) + t * one_minus_e_squared * i)


def _derivatives(x: Tensor, t: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    size, t = x.abs(), t.clamp(min=0)
    one_minus_e_squared, e_squared, p, r, i = _exponentials(size, t, alpha)
    above = (size >= t).to(x.dtype)
    by_x = above + alpha * t * ((4 * e_squared + (p + r) * (1 + e_squared)) * i) * i
    by_t = torch.sign(x) * (-above + one_minus_e_squared * i - alpha * t * (one_minus_e_squared * ((p - r) * i)) * i)
    return by_x, by_t


def _forward_with_norm(weight: Tensor, threshold: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    out = _forward(_widen(weight), _widen(threshold), alpha)
    return out.to(weight.dtype), out.abs().sum()


def _forward_only(weight: Tensor, threshold: Tensor, alpha: float) -> Tensor:
    return _forward(_widen(weight), _widen(threshold), alpha).to(weight.dtype)


def _backward(
    grad: Tensor | None, norm_grad: Tensor | None, weight: Tensor, threshold: Tensor, alpha: float
) -> tuple[Tensor | None, Tensor]:
    x = _widen(weight)
    by_weight, by_threshold = _derivatives(x, _widen(threshold), alpha)
    grad_weight = None if grad is None else (_widen(grad) * by_weight).to(weight.dtype)
    # d|θ|/dt = sign(x)·∂θ/∂t, for θ has the sign of x.
    outer = torch.zeros_like(x) if grad is None else _widen(grad)
    outer = outer if norm_grad is None else outer + norm_grad * torch.sign(x)
    return grad_weight, (outer * by_threshold).sum_to_size(threshold.shape).to(threshold.dtype)


@cache
def _compiled(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Fuse a formula's many small kernels into one; worth it on a GPU, where nothing native exists."""
    return torch.compile(formula)


def _on(weight: Tensor, formula: Callable[..., Any]) -> Callable[..., Any]:
    return _compiled(formula) if weight.is_cuda and not torch.compiler.is_compiling() else formula


class _NativeTheta(torch.autograd.Function):
    """θ of some weights with its hand-written backward, in native code: for tensors with a `native.usable_layout`.

    Backward does without torch's once_differentiable, which would take a small layer some time.
    """

    @staticmethod
    def forward(ctx, alphas, shapes, want_norm, project, *tensors):  # type: ignore[no-untyped-def]  # torch's protocol
        _keep(ctx, tensors)
        ctx.alphas, ctx.shapes, ctx.factor = alphas, shapes, 1.0
        ctx.set_materialize_grads(False)
        mapped, norm, count = [], 0.0, len(alphas)
        for weight, threshold, alpha, shape in zip(tensors[:count], tensors[count:], alphas, shapes, strict=True):
            out, own = native.theta_forward(weight, threshold, alpha, want_norm, project, shape)
            mapped.append(out)
            norm += own
        return (*mapped, torch.scalar_tensor(norm, dtype=torch.float32, device="cpu")) if want_norm else tuple(mapped)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]  # torch's protocol
        _refuse_second_derivative()
        ctx.spent = True
        tensors, count, needs = _kept(ctx), len(ctx.alphas), ctx.needs_input_grad[4:]
        has_norm = len(grads) > count and grads[count] is not None
        norm_grad = grads[count].item() * ctx.factor if has_norm else 0.0
        by_weight: list[Tensor | None] = [None] * count
        by_threshold: list[Tensor | None] = [None] * count
        for k, (alpha, shape, grad) in enumerate(zip(ctx.alphas, ctx.shapes, grads[:count], strict=True)):
            if grad is not None or has_norm:
                if grad is not None and grad.is_sparse:  # of an Embedding with sparse=True
                    grad = grad.to_dense()
                by_weight[k], by_threshold[k] = native.theta_backward(
                    grad, norm_grad, tensors[k], tensors[count + k], alpha, needs[k], needs[count + k], shape
                )
        return None, None, None, None, *by_weight, *by_threshold


# Torch's `apply` looks for transforms before it calls this one, and `native.is_usable` has done so: 12 µs of a step.
_apply_directly: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, _NativeTheta).apply


class _Theta(torch.autograd.Function):
    """θ with its hand-written backward in torch: fused by `torch.compile` on a GPU, open to every compiler."""

    @staticmethod
    def forward(ctx, weight, threshold, alpha, want_norm):  # type: ignore[no-untyped-def]  # torch's protocol
        if torch.compiler.is_compiling():
            ctx.save_for_backward(weight, threshold)
        else:
            _keep(ctx, (weight, threshold))
        ctx.set_materialize_grads(False)
        ctx.alpha = alpha
        return _on(weight, _forward_with_norm if want_norm else _forward_only)(weight, threshold, alpha)

    @staticmethod
    def backward(ctx, grad, norm_grad=None):  # type: ignore[no-untyped-def]  # torch's protocol
        if not torch.compiler.is_compiling():
            _refuse_second_derivative()
            ctx.spent = True
        if grad is None and norm_grad is None:
            return None, None, None, None
        weight, threshold = ctx.saved_tensors if torch.compiler.is_compiling() else _kept(ctx)
        if grad is not None and grad.is_sparse:
            grad = grad.to_dense()
        grad_weight, grad_threshold = _on(weight, _backward)(grad, norm_grad, weight, threshold, ctx.alpha)
        needs = ctx.needs_input_grad
        return grad_weight if needs[0] else None, grad_threshold if needs[1] else None, None, None


def _keep(ctx: Any, tensors: tuple[Tensor, ...]) -> None:
    """Keep for backward what a function was given, beyond the first backward: loss and penalty may go one by one.

    Torch's `save_for_backward` forgets it, and takes a small layer more time.
    """
    ctx.tensors, ctx.spent = tensors, False
    if not torch.is_inference_mode_enabled():  # where tensors have no versions, and nobody goes backward
        ctx.versions = [tensor._version for tensor in tensors]


def _kept(ctx: Any) -> tuple[Tensor, ...]:
    tensors: tuple[Tensor, ...] = ctx.tensors
    if [tensor._version for tensor in tensors] != ctx.versions:
        raise RuntimeError("a weight or a threshold was changed in place between θ's forward and its backward")
    return tensors


def is_spent(norm: Tensor) -> bool:
    """Tell whether someone has gone backward through the θ that a norm came from: it may be of an earlier step."""
    if torch.compiler.is_compiling():
        return False  # a step that is compiled as a whole is one step
    node = norm.grad_fn
    spent: bool | None = getattr(node, "spent", None)
    if spent is not None:
        return spent
    try:
        return getattr(node, "saved_tensors", None) is None
    except RuntimeError:  # torch has freed what a compiled graph saved
        return True


def scaled_norm(norm: Tensor, factor: float) -> Tensor:
    """Return `factor`·`norm`, of a norm that nobody else has: a native θ takes the factor into its own node.

    A node less saves a training step of LeNet-300-100 some 30 µs.
    """
    node = None if torch.compiler.is_compiling() else norm.grad_fn
    if getattr(node, "factor", None) is None:
        return norm * factor
    node.factor *= factor  # type: ignore[union-attr]  # it has one
    native.multiply_in_place(norm, factor)
    return norm


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError("θ has no second derivative here: call backward without create_graph=True")
