"""How a layer reads θ(weight; threshold): by itself, or ahead, together with all the small layers of its network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from secateur import native
from secateur.parametrization import drop_hooks, readings
from secateur.theta import project_, theta, theta_with_norm, thetas_with_norm

# Layers up to this size are read together: a node of the graph costs some 80 µs, forward and back, and the θ of so many
# weights 330. Larger ones would gain little, and their gradients would wait for each other in memory.
_SMALL = 1 << 18

# torch's own word for it: a dictionary that the optimizer keeps and that schedulers write to.
ParameterGroup: TypeAlias = dict[str, Any]


@dataclass(eq=False, slots=True)
class Norm:
    """Σ|θ(W; t)|, summed over all the tensors that were read together; its gradient reaches their thresholds alone."""

    total: Tensor
    tensors: int


class Record:
    """What the last reading left for the penalty, and which state of weight and threshold it belongs to.

    An object beside the module, since setting an attribute of a module takes torch some time.
    """

    norm: Norm | None = None
    threshold: Tensor | None = None
    versions: tuple[int, int] | None = None
    groups: tuple[ParameterGroup, ParameterGroup] | None = None  # the optimizer's, of weights and of thresholds
    ahead: tuple[Tensor, Tensor] | None = None  # a weight and its θ, as long as the network's forward lasts

    def keep(self, norm: Norm, weight: Tensor, threshold: Tensor) -> None:
        """Leave a norm for the penalty."""
        self.norm, self.threshold = norm, threshold
        self.versions = None if torch.compiler.is_compiling() else (weight._version, threshold._version)


class LearnedThreshold(nn.Module):
    """Parametrization: a layer reads θ(weight; threshold) wherever it reads its weight."""

    threshold: nn.Parameter
    alpha: float

    def __init__(self, threshold: Tensor, alpha: float) -> None:
        super().__init__()
        self.threshold, self.alpha = nn.Parameter(threshold), alpha
        self.record = Record()

    def forward(self, weight: Tensor) -> Tensor:
        """Return θ(weight; threshold), and keep its norm for the penalty while gradients are recorded."""
        if torch.compiler.is_exporting():
            return theta(weight, self.threshold, self.alpha)
        record = self.record
        if record.ahead is not None and record.ahead[0] is weight:
            return record.ahead[1]
        threshold = self.threshold
        if not torch.is_grad_enabled():
            # Reentrant checkpointing comes this way, and a record that its last backward left is out of date.
            record.norm = None
            return theta(weight, threshold, self.alpha)
        mapped, norm = theta_with_norm(weight, threshold, self.alpha, project=True)
        record.keep(Norm(norm, 1), weight, threshold)
        return mapped

    def project_(self) -> None:
        """Lift stored thresholds below zero to zero, as every reader reads them."""
        project_(self.threshold)

    def take_norm(self, weight: Tensor) -> Norm | None:
        """Return Σ|θ| as the last forward left it, or None if weight or threshold have changed since.

        None also after a forward without gradients, as inside reentrant checkpointing. What a forward left serves once,
        and not after its backward (`is_spent`): a fused optimizer changes tensors unseen by their version counters.
        """
        record, threshold = self.record, self._parameters["threshold"]
        norm, record.norm = record.norm, None
        if norm is not None and threshold is not None:
            if record.threshold is threshold:
                if record.versions in (None, (weight._version, threshold._version)):
                    return norm
            elif type(record.threshold) is nn.Parameter is not type(threshold):
                # A sharding wrapper has put its pieces (DTensor) back after the forward: the whole weights are out of
                # reach until the next one, and the record is the only truth there is.
                return norm
        return None

    def norm(self, weight: Tensor) -> Tensor:
        """Compute Σ|θ|, whose gradient reaches the threshold alone."""
        # Of a copy: a compiled forward after this projects the stored thresholds, and says that they have changed.
        return theta_with_norm(weight.detach(), self.threshold.clone(), self.alpha)[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "record": Record()}

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # torch's signature
        """Move with the model, but stay in float32 when it goes to half precision: steps of t are tiny."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            moved: Tensor = fn(tensor)
            half = moved.dtype in (torch.bfloat16, torch.float16)
            return tensor.to(moved.device, torch.float32) if half else moved

        return super()._apply(at_least_float32, recurse)  # type: ignore[no-untyped-call]  # torch's

    def extra_repr(self) -> str:
        """Show α and the number of thresholds."""
        return f"alpha={self.alpha:g}, thresholds={self.threshold.numel()}"


def learned_thresholds(sibling: nn.Module) -> dict[str, LearnedThreshold]:
    """Return the thresholds of a sibling by tensor name, those of tied tensors once, under their first name."""
    found: dict[str, LearnedThreshold] = {}
    for reading in readings(sibling, LearnedThreshold):
        function = next(part for part in reading.chain if isinstance(part, LearnedThreshold))
        if all(function is not known for known in found.values()):
            found[reading.full_name] = function
    return found


def chains(sibling: nn.Module) -> list[tuple[LearnedThreshold, ParametrizationList]]:
    """Return every threshold function once, with a chain that it is part of.

    By hand, since this runs every step: torch's `modules()` takes twice as long.
    """
    found: dict[LearnedThreshold, ParametrizationList] = {}
    modules: list[nn.Module | None] = [sibling]
    while modules:
        module = modules.pop()
        if isinstance(module, ParametrizationList):
            for part in module._modules.values():
                if isinstance(part, LearnedThreshold):
                    found[part] = module
        elif module is not None:
            modules.extend(module._modules.values())
    return list(found.items())


class _ReadAhead:
    """Hooks of a network: at the beginning of its forward the small layers are read, all in one node of the graph.

    For the length of that forward θ is what it was at the beginning; weights do not change in it. A forward without
    gradients, a layer called by itself, a compiler and sharded weights go their old way.
    """

    def __init__(self) -> None:
        # Looked for once. A layer that has left the network since is read in vain, a new one is read by itself.
        self._chains: list[tuple[LearnedThreshold, ParametrizationList]] | None = None
        self._open: list[Record] = []

    def __call__(self, network: nn.Module, *_: object) -> None:
        if not (native.is_usable() and torch.is_grad_enabled()):
            return
        if self._chains is None:
            self._chains = [(one, chain) for one, chain in chains(network) if chain.original.numel() <= _SMALL]
        self.close()
        records: list[Record] = []
        weights: list[Tensor] = []
        thresholds: list[Tensor] = []
        alphas: list[float] = []
        shapes: list[native.Layout] = []
        for function, chain in self._chains:
            # Where torch keeps them: asking a module for an attribute takes longer.
            weight, threshold = chain._parameters.get("original"), function._parameters["threshold"]
            if weight is not None and threshold is not None and (shape := native.plain_layout(weight, threshold)):
                records.append(function.record)
                weights.append(weight)
                thresholds.append(threshold)
                alphas.append(function.alpha)
                shapes.append(shape)
        if len(records) < 2:
            return
        mapped, total = thetas_with_norm(weights, thresholds, alphas, shapes)
        norm, self._open = Norm(total, len(records)), records
        for k, record in enumerate(records):
            record.keep(norm, weights[k], thresholds[k])
            record.ahead = weights[k], mapped[k]

    def close(self, *_: object) -> None:
        for record in self._open:
            record.ahead = None
        self._open = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _ReadAhead, ()  # a copy of a network reads its own layers


def read_ahead(network: nn.Module) -> None:
    """Let a sibling read its small layers together, from now on."""
    own = type(network).__module__.startswith("torch.nn.") and not isinstance(network, nn.Sequential)
    if own:
        return  # layers of torch's own have faster ways that they leave when somebody looks on
    hook = _ReadAhead()
    network.register_forward_pre_hook(hook)
    network.register_forward_hook(hook.close, always_call=True)


def forget_read_ahead(model: nn.Module) -> None:
    """Take the hooks of `read_ahead` away, wherever in a model they are."""
    for module in model.modules():
        drop_hooks(module, lambda hook: isinstance(getattr(hook, "__self__", hook), _ReadAhead))
