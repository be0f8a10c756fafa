"""The tensors of a network: each once, with every place where a layer reads it and the functions in between.

Names are those of the plain network. A tensor behind a parametrization is called "fc1.weight", not
"fc1.parametrizations.weight.original", and one that `torch.nn.utils.prune` masks "fc1.weight", not "fc1.weight_orig".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED_CONVOLUTIONS)
PRUNABLE_LAYERS = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
    *CONVOLUTIONS,
)

Kind = TypeVar("Kind", bound=nn.Module)


class Place(NamedTuple):
    """Where a layer reads a tensor: the layer's name, the layer, and the name that the tensor has there."""

    owner: str
    module: nn.Module
    name: str

    @property
    def full_name(self) -> str:
        """The tensor's name in the plain network, such as "fc1.weight"."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def chain(self) -> ParametrizationList | None:
        """The functions that the tensor is read through, if there are any."""
        chains = _chains(self.module)
        if self.key not in chains:
            return None
        chain = chains[self.key]
        assert isinstance(chain, ParametrizationList)
        return chain

    @property
    def mask(self) -> Tensor | None:
        """The mask that `torch.nn.utils.prune` multiplies the tensor by, if there is one."""
        return self.module._buffers.get(f"{self.name}_mask") if self.key != self.name else None

    @property
    def key(self) -> str:
        """The name that the layer stores the tensor under."""
        return f"{self.name}_orig" if self.name in _masked(self.module) else self.name

    @property
    def originals(self) -> tuple[Tensor, ...]:
        """What is stored: the tensor itself, or what its functions start from (weight norm has two of them)."""
        chain = self.chain
        if chain is not None:
            return (*chain.parameters(recurse=False), *chain.buffers(recurse=False))
        held: dict[str, Any] = {**self.module._parameters, **self.module._buffers}
        return (held[self.key],)

    def read(self) -> Tensor:
        """Return the tensor as the layer reads it now."""
        # Not as `module.weight`: without gradients that would spoil what `parametrize.cached()` keeps.
        value = self.originals[0] if self.chain is None else self.chain()
        return value if self.mask is None else value * self.mask


@dataclass(frozen=True, eq=False)
class NetworkTensor:
    """A parameter or persistent buffer of the plain network, with all the places that read it: tied ones have several.

    Tensors are tied when they lie in the same memory and are read through the same functions. One stored tensor
    behind two different functions makes two tensors.
    """

    places: tuple[Place, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensor, one per place."""
        return tuple(place.full_name for place in self.places)

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.places[0].full_name

    @property
    def stored(self) -> Tensor:
        """The stored tensor, which functions may be applied to; not for tensors made of several."""
        (stored,) = self.places[0].originals
        return stored

    @property
    def is_single(self) -> bool:
        """Whether there is one stored tensor, unlike behind weight norm."""
        return len(self.places[0].originals) == 1

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter rather than a buffer."""
        return isinstance(self.places[0].originals[0], nn.Parameter)

    @property
    def is_weight(self) -> bool:
        """Whether some layer that we know how to prune reads it as a weight."""
        return any(is_weight(place) for place in self.places)

    @property
    def is_offset(self) -> bool:
        """Whether it is added to something, as a bias is: of one dimension, and not the scale of a norm, around 1."""
        scale_names = ("weight", "scale", "gamma")
        return self.is_single and self.stored.dim() == 1 and all(place.name not in scale_names for place in self.places)

    @property
    def functions(self) -> tuple[nn.Module, ...]:
        """The functions that it is read through, in order, ours and others."""
        return tuple(self.places[0].chain or ())

    def has(self, kind: type[nn.Module]) -> bool:
        """Return whether it is read through a function of a kind."""
        return any(isinstance(function, kind) for function in self.functions)

    def function(self, kind: type[Kind]) -> Kind | None:
        """Return its first function of a kind, or None."""
        return next((function for function in self.functions if isinstance(function, kind)), None)

    def read(self) -> Tensor:
        """Return the tensor as its layers read it now."""
        return self.places[0].read()


def tensors(model: nn.Module) -> list[NetworkTensor]:
    """Return the parameters and persistent buffers of the plain network, each once."""
    found: dict[Hashable, list[Place]] = {}
    for owner, module in plain_modules(model):
        for name in _names(module):
            place = Place(owner, module, name)
            found.setdefault(_identity(place), []).append(place)
    return [NetworkTensor(tuple(places)) for places in found.values()]


def parameters(model: nn.Module) -> list[NetworkTensor]:
    """Return the parameters of the plain network that one stored tensor is behind, each once.

    A tensor that others have composed of several (weight norm) has no weight of its own to prune or quantise.
    """
    return [tensor for tensor in tensors(model) if tensor.is_parameter and tensor.is_single]


def plain_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module of the plain network once, with its name: all but those that serve a parametrization."""
    serving = {module for each in model.modules() for module in _chains(each).modules()}
    return ((name, module) for name, module in model.named_modules() if module not in serving)


def is_known_layer(module: nn.Module) -> bool:
    """Return whether we know which tensors of a layer are its weights."""
    return isinstance(module, PRUNABLE_LAYERS) or is_transposed_linear(module)


def is_transposed_linear(module: nn.Module) -> bool:
    """Return whether a layer is Hugging Face's Conv1D: a linear layer that stores (inputs, outputs), as in GPT-2."""
    return hasattr(module, "nf") and any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)


def filter_axis(place: Place) -> int:
    """Return the dimension along which a tensor stores the filters (output units) of its layer.

    Transposed convolutions store (input channels, filters ÷ groups, …). Everything else stores filters first, except
    for the experts of a mixture in one tensor, which stores experts first: of these an expert counts as a filter.
    """
    return int(isinstance(place.module, TRANSPOSED_CONVOLUTIONS) or is_transposed_linear(place.module))


def normalised_by(place: Place) -> str | None:
    """Name the parametrization of others that a tensor is read through or is part of, such as weight norm."""
    if place.chain is not None:
        return type(place.chain[0]).__name__.lstrip("_")
    # Older mechanisms compute the weight in a hook, from NAME_g and NAME_v, or from NAME_orig.
    for hook in place.module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm) and place.key.startswith(f"{hook.name}_"):
            return type(hook).__name__
    return None


def _holds_experts(place: Place) -> bool:
    """Return whether a tensor holds the matrices of all experts of a mixture, (experts, inputs, outputs) or the like.

    Libraries have many classes for these, so they are recognised by their form and by what they are called.
    """
    weight = place.originals[0]
    if is_lazy(weight) or weight.dim() != 3 or len(place.originals) > 1:
        return False
    called = (type(place.module).__name__, place.owner.rpartition(".")[2], place.name)
    return any("expert" in name.lower() for name in called)


def is_weight(place: Place, *, asked_for: bool = False) -> bool:
    """Return whether a layer reads a tensor as a weight: a parameter of two or more dimensions that is no bias.

    Layers of types that we do not know have weights only if a rule asks for them.
    """
    originals, is_known = place.originals, is_known_layer(place.module) or _holds_experts(place)
    if not isinstance(originals[0], nn.Parameter) or "bias" in place.name or not (is_known or asked_for):
        return False
    if is_lazy(originals[0]):
        return is_known and "weight" in place.name
    return (originals[0] if len(originals) == 1 else place.read()).dim() >= 2


def _names(module: nn.Module) -> list[str]:
    """Return the names under which a module reads its own tensors; those behind functions come first.

    That is where a plain layer has its weight: before its bias.
    """
    masked = _masked(module)
    hidden = {f"{name}_orig" for name in masked} | {f"{name}_mask" for name in masked}
    hidden |= module._non_persistent_buffers_set
    held = {**module._parameters, **module._buffers}
    plain = [name for name, tensor in held.items() if tensor is not None]
    return [name for name in (*_chains(module), *masked, *plain) if name not in hidden]


def _masked(module: nn.Module) -> list[str]:
    """Return the names of tensors that `torch.nn.utils.prune` masks: it stores NAME_orig and NAME_mask."""
    found = [name.removesuffix("_mask") for name, mask in module._buffers.items() if mask is not None]
    originals = {*module._parameters, *_chains(module)}
    return [name for name in found if f"{name}_mask" in module._buffers and f"{name}_orig" in originals]


def _chains(module: nn.Module) -> nn.ModuleDict:
    if not parametrize.is_parametrized(module):
        return nn.ModuleDict()
    assert isinstance(module.parametrizations, nn.ModuleDict)
    return module.parametrizations


def _identity(place: Place) -> Hashable:
    """Return what two places have in common when they read one and the same tensor."""
    mask = () if place.mask is None else (_memory(place.mask),)
    return (*map(_memory, place.originals), *mask, *map(id, place.chain or ()))


def _memory(tensor: Tensor) -> Hashable:
    """Return where a tensor lies; one without memory of its own (meta, empty, lazy, sharded) is only like itself."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return (tensor.device, tensor.data_ptr(), tensor.numel()) if is_plain and tensor.data_ptr() else id(tensor)
