"""The number of multiply-accumulates of a forward pass, with all weights and with the non-zero ones only.

Products of weights with activations count, and so do products of activations with activations inside attention
and bilinear layers. Pruning does not remove the latter, so they are part of the dense and of the sparse number.
Element-wise work (biases, norms, activations, gates, softmax) and the cost of parametrizations do not count.

A weight is multiplied once per output position of a convolution, and once per input position of a transposed
one. Positions on the padding count, as do those that a transposed convolution crops away: a dense engine
multiplies there as well.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.rnn import PackedSequence

from secateur.measure.evaluating import evaluating
from secateur.weights.tensors import is_transposed_linear, plain_modules, tensors

ELEMENTWISE_LAYERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Multiply-accumulates with all weights, and with the non-zero ones only; each is two FLOPs."""

    macs: int
    sparse_macs: int

    @property
    def flops(self) -> int:
        """Floating point operations with all weights."""
        return 2 * self.macs

    @property
    def sparse_flops(self) -> int:
        """Floating point operations with the non-zero weights only."""
        return 2 * self.sparse_macs


@dataclass(frozen=True)
class LayerFlops(Work):
    """The work of one layer over all its calls in one forward pass."""

    name: str
    calls: int


@dataclass(frozen=True)
class ModelFlops(Work):
    """The work of a network, layer by layer.

    `uncounted` names the weights whose products are not in these numbers: those of layers of unknown kind,
    and those of known layers that were not called, whose weights other code may have read directly.
    """

    layers: tuple[LayerFlops, ...]
    uncounted: tuple[str, ...]


@dataclass(frozen=True)
class _Products:
    """The products of one call of a layer: how often each weight is used, and products between activations.

    `uses` says for each tensor how often a weight is used in its first, second, … equal block of rows.
    """

    uses: Mapping[str, tuple[int, ...]]
    between_activations: int = 0


def count_flops(model: nn.Module, *example_inputs: object) -> ModelFlops:
    """Count the multiply-accumulates of `model(*example_inputs)`; the module says what counts as one.

    The call runs in evaluation mode, without gradients, and leaves the model as it was. A layer called
    several times counts several times. Only layers are seen: a product that the model's own code computes is
    named in `uncounted` if it has weights, and not counted at all if it has none, as in functional attention.
    """
    calls: dict[nn.Module, list[_Products]] = {}

    def note(layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        names = ("query", "key", "value") if isinstance(layer, nn.MultiheadAttention) else ("input",)
        products = _products(layer, {**dict(zip(names, args, strict=False)), **kwargs}, output)
        if products is not None:
            calls.setdefault(layer, []).append(products)

    layers = dict(plain_modules(model))
    with evaluating(model):
        with _hooked(layers.values(), note), _without_fused_attention():
            model(*example_inputs)
        counted = tuple(_add_up(name, layer, calls[layer]) for name, layer in layers.items() if layer in calls)
    return ModelFlops(
        counted,
        _uncounted(model, calls),
        macs=sum(layer.macs for layer in counted),
        sparse_macs=sum(layer.sparse_macs for layer in counted),
    )


def _products(layer: nn.Module, inputs: Mapping[str, object], output: object) -> _Products | None:
    """Return the products of one call, if the layer is of a known kind."""
    match layer:
        case _ if is_transposed_linear(layer):
            return _Products({"weight": (_rows(output, attrgetter("nf")(layer)),)})
        case nn.Linear():
            return _Products({"weight": (_rows(output, layer.out_features),)})
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            return _Products({"weight": (_rows(output, layer.out_channels),)})
        case nn.ConvTranspose1d() | nn.ConvTranspose2d() | nn.ConvTranspose3d():
            return _Products({"weight": (_rows(inputs["input"], layer.in_channels),)})
        case nn.Embedding() | nn.EmbeddingBag():
            return _Products({"weight": (0,)})
        case nn.Bilinear():  # (input1 · weight) · input2
            rows = _rows(output, layer.out_features)
            return _Products({"weight": (rows,)}, rows * layer.out_features * layer.in2_features)
        case nn.RNNBase():
            steps = _rows(inputs["input"], layer.input_size)
            weights = [name for name in layer._flat_weights_names if name.startswith("weight_")]
            return _Products(dict.fromkeys(weights, (steps,)))
        case nn.RNNCellBase():
            steps = _rows(inputs["input"], layer.input_size)
            return _Products({"weight_ih": (steps,), "weight_hh": (steps,)})
        case nn.MultiheadAttention():
            return _attention_products(layer, inputs["query"], inputs["key"], inputs["value"])
    return None


def _attention_products(layer: nn.MultiheadAttention, query: object, key: object, value: object) -> _Products:
    assert isinstance(key, Tensor)
    queries, keys, values = _rows(query, layer.embed_dim), _rows(key, layer.kdim), _rows(value, layer.vdim)
    uses: dict[str, tuple[int, ...]] = {"out_proj.weight": (queries,)}
    if layer._qkv_same_embed_dim:
        uses["in_proj_weight"] = (queries, keys, values)
    else:
        uses |= {"q_proj_weight": (queries,), "k_proj_weight": (keys,), "v_proj_weight": (values,)}
    # Every query is multiplied with every key of its sequence, masked or not, and with the keys that the layer adds.
    length = key.shape[1] if layer.batch_first and key.ndim == 3 else key.shape[0]
    length += (layer.bias_k is not None) + layer.add_zero_attn
    return _Products(uses, 2 * queries * length * layer.embed_dim)


def _rows(tensor: object, width: int) -> int:
    """Count the vectors of `width` numbers in a tensor, along any dimension."""
    data = tensor.data if isinstance(tensor, PackedSequence) else tensor
    assert isinstance(data, Tensor)
    return data.numel() // max(width, 1)


def _add_up(name: str, layer: nn.Module, calls: Sequence[_Products]) -> LayerFlops:
    macs = sparse_macs = sum(call.between_activations for call in calls)
    for tensor_name in calls[0].uses:
        uses = [sum(blocks) for blocks in zip(*(call.uses[tensor_name] for call in calls), strict=True)]
        weight: Tensor = attrgetter(tensor_name)(layer)
        for block, block_uses in zip(weight.chunk(len(uses)), uses, strict=True):
            macs += block_uses * block.numel()
            sparse_macs += block_uses * int(torch.count_nonzero(block))
    return LayerFlops(name, len(calls), macs=macs, sparse_macs=sparse_macs)


def _uncounted(model: nn.Module, calls: Mapping[nn.Module, Sequence[_Products]]) -> tuple[str, ...]:
    """Name the parameters that no counted product uses, except biases and those of element-wise layers."""
    places = [place for tensor in tensors(model) if tensor.is_parameter for place in tensor.places]
    counted = {
        f"{place.owner}.{name}" if place.owner else name
        for place in places
        if place.module in calls
        for name in calls[place.module][0].uses
    }
    held = [place for place in places if not (isinstance(place.module, ELEMENTWISE_LAYERS) or _is_bias(place.name))]
    return tuple(place.full_name for place in held if place.full_name not in counted)


def _is_bias(name: str) -> bool:
    return name.startswith("bias") or name.endswith("_bias")


@contextmanager
def _hooked(layers: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Disable the fused path of transformer layers, so that hooks on their parts are called."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
