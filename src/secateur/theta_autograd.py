"""θ as one node of the autograd graph: computed by the native kernel where the tensors allow it, else in torch.

The kernel takes contiguous float32 tensors on the CPU. Everything else (other dtypes and devices, sharded tensors,
`torch.compile`, `torch.export`, `torch.func`) is computed by the formulas of `secateur.theta`, on a GPU fused by
`torch.compile`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from secateur import native
from secateur.theta import hard_theta, theta_and_norm, theta_gradients

Layout: TypeAlias = tuple[int, int, int]

_SMALLEST_THRESHOLD = 1e-20  # its reciprocal times a weight is still finite in float32


def theta(weight: Tensor, threshold: Tensor, alpha: float) -> Tensor:
    """Push weights below `threshold` smoothly to zero and leave the others alone.

    As α grows this becomes the hard threshold x·1[|x| ≥ t]; at t = 0 it is the identity. `threshold` broadcasts:
    one value prunes per layer, shape (filters, 1, 1, 1) per filter. Half-precision weights are computed in float32.
    """
    shape = usable_layout(weight, threshold)
    out, _ = _Theta.apply(weight, threshold, alpha, shape, False, False)  # type: ignore[no-untyped-call]  # torch's apply
    return cast(Tensor, out)


def theta_with_norm(weight: Tensor, threshold: Tensor, alpha: float, *, project: bool = False) -> tuple[Tensor, Tensor]:
    """Return θ(W; t) and, from the same pass, Σ|θ(W; t)|; with `project`, `project_` t first.

    The gradient of the norm reaches t alone: the paper's L_t sends nothing to W. Both gradients share one backward.
    """
    shape = usable_layout(weight, threshold)
    if project and shape is None:  # the kernel does it itself
        project_(threshold)
    out, norm = _Theta.apply(weight, threshold, alpha, shape, True, project)  # type: ignore[no-untyped-call]  # torch's apply
    return out, norm


def hard_theta_with_slopes(weight: Tensor, threshold: Tensor, sharpness: float) -> Tensor:
    """Return θ̄(W; t), exactly the weights with |w| ≥ t, with the gradients of θ^α(W; t) by W and by t.

    α = `sharpness` / t, the mean t if there are several: θ then looks the same at every scale of weights. Weights just
    below t get nearly the whole gradient and can come back, those near zero next to none.
    """
    shape = usable_layout(weight, threshold)
    return cast(Tensor, _HardTheta.apply(weight, threshold, sharpness, shape))  # type: ignore[no-untyped-call]  # torch's apply


def alpha_of(threshold: Tensor, sharpness: float) -> Tensor:
    """Return α = `sharpness` / t, for the mean of several thresholds; at t = 0 a finite number, where θ is w anyway."""
    return sharpness / threshold.detach().mean().clamp(min=_SMALLEST_THRESHOLD)


def project_(threshold: Tensor) -> None:
    """Set stored thresholds below zero to zero.

    Thresholds are always read as max(t, 0), so no result changes. It writes to `data`, because graphs recorded
    earlier stay valid.
    """
    threshold.data.clamp_(min=0)


class _Theta(torch.autograd.Function):
    """θ and, if wanted, Σ|θ|; `shape` is the `usable_layout` of the tensors."""

    @staticmethod
    def forward(ctx, weight, threshold, alpha, shape, want_norm, project):  # type: ignore[no-untyped-def]  # torch's protocol
        ctx.alpha, ctx.shape = alpha, shape
        ctx.set_materialize_grads(False)
        if torch.compiler.is_compiling():
            ctx.save_for_backward(weight, threshold)
        else:
            ctx.inputs = Inputs(weight, threshold)
        if shape is None:
            out, norm = _fused(theta_and_norm, weight)(weight, threshold, alpha)
        else:
            out, value = native_forward(weight, threshold, alpha, shape, want_norm=want_norm, project=project)
            # In float64, so that a sum over layers is rounded once.
            norm = torch.scalar_tensor(value, dtype=torch.float64, device="cpu") if want_norm else None
        return out, norm if want_norm else None

    @staticmethod
    def backward(ctx, grad, norm_grad):  # type: ignore[no-untyped-def]  # torch's protocol
        nothing = (None,) * 6
        if torch.compiler.is_compiling():
            weight, threshold = ctx.saved_tensors
        else:
            if torch.is_grad_enabled():
                raise RuntimeError("θ has no second derivative here: call backward without create_graph=True")
            weight, threshold = ctx.inputs.read_again()
        if grad is None and norm_grad is None:
            return nothing
        if grad is not None and grad.is_sparse:  # of an Embedding with sparse=True
            grad = grad.to_dense()
        needs = ctx.needs_input_grad[:2]
        if ctx.shape is None:
            grads = _fused(theta_gradients, weight)(grad, norm_grad, weight, threshold, ctx.alpha)
        else:
            slope = 0.0 if norm_grad is None else norm_grad.item()
            grads = native_backward(grad, slope, weight, threshold, ctx.alpha, ctx.shape, needs=needs)
        return *(own if needed else None for own, needed in zip(grads, needs, strict=True)), *nothing[2:]


class _HardTheta(torch.autograd.Function):
    """θ̄ forward, the derivatives of θ backward."""

    @staticmethod
    def forward(ctx, weight, threshold, sharpness, shape):  # type: ignore[no-untyped-def]  # torch's protocol
        ctx.sharpness, ctx.shape = sharpness, shape
        ctx.save_for_backward(weight, threshold)
        if shape is not None and threshold.numel() == 1:
            # One pass, a tenth of the time. It zeroes |w| ≤ λ, so λ is the largest number below t.
            return functional.hardshrink(weight, torch.nextafter(threshold, threshold - 1).item())
        return hard_theta(weight, threshold)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # torch's protocol
        weight, threshold = ctx.saved_tensors
        grad = grad.to_dense() if grad.is_sparse else grad  # sparse: of an Embedding with sparse=True
        alpha, needs = alpha_of(threshold, ctx.sharpness), ctx.needs_input_grad[:2]
        if ctx.shape is None:
            grads = _fused(theta_gradients, weight)(grad, None, weight, threshold, alpha)
        else:
            grads = native_backward(grad, 0.0, weight, threshold, alpha.item(), ctx.shape, needs=needs)
        return *(own if needed else None for own, needed in zip(grads, needs, strict=True)), None, None


class Inputs:
    """The tensors that a node of θ has read and reads again in its backward.

    Torch's `save_for_backward` releases them after the first backward. Here they stay, because the loss and the
    penalty may go backward one after the other through the same node.
    """

    def __init__(self, weight: Tensor, threshold: Tensor) -> None:
        self.weight, self.threshold, self.went_backward = weight, threshold, False
        self._versions = _version(weight), _version(threshold)

    def are_unchanged(self) -> bool:
        """Return whether neither tensor was written to since; a fused optimizer writes without a trace."""
        return self._versions == (_version(self.weight), _version(self.threshold))

    def read_again(self) -> tuple[Tensor, Tensor]:
        """Return both tensors for a backward."""
        if not self.are_unchanged():
            raise RuntimeError("a weight or a threshold was changed in place between θ's forward and its backward")
        self.went_backward = True
        return self.weight, self.threshold


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def is_current(norm: Tensor, read: Tensor, threshold: Tensor) -> bool:
    """Return whether `norm`, that `theta_with_norm` computed from the threshold `read`, is still that of `threshold`.

    It is not once it has gone backward: what follows is another step.
    """
    if torch.compiler.is_compiling():
        return True  # a step that is compiled as a whole is one step
    # A sharding wrapper puts its pieces (DTensor) back after the forward. The whole weights are then out of reach until
    # the next forward, and the norm that the last one left is the only one available.
    is_sharded = type(read) is Parameter is not type(threshold)
    if not (is_sharded or read is threshold):
        return False
    inputs: Inputs | None = getattr(norm.grad_fn, "inputs", None)
    if inputs is not None:
        return not inputs.went_backward and (is_sharded or inputs.are_unchanged())
    try:  # of a compiled forward
        return getattr(norm.grad_fn, "saved_tensors", None) is not None
    except RuntimeError:  # released by a backward
        return False


@cache
def _compiled(formula: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(formula)


def _fused(formula: Callable[..., Any], weight: Tensor) -> Callable[..., Any]:
    """Fuse a formula's many small kernels into one on a GPU, which has no native code of ours."""
    return _compiled(formula) if weight.is_cuda and not torch.compiler.is_compiling() else formula


def usable_layout(weight: Tensor, threshold: Tensor) -> Layout | None:
    """Return the `layout` of tensors that the native θ accepts: plain contiguous float32 on the CPU, not traced.

    Tensor subclasses are refused because their memory may be elsewhere (that of a DTensor is), tracing because the
    call would leave no trace.
    """
    usable = (
        not torch.compiler.is_compiling()  # first: a compiler must not even see the conditions below
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and type(weight) in (Tensor, Parameter)
        and type(threshold) in (Tensor, Parameter)
        and weight.dtype is threshold.dtype is torch.float32
        and weight.is_cpu
        and threshold.is_cpu
        and weight.layout is threshold.layout is torch.strided
        and threshold.is_contiguous()
        and native.is_available()
    )
    return layout(weight, threshold) if usable else None


def layout(weight: Tensor, threshold: Tensor) -> Layout | None:
    """View `weight` as (outer, groups, inner), a threshold per group; None if the broadcast has no such form.

    A scalar gives (1, 1, n), one threshold per filter (1, filters, rest), per column (rows, columns, 1) and
    per weight (1, n, 1).
    """
    shape = _layout(weight.shape, threshold.shape)
    if shape is None or weight.is_contiguous():
        return shape
    # In channels-last order a filter is still one stretch of memory, so one threshold per filter or layer will do.
    by_filter = shape[0] == 1 and shape[1] in (1, weight.shape[0])
    is_channels_last = weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return shape if by_filter and is_channels_last else None


@lru_cache(maxsize=4096)
def _layout(weight: torch.Size, threshold: torch.Size) -> Layout | None:
    padding = len(weight) - len(threshold)
    if padding < 0:
        return None
    sizes = [*zip(weight, (*[1] * padding, *threshold), strict=True)]
    if any(own not in (1, size) for size, own in sizes):
        return None
    grouped = [axis for axis, (size, own) in enumerate(sizes) if own == size != 1]
    if not grouped:
        return 1, 1, math.prod(weight)
    first, last = grouped[0], grouped[-1] + 1
    groups = math.prod(weight[first:last])
    if groups != math.prod(threshold):
        return None  # an axis that shares its threshold lies between two that do not
    return math.prod(weight[:first]), groups, math.prod(weight[last:])


def native_forward(
    weight: Tensor, threshold: Tensor, alpha: float, shape: Layout, *, want_norm: bool, project: bool = False
) -> tuple[Tensor, float]:
    """Return θ(weight), and Σ|θ| if wanted; with `project`, negative thresholds become zero in place.

    `shape` is the `usable_layout` of the tensors.
    """
    out = torch.empty_like(weight)
    norm = _kernels().forward(
        weight.data_ptr(),
        threshold.data_ptr(),
        alpha,
        *shape,
        out.data_ptr(),
        want_norm,
        project,
        torch.get_num_threads(),
    )
    return out, norm


def native_backward(
    grad: Tensor | None,
    norm_grad: float,
    weight: Tensor,
    threshold: Tensor,
    alpha: float,
    shape: Layout,
    *,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients by `weight` and by `threshold`, each only if needed, from those of θ and of Σ|θ|.

    The norm sends nothing to the weights: without `grad` their gradient is None.
    """
    if not weight.data_ptr() and weight.numel():
        raise RuntimeError(
            "the weights of a sharded layer are out of reach in backward: add the penalty to the loss that the layer's "
            "output goes into, and call backward once"
        )
    if grad is not None:
        if grad.stride() != weight.stride():
            order = torch.contiguous_format if weight.is_contiguous() else torch.channels_last
            grad = grad.contiguous(memory_format=order)
        if not grad.data_ptr():  # torch's lazy zeros have no memory
            grad = torch.zeros_like(weight)
    grad_weight = torch.empty_like(weight) if needs[0] and grad is not None else None
    grad_threshold = torch.empty_like(threshold) if needs[1] else None
    _kernels().backward(
        _address(grad),
        norm_grad,
        weight.data_ptr(),
        threshold.data_ptr(),
        alpha,
        *shape,
        _address(grad_weight),
        _address(grad_threshold),
        torch.get_num_threads(),
    )
    return grad_weight, grad_threshold


class _Kernels(NamedTuple):
    forward: Callable[..., float]
    backward: Callable[..., None]


@cache
def _kernels() -> _Kernels:
    pointer, real, number, shape = ctypes.c_void_p, ctypes.c_float, ctypes.c_int, (ctypes.c_int64,) * 3
    forward = native.routine(
        "secateur_theta_forward", ctypes.c_double, pointer, pointer, real, *shape, pointer, number, number, number
    )
    backward = native.routine(
        "secateur_theta_backward", None, pointer, real, pointer, pointer, real, *shape, pointer, pointer, number
    )
    assert forward is not None
    assert backward is not None
    return _Kernels(forward, backward)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
