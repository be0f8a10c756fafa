"""What of a network is left out, and why: said in one sentence, tensors of a kind together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from secateur.weights.tensors import NetworkTensor, normalised_by

_SUBSTANTIAL = 0.01  # share of all parameters that a kind of tensor has to hold to be mentioned
_LISTED = 5  # kinds of tensors in the sentence


@dataclass(frozen=True)
class LeftOut:
    """Tensors of one kind that are left out for one reason, and their share of all parameters of the network."""

    names: tuple[str, ...]
    weights: int
    share: float
    reason: str

    def __str__(self) -> str:
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return f'"{self.names[0]}"{more} ({_percent(self.share)}: {self.reason})'


def why_not_changed(tensor: NetworkTensor, *, is_named: bool) -> str | None:
    """Return why a weight that we know is left out, or None if it is not; `is_named` if a rule asks for it."""
    norms = (normalised_by(place) for place in tensor.places)
    norm = next((norm for norm in norms if norm is not None), None)
    if norm is not None:
        return f"read through {norm}, which has to be removed first"
    if not is_named and not any(place.originals[0].requires_grad for place in tensor.places):
        return "frozen, requires_grad=False"
    return None


def why_unknown(tensor: NetworkTensor) -> str | None:
    """Return why a tensor of two or more dimensions that no rule names is not a weight to us.

    None for the others, and for biases, which are never pruned unasked.
    """
    stored = tensor.places[0].originals[0]
    if is_lazy(stored) or not stored.is_floating_point() or stored.dim() < 2:
        return None
    if all("bias" in place.name for place in tensor.places):
        return None
    return f"{type(tensor.places[0].module).__name__} is not a layer that we know"


def gather(
    everything: Iterable[NetworkTensor], known: dict[NetworkTensor, str], unknown: dict[NetworkTensor, str]
) -> tuple[LeftOut, ...]:
    """Return what is left out by kind, the largest first.

    `known` and `unknown` are the tensors with their reasons: weights of layers that we know are always mentioned, other
    tensors if they are a substantial part of the network.
    """
    total = sum(map(_size, everything)) or 1
    kinds: dict[tuple[type[nn.Module], str, str], list[NetworkTensor]] = {}
    for tensor, reason in {**known, **unknown}.items():
        place = tensor.places[0]
        kinds.setdefault((type(place.module), place.name, reason), []).append(tensor)
    found = []
    for (_, _, reason), members in kinds.items():
        weights = sum(map(_size, members))
        if members[0] in known or weights >= _SUBSTANTIAL * total:
            found.append(LeftOut(tuple(tensor.name for tensor in members), weights, weights / total, reason))
    return tuple(sorted(found, key=lambda each: -each.weights))


def sentence(model: nn.Module, left_out: tuple[LeftOut, ...]) -> str:
    """Say what is left out, why, and how to change that."""
    listed = "; ".join(map(str, left_out[:_LISTED]))
    more = f"; and {len(left_out) - _LISTED} smaller kinds" if len(left_out) > _LISTED else ""
    share = _percent(sum(each.share for each in left_out))
    return (
        f"{share} of the parameters of {type(model).__name__} are left out: {listed}{more}. A rule that names a tensor "
        f'includes it, layers={{"{left_out[0].names[0]}": SiblingConfig()}}; None leaves it out without a word'
    )


def _size(tensor: NetworkTensor) -> int:
    return max(0 if is_lazy(stored) else stored.numel() for stored in tensor.places[0].originals)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
