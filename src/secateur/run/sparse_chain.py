"""A chain of sparse layers that runs as one call."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from secateur.run.kernels import bindings
from secateur.run.kernels.kernel import Kernel
from secateur.run.kernels.layout import LaidOut, lay_out
from secateur.run.sparse_layer import Activation, Flattens, Pool, SparseLayer, Window
from secateur.run.sparse_weight import Array, SparseWeight

_SIZES_KEPT = 32  # shapes of samples that a chain stays laid out for
_NO_GRADIENTS = "a compiled network has no gradients: call it under torch.no_grad()"


_BUFFERS = ("places", "values", "bias")  # of each layer


@dataclass(frozen=True)
class _Spec:
    shape: tuple[int, ...]
    activation: Activation
    window: Window | None
    pool: Pool | None

    def without_weights(self) -> SparseLayer:
        """Return a layer that only knows shapes."""
        empty = SparseWeight(np.zeros(0, np.int32), np.zeros(0, np.float32), self.shape)
        return SparseLayer(empty, np.zeros(0, np.float32), self.activation, self.window, self.pool)


class SparseChain(nn.Module):
    """Sparse layers, one after the other, as one call into the native library; for inference.

    With `flattens`, inputs of any shape are read as vectors; if it `merges`, a layer further on does so, and the result
    has a single dimension of samples. `residual` is added before the last activation. `names` are those of the layers
    in the network that they come from.
    """

    def __init__(
        self,
        layers: Sequence[SparseLayer],
        kernel: Kernel | None = None,
        *,
        flattens: Flattens | None = None,
        merges: bool = False,
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("a chain needs at least one layer, got none")
        self.kernel, self.flattens, self.merges, self.names = kernel or Kernel(), flattens, merges, names
        self._specs = [_Spec(one.weight.shape, one.activation, one.window, one.pool) for one in layers]
        for index, layer in enumerate(layers):
            for name, value in zip(_BUFFERS, (layer.weight.places, layer.weight.values, layer.bias), strict=True):
                self.register_buffer(f"{name}{index}", torch.from_numpy(value))
        specs = [asdict(spec) for spec in self._specs]
        # All but the weights, as text: what the operator of torch is given.
        self.spec = json.dumps({"kernel": asdict(self.kernel), "flattens": flattens, "merges": merges, "layers": specs})
        self._reset()

    def _reset(self) -> None:
        self._prepared: dict[tuple[int, tuple[int, ...]], LaidOut] = {}  # by threads and the shape of a sample
        # By the shape of an input: what to call, with what (kept alive as long as it may be called), how many
        # samples, the shape of the result, and on how many threads.
        self._known: dict[tuple[int, ...], tuple[bindings.Call, LaidOut, int, tuple[int, ...], int]] = {}
        self._layers: list[SparseLayer] | None = None
        self._call, self._lanes = bindings.chain_routine(), bindings.lanes()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.update(_prepared={}, _known={}, _layers=None, _call=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._reset()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._reset()

    def _apply(self, fn: Any, recurse: bool = True) -> SparseChain:
        return self  # float32 on the CPU is what the kernels read, wherever the rest of the network goes

    def layers(self) -> list[SparseLayer]:
        """Return the layers, checked: loaded buffers may hold anything."""
        found = self._layers
        if found is None:
            found = self._layers = [self._layer(index, spec) for index, spec in enumerate(self._specs)]
        return found

    def _layer(self, index: int, spec: _Spec) -> SparseLayer:
        places, values, bias = (getattr(self, f"{name}{index}").detach().contiguous().numpy() for name in _BUFFERS)
        _require_sound(f"layer {index} of the chain", places, values, bias, spec.shape)
        return SparseLayer(SparseWeight(places, values, spec.shape), bias, spec.activation, spec.window, spec.pool)

    def out_shape(self, shape: torch.Size, residual: torch.Size | None = None) -> tuple[int, ...]:
        """Return the shape of the result, given those of the input and of the residual."""
        lead, _, out = self._shapes(shape)
        # The residual may have more samples than the input, which then broadcasts.
        return (*lead, *out) if residual is None else tuple(torch.broadcast_shapes((*lead, *out), residual))

    def _shapes(self, shape: torch.Size) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the shape of the batch, of a sample, and of its result."""
        lead, sample = self._split(shape, self._specs[0])
        out = sample
        for spec in self._specs:
            out = spec.without_weights().out_shape(out)
        return (math.prod(lead),) if self.merges else lead, sample, out

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run the chain on a batch of samples."""
        if torch.compiler.is_compiling():
            weights = [getattr(self, f"{name}{k}") for k in range(len(self._specs)) for name in _BUFFERS]
            kept: Tensor = torch.ops.secateur.sparse_chain(x, residual, weights, self.spec)
            return kept
        known, threads = self._known.get(x.shape), torch.get_num_threads()
        if (
            known is None
            or known[4] != threads
            or x.dtype is not torch.float32
            or not x.is_contiguous()
            or not x.is_cpu
            or x.requires_grad
            or (residual is not None and not self._can_add(residual, known[3]))
        ):
            return self._forward(x, residual)
        # A microsecond counts here: a small network takes ten.
        call, prepared, batch, out, _ = known
        y = x.new_empty(*out)
        added = None if residual is None else residual.data_ptr()
        if call(prepared.address, x.data_ptr(), batch, y.data_ptr(), threads, added):
            raise MemoryError(f"a chain of {len(self._specs)} sparse layers found no memory to work in")
        return y

    def _forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """Do the same with everything checked."""
        if isinstance(x, fx.Proxy):  # unpickling a compiled network traces it again
            own = x.tracer.create_proxy("get_attr", x.tracer.path_of_module(self), (), {})
            given = (x,) if residual is None else (x, residual)
            traced: Tensor = x.tracer.create_proxy("call_method", "forward", (own, *given), {})
            return traced
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(_NO_GRADIENTS)
        if not x.is_cpu or x.dtype is not torch.float32:
            raise TypeError(f"a compiled network takes float32 on the CPU, got {x.dtype} on {x.device}")
        x = x.detach().contiguous()
        lead, sample, out = self._shapes(x.shape)
        if residual is not None:
            full = self.out_shape(x.shape, residual.shape)
            grown = tuple(full[: len(full) - len(out)])
            if grown != lead:
                x = x.view(*lead, *sample).expand(*grown, *sample).contiguous()
                lead = grown
            residual = self._checked(residual).expand(*lead, *out).contiguous()
        batch = math.prod(lead)
        y = x.new_empty((*lead, *out))
        if y.numel() == 0:
            return y
        if self._call is None:
            added_to = None if residual is None else residual.view(batch, *out)
            return self._twin(x.view(batch, *sample), added_to).reshape(y.shape).contiguous()
        threads = torch.get_num_threads()
        prepared = self._prepare(sample, 1 if batch >= threads else threads)  # which share samples if they can
        if len(self._known) >= _SIZES_KEPT:
            self._known = {}  # not cleared: another thread may be reading it
        self._known[tuple(x.shape)] = (self._call, prepared, batch, (*lead, *out), threads)
        added = None if residual is None else residual.data_ptr()
        if self._call(prepared.address, x.data_ptr(), batch, y.data_ptr(), threads, added):
            raise MemoryError(f"a chain of {len(self._specs)} sparse layers found no memory to work in")
        return y

    def _can_add(self, residual: Tensor, out: tuple[int, ...]) -> bool:
        """Return whether the kernels can read a residual in place."""
        return (
            residual.shape == out
            and residual.dtype is torch.float32
            and residual.is_contiguous()
            and residual.is_cpu
            and not residual.requires_grad
            and self._specs[-1].pool is None
        )

    def _checked(self, residual: Tensor) -> Tensor:
        """Refuse a residual that the kernels cannot read."""
        if residual.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(_NO_GRADIENTS)
        if not residual.is_cpu or residual.dtype is not torch.float32:
            raise TypeError(f"a residual is float32 on the CPU, got {residual.dtype} on {residual.device}")
        if self._specs[-1].pool is not None:
            raise ValueError("a residual is added before the activation: this chain ends with a pool")
        return residual.detach()

    def _split(self, shape: torch.Size, first: _Spec) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the shape of an input into that of the batch and that of a sample."""
        if first.window is None:
            lead, sample = (shape[:1], shape[1:]) if self.flattens else (shape[:-1], shape[-1:])
            if self.flattens == "features" and math.prod(shape) % first.shape[1] == 0:
                return (math.prod(shape) // first.shape[1],), (first.shape[1],)
            if len(shape) < 1 or math.prod(sample) != first.shape[1]:
                raise ValueError(f"the layer takes {first.shape[1]:,} features, got an input of shape {tuple(shape)}")
            return tuple(lead), tuple(sample)
        channels, dimensions = first.shape[1] * first.window.groups, 2 if first.window.lines else 3
        if len(shape) not in (dimensions, dimensions + 1) or shape[-dimensions] != channels:
            what = "lines" if first.window.lines else "images"
            raise ValueError(f"the layer takes {what} of {channels} channels, got an input of shape {tuple(shape)}")
        return tuple(shape[:-dimensions]), tuple(shape[-dimensions:])

    def _twin(self, x: Tensor, residual: Tensor | None) -> Tensor:
        layers = self.layers()
        for index, layer in enumerate(layers):
            x = layer.twin(x.flatten(1) if layer.window is None else x, residual if index + 1 == len(layers) else None)
        return x

    def _prepare(self, sample: tuple[int, ...], threads: int) -> LaidOut:
        found = self._prepared.get((threads, sample))
        if found is None:
            self._layers = None  # their weights may have been changed in place: check them again
            if len(self._prepared) >= _SIZES_KEPT:
                self._prepared, self._known = {}, {}
            found = lay_out(self.layers(), sample, self.kernel, self._lanes, threads)
            self._prepared[threads, sample] = found
        return found

    def nbytes(self) -> int:
        """Return what the kernels read of the layers' weights, for the shapes the chain has seen."""
        return max((one.nbytes for one in self._prepared.values()), default=0)

    def extra_repr(self) -> str:
        """Describe the layers."""
        kinds = [f"{spec.shape[0]}×{math.prod(spec.shape[1:])} {spec.activation}" for spec in self._specs]
        return f"{', '.join(kinds)}; {self.kernel.name}"


def _require_sound(what: str, places: Array, values: Array, bias: Array, shape: tuple[int, ...]) -> None:
    """Refuse weights that would make a kernel read outside of its input."""
    extent = math.prod(shape)
    if places.dtype not in (np.int32, np.int64) or values.dtype != np.float32 or bias.dtype != np.float32:
        raise ValueError(f"{what} has places, values or biases of the wrong type")
    if places.ndim != 1 or values.shape != places.shape or bias.shape != shape[:1]:
        raise ValueError(f"{what} has {places.shape} places, {values.shape} values and {bias.shape} biases for {shape}")
    if len(places) and (places[0] < 0 or places[-1] >= extent or (np.diff(places) <= 0).any()):
        raise ValueError(f"{what} has places out of order, or outside of its {extent:,} weights")
