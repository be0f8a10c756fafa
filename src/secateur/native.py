"""The native library: the hot loops of `native/`, found and called through ctypes.

Nothing is loaded before the first call. Where the library was not built, or does not load, `is_available` is
false and the Python twins do the work.
"""

import ctypes
import math
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter

_POINTER, _INT64, _FLOAT, _DOUBLE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_double, ctypes.c_int
_PLAIN = (Tensor, Parameter)

Layout: TypeAlias = tuple[int, int, int]


def is_available() -> bool:
    """Whether the native library was built and loads on this machine."""
    return _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    return next((library for library in map(_open, _builds()) if library is not None), None)


def _builds() -> tuple[str, ...]:
    """Name the instruction sets of this machine that we build for, best first."""
    levels = ("x86_64_v4", "x86_64_v3", "x86_64", "generic")
    best = {"AVX512": 0, "AVX2": 1}.get(torch.backends.cpu.get_cpu_capability(), 2)
    return levels[best:]


def _open(build: str) -> ctypes.CDLL | None:
    # Python's import system knows where the file is, also in an editable install. Nothing is imported.
    spec = find_spec(f"{__package__}._native_{build}")
    if spec is None or spec.origin is None:
        return None
    try:
        # All symbols are resolved now: if torch has not brought the OpenMP runtime we call, it shows here.
        library = ctypes.CDLL(spec.origin)
    except OSError:
        return None
    shape = [_INT64, _INT64, _INT64]
    forward, backward = library.secateur_theta_forward, library.secateur_theta_backward
    forward.argtypes = [_POINTER, _POINTER, _FLOAT, *shape, _POINTER, _INT, _INT, _INT]
    backward.argtypes = [_POINTER, _FLOAT, _POINTER, _POINTER, _FLOAT, *shape, _POINTER, _POINTER, _INT]
    forward.restype, backward.restype = _DOUBLE, None
    return library


def usable_layout(weight: Tensor, threshold: Tensor) -> Layout | None:
    """Return the `layout` of tensors that the native θ takes: plain contiguous float32 on the CPU, and nobody tracing.

    Subclasses are refused because their memory may be elsewhere (a DTensor's is), tracers because the call
    would leave no trace.
    """
    return plain_layout(weight, threshold) if is_usable() else None


def is_usable() -> bool:
    """Whether there is a library to call, and nobody who traces the calls."""
    return (
        not torch.compiler.is_compiling()  # first: a compiler must not even see the questions below
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and _library() is not None
    )


def plain_layout(weight: Tensor, threshold: Tensor) -> Layout | None:
    """Return the half of `usable_layout` that asks the tensors; `is_usable` is the other."""
    usable = (
        type(weight) in _PLAIN
        and type(threshold) in _PLAIN
        and weight.dtype is threshold.dtype is torch.float32
        and weight.is_cpu
        and threshold.is_cpu
        and weight.layout is threshold.layout is torch.strided
        and threshold.is_contiguous()
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
    return shape if by_filter and _is_channels_last(weight) else None


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


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


def theta_forward(
    weight: Tensor,
    threshold: Tensor,
    alpha: float,
    want_norm: bool,
    project: bool = False,
    shape: Layout | None = None,
) -> tuple[Tensor, float]:
    """Return θ(weight), and Σ|θ| if wanted.

    With `project`, negative thresholds become zero in place. Only for tensors with a `usable_layout`; whoever has
    asked for it may give it as `shape`.
    """
    library, shape = _library(), shape or layout(weight, threshold)
    assert library is not None
    assert shape is not None
    theta = torch.empty_like(weight)
    norm: float = library.secateur_theta_forward(
        weight.data_ptr(),
        threshold.data_ptr(),
        alpha,
        *shape,
        theta.data_ptr(),
        want_norm,
        project,
        torch.get_num_threads(),
    )
    return theta, norm


def theta_backward(
    grad: Tensor | None,
    norm_grad: float,
    weight: Tensor,
    threshold: Tensor,
    alpha: float,
    needs_weight: bool,
    needs_threshold: bool,
    shape: Layout | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients by `weight` and by `threshold`, each only if needed, from those of θ and of Σ|θ|.

    The norm sends nothing to the weights: without `grad` their gradient is None. `shape` as in `theta_forward`.
    """
    library, shape = _library(), shape or layout(weight, threshold)
    assert library is not None
    assert shape is not None
    address = weight.data_ptr()
    if not address and weight.numel():
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
    grad_weight = torch.empty_like(weight) if needs_weight and grad is not None else None
    grad_threshold = torch.empty_like(threshold) if needs_threshold else None
    library.secateur_theta_backward(
        _address(grad),
        norm_grad,
        address,
        threshold.data_ptr(),
        alpha,
        *shape,
        _address(grad_weight),
        _address(grad_threshold),
        torch.get_num_threads(),
    )
    return grad_weight, grad_threshold


def multiply_in_place(scalar: Tensor, factor: float) -> None:
    """Multiply a plain float32 scalar on the CPU where it lies, which torch's own way takes 15 µs for."""
    cell = _FLOAT.from_address(scalar.data_ptr())
    cell.value *= factor


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


Routine: TypeAlias = Callable[..., int]


def routine(name: str, result: type, *arguments: type) -> Routine | None:
    """Return a routine of the native library with its types declared, or None where there is no library."""
    library = _library()
    if library is None:
        return None
    found: Routine = library[name]
    found.restype, found.argtypes = result, arguments  # type: ignore[attr-defined]  # a ctypes function
    return found
