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
underflowing, which has no effect on anything that follows.

These are the formulas. `theta_autograd` makes them a node of the autograd graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LARGEST_EXPONENT = 40.0
_INVERTED_AT_ONCE = 1 << 16
_NEWTON_STEPS = 60  # never taken: three or four suffice, and a few more where αt is in the thousands


def theta_and_norm(weight: Tensor, threshold: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return θ(W; t) and Σ|θ(W; t)|, without a gradient; half-precision weights are computed in float32."""
    out = _theta(_widen(weight), _widen(threshold), alpha)
    return out.to(weight.dtype), out.abs().sum()


def theta_gradients(
    grad: Tensor | None, norm_grad: Tensor | None, weight: Tensor, threshold: Tensor, alpha: float
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients by W and by t, given those by θ (`grad`) and by Σ|θ| (`norm_grad`).

    The norm sends nothing to W: the paper's L_t acts on the thresholds alone.
    """
    x = _widen(weight)
    by_weight, by_threshold = _derivatives(x, _widen(threshold), alpha)
    grad_weight = None if grad is None else (_widen(grad) * by_weight).to(weight.dtype)
    # d|θ|/dt = sign(x)·∂θ/∂t, because θ has the sign of x.
    outer = torch.zeros_like(x) if grad is None else _widen(grad)
    outer = outer if norm_grad is None else outer + norm_grad * torch.sign(x)
    return grad_weight, (outer * by_threshold).sum_to_size(threshold.shape).to(threshold.dtype)


def hard_theta(weight: Tensor, threshold: Tensor | float) -> Tensor:
    """Apply θ̄, the limit of θ for α → ∞: x where |x| ≥ t, else 0."""
    return torch.where(weight.abs() >= threshold, weight, torch.zeros_like(weight))


def theta_derivatives(weight: Tensor, threshold: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return the weak derivatives ∂θ/∂x and ∂θ/∂t, each broadcast to the weight's shape."""
    x, t = _widen(weight), _widen(threshold)
    by_weight, by_threshold = _derivatives(x, t, alpha)
    return by_weight.to(weight.dtype), by_threshold.to(weight.dtype)


def theta_inverse(mapped: Tensor, threshold: Tensor, alpha: float) -> Tensor:
    """Return the x for which θ(x; t) = `mapped`, as accurate as x can be stored, in pieces that fit into a cache.

    Below the threshold, y = θ(x; t)/t = sinh a / (cosh a + cosh b) has the closed form

        a = artanh y + arsinh(y·cosh b / √(1 − y²)),

    which is computed in float64. Above it Newton's steps find x in the dtype of `mapped`, at least float32.
    """
    pair = torch.broadcast_tensors(mapped, threshold)
    kind = torch.promote_types(mapped.dtype, torch.float32)
    parts = zip(*(each.reshape(-1).split(_INVERTED_AT_ONCE) for each in pair), strict=True)
    found = [_inverse(y.abs().to(kind), t.to(kind).clamp(min=0), alpha).copysign(y).to(y.dtype) for y, t in parts]
    return torch.cat(found).reshape(pair[0].shape)


def _inverse(target: Tensor, t: Tensor, alpha: float) -> Tensor:
    at_threshold = 0.5 * t * torch.tanh(alpha * t)  # θ(t; t)
    # All of them, because selecting takes longer; for those below the threshold the answer is t, and replaced.
    x = _inverse_above(torch.maximum(target, at_threshold), t, alpha)
    below = (target < at_threshold).nonzero().squeeze(1)
    x[below] = _inverse_below(target[below].double(), t[below].double(), alpha).to(x.dtype)
    return x


def _inverse_below(target: Tensor, t: Tensor, alpha: float) -> Tensor:
    b = alpha * t
    y = (target / t.clamp(min=torch.finfo(t.dtype).tiny)).clamp(max=0.5)
    log_u = torch.log(y) + b + torch.log1p(torch.exp(-2 * b)) - math.log(2) - 0.5 * torch.log1p(-y * y)
    # cosh b overflows for b > 710; there arsinh u = log 2u to the last digit.
    arsinh = torch.where(log_u > 20, log_u + math.log(2), torch.asinh(torch.exp(log_u.clamp(max=20))))
    return (torch.atanh(y) + arsinh) / alpha


def _inverse_above(target: Tensor, t: Tensor, alpha: float) -> Tensor:
    """Solve x − t + t·(s − d) = target for x ≥ t, with s = σ(α(x − t)) and d = σ(−α(x + t)).

    Above t the left side is concave, so Newton's steps from the lower bound max(target, t) rise to x and never pass it.
    After a step of length h the error is at most α·h²/2. Each x stops by itself, whatever else is in the piece.
    """
    x = torch.maximum(target, t)
    moving = torch.ones_like(x, dtype=torch.bool)
    resolution = torch.finfo(x.dtype).eps / alpha
    for _ in range(_NEWTON_STEPS):
        s, d = torch.sigmoid(alpha * (x - t)), torch.sigmoid(-alpha * (x + t))
        slope = torch.addcmul(s, s, s, value=-1).add_(d).addcmul_(d, d, value=-1).mul_(alpha * t).add_(1)
        step = (x - t).sub_(target).addcmul_(t, s.sub_(d)).div_(slope)
        moved = torch.where(moving, torch.maximum(x - step, t), x)
        moving &= step.square_() > resolution * x
        x = moved
        if not moving.any():
            break
    return x


def _widen(tensor: Tensor) -> Tensor:
    """Convert half precision to float32, the least in which thresholds and weights are combined."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _exponentials(size: Tensor, t: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return 1 − e², e², p, r and i, for |x| = `size`."""
    a, b = alpha * size, alpha * t
    # α(t − |x|), not b − a: the difference of two large numbers would lose the digits that matter near t.
    p = torch.exp((alpha * (t - size)).clamp(max=_LARGEST_EXPONENT))
    r = torch.exp(-a - b)
    e_squared = torch.exp(-2 * a)
    return -torch.expm1(-2 * a), e_squared, p, r, 1 / (1 + e_squared + p + r)


def _theta(x: Tensor, t: Tensor, alpha: float) -> Tensor:
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
