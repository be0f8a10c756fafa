"""Step 4, quantize: few values per tensor, learned by gradient descent, behind what prunes the network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import Doc

from secateur.functions.integer_grid import IntegerGrid
from secateur.functions.learned_step import LearnedStep
from secateur.functions.mask import FixedMask
from secateur.functions.quantizer import Quantizer
from secateur.functions.shared_values import SharedValues
from secateur.functions.threshold import LearnedThreshold, warn_of_stuck_thresholds
from secateur.kmeans import Init
from secateur.nearest import require_choices
from secateur.rate import plain_bits
from secateur.weights.function import WeightFunction, functions, given
from secateur.weights.reading import attach, copied, settle_
from secateur.weights.rules import refuse_finished, refuse_reshaped, refuse_rules, refuse_unmatched, rule_of
from secateur.weights.tensors import NetworkTensor, filter_axis, parameters, tensors

_QUANTIZERS: dict[str, type[Quantizer]] = {
    "shared": SharedValues,
    "uniform": LearnedStep,
    "int8": IntegerGrid,
    "int4": IntegerGrid,
}
_LARGEST_INTEGER = {"int8": 127, "int4": 7}


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig:
    """How a tensor is quantised; the defaults are Deep Compression's for fully connected layers."""

    method: Annotated[
        Literal["shared", "uniform", "int8", "int4"],
        Doc("values shared by k-means, a grid with a learned step, or a grid of 8 or 4 bits up to the largest weight"),
    ] = "shared"
    levels: Annotated[int, Doc('non-zero values per tensor ("shared"), or the largest |level| ("uniform")')] = 32
    init: Annotated[Init, Doc("where k-means starts: even in value, even in probability, or at random weights")] = (
        "linear"
    )
    granularity: Annotated[
        Literal["tensor", "channel"],
        Doc("what shares a scale of int8 or int4; by channel a .cut file grows: it has one table of values per tensor"),
    ] = "tensor"
    bias_levels: Annotated[
        int | None,
        Doc("round biases to at most so many values too, unless they are all zero; scales of norms stay as they are"),
    ] = None
    cutoff: Annotated[float, Doc("γ, on a sibling: weights with |θ(w)| below it are zero")] = 1e-3
    seed: Annotated[int, Doc("of the random start of k-means")] = 0

    def __post_init__(self) -> None:
        require_choices(
            self,
            method=("shared", "uniform", "int8", "int4"),
            init=("linear", "density", "random"),
            granularity=("tensor", "channel"),
        )
        require_levels("levels", self.levels)
        if self.bias_levels is not None:
            require_levels("bias_levels", self.bias_levels, least=3, why=" (−1, 0 and 1 at least)")
        if not (math.isfinite(self.cutoff) and self.cutoff >= 0):
            raise ValueError(f"cutoff must be ≥ 0 and finite, got {self.cutoff}")

    @property
    def quantizer(self) -> type[Quantizer]:
        """The function that a weight is read through."""
        return _QUANTIZERS[self.method]


def require_levels(name: str, number: int, *, least: int = 1, why: str = "") -> None:
    """Refuse a number of values that no tensor can have; `name` is what the caller calls it."""
    if not _is_whole(number):
        raise ValueError(f"{name} must be a whole number, got {number!r}")
    if not least <= number <= 65_535:
        raise ValueError(f"{name} must lie in {least} … 65535{why}, got {number}")


LayerRules: TypeAlias = Mapping[str | type[nn.Module], QuantizeConfig | int | None]


def quantize(model: nn.Module, config: QuantizeConfig | None = None, *, layers: LayerRules | None = None) -> nn.Module:
    """Let every chosen weight of `model` be read through a quantiser of its own, in place; return the model.

    Zeros of weights stay zero whatever is trained afterwards, and what is not zero stays so; biases, with
    `bias_levels`, may come to zero and leave it. `layers` overrides `config` as in `build_sibling`; a number is the
    same with so many levels. A sibling takes "uniform", "int8" and "int4", and goes on learning its thresholds;
    "shared" fixes what is zero and wants a pruned network.
    """
    chosen = list(_tensors(model, config or QuantizeConfig(), layers or {}))
    for tensor, rule, is_bias in chosen:  # all of them before the first change: a refused model stays as it was
        _refuse_unusable(tensor, rule, is_bias)
    for tensor, rule, is_bias in chosen:
        weight, threshold = _read(tensor), tensor.function(LearnedThreshold)
        if threshold is not None:
            threshold.cutoff = rule.cutoff  # what the quantiser reads as zero settles to zero
        if not tensor.functions and not is_bias and rule.quantizer.reads_weight and not weight.all():
            attach(tensor, FixedMask.of(weight))
        attach(tensor, _quantizer(tensor, weight, rule, 0.0 if threshold is None else rule.cutoff, is_bias))
    return model


def freeze(model: nn.Module, *, half_codebook: bool = False) -> nn.Module:
    """Return a plain copy whose tensors hold exactly the few values; class, key order and ties are the plain model's.

    With `half_codebook` shared values, steps and scales are rounded to float16, so that a file stores two bytes each;
    those of a tensor that has one outside float16's range, 2⁻²⁴ … 65504, stay as they are. A sibling's or masked
    tensors that have no quantiser are cut as `prune` does. The model is left as it is.
    """
    if not any(tensor.has(Quantizer) for tensor in tensors(model)):
        raise ValueError(f"{type(model).__name__} is not quantised: call quantize(model) first")
    plain = copied(model)
    for function, _ in functions(plain):
        if isinstance(function, Quantizer):
            function.half_codebook = half_codebook
    settle_(plain)
    warn_of_stuck_thresholds(model, stacklevel=2)
    return plain


def coded_bits(model: nn.Module) -> Tensor:
    """Estimate the bits that the whole model takes when it is coded; the gradient is that of a rate term.

    Add λ_rate · coded_bits(model) to the loss to trade bytes against it; coded_bits(model).item() / 8 is the size in
    bytes as it stands, without the file's header. What is not quantised counts as it is, each non-zero value with all
    of its bits, and gets no gradient. The formula is at the head of `secateur.rate`.
    """
    everything = tensors(model)
    total: Tensor | None = None
    for tensor in everything:
        if tensor.is_parameter:
            bits = tensor_bits(tensor)
            total = bits if total is None else total + bits.to(total.device)
    stored = sum(8 * tensor.read().nbytes for tensor in everything if not tensor.is_parameter)
    return torch.tensor(float(stored)) if total is None else total + stored


def _tensors(
    model: nn.Module, config: QuantizeConfig, layers: LayerRules
) -> Iterator[tuple[NetworkTensor, QuantizeConfig, bool]]:
    """Yield each tensor to quantise once, with its rule and whether it is a bias."""
    refuse_rules(
        layers,
        "a QuantizeConfig, a whole number of levels or None",
        lambda rule: rule is None or isinstance(rule, QuantizeConfig) or _is_whole(rule),
    )
    refuse_finished(model)
    everything = parameters(model)
    refuse_unmatched(model, everything, layers)
    rules = {key: replace(config, levels=rule) if isinstance(rule, int) else rule for key, rule in layers.items()}
    found = 0
    for tensor in everything:
        rule, is_bias = rule_of(tensor, config, rules), False
        if rule is None and not is_lazy(tensor.stored) and tensor.is_offset:
            rule, is_bias = rule_of(tensor, config, rules, weights_only=False), True
        # A 1-D tensor of zeros says nothing of the scale that training will give it, so no step would suit it.
        if is_bias and rule is not None and (rule.bias_levels is None or not _read(tensor).any()):
            rule = None
        if rule is not None:
            found += 1
            yield tensor, rule, is_bias
    if not found:
        raise ValueError(
            f"{type(model).__name__} has nothing to quantise: no Linear, convolution, Embedding, attention or "
            "recurrent weight is left by the rules; name tensors of your own layers with "
            'layers={"name.pattern": QuantizeConfig()}'
        )


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _quantizer(tensor: NetworkTensor, weight: Tensor, rule: QuantizeConfig, cutoff: float, is_bias: bool) -> Quantizer:
    if is_bias:
        assert rule.bias_levels is not None
        return LearnedStep(weight, (rule.bias_levels - 1) // 2, 0.0, keep_survivors=False)
    if rule.quantizer is SharedValues:
        return SharedValues(weight, rule.levels, rule.init, rule.seed)
    if rule.quantizer is LearnedStep:
        return LearnedStep(weight, rule.levels, cutoff, keep_survivors=True)
    axis = filter_axis(tensor.places[0]) if rule.granularity == "channel" else None
    return IntegerGrid(_LARGEST_INTEGER[rule.method], cutoff, axis)


def _read(tensor: NetworkTensor) -> Tensor:
    with torch.no_grad():
        return tensor.read().detach()


def tensor_bits(tensor: NetworkTensor) -> Tensor:
    """Return the bits of a tensor: of its last function that estimates them, else of its values as they are."""
    chain = tensor.places[0].chain
    for function in reversed(tensor.functions):
        if isinstance(function, WeightFunction) and type(function).bits is not WeightFunction.bits:
            assert chain is not None
            bits = function.bits(given(function, chain))
            if bits is not None:
                return bits
    return plain_bits(_read(tensor))


def _refuse_unusable(tensor: NetworkTensor, rule: QuantizeConfig, is_bias: bool) -> None:
    name, parameter = tensor.name, tensor.stored
    if tensor.has(Quantizer):
        raise ValueError(f'"{name}" is quantised already: freeze(model) first, then quantise the copy')
    if is_lazy(parameter):
        raise ValueError(f'"{name}" has no shape yet: run one batch through the lazy model first')
    if not parameter.is_floating_point():
        raise ValueError(f'"{name}" holds {parameter.dtype}: quantisers need floating-point weights')
    if parameter.is_meta:
        raise ValueError(f'"{name}" is on the meta device and has no values: load them first')
    if parameter.numel() == 0:
        raise ValueError(
            f'"{name}" is empty, shape {tuple(parameter.shape)}: leave it out with layers={{"{name}": None}}'
        )
    refuse_reshaped(tensor)
    if not rule.quantizer.reads_weight and not is_bias and tensor.has(LearnedThreshold):
        raise ValueError(
            f'"{name}" is still learning its threshold, and method "{rule.method}" fixes what is zero: quantise '
            'prune(sibling), or choose method "uniform"'
        )
    if not torch.isfinite(_read(tensor)).all():
        raise ValueError(f'"{name}" holds NaN or infinite values: there is nothing to round them to')
