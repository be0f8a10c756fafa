"""What is asked of a network: how a batch is given to it, and the loss of what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

Batch: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]
Loss: TypeAlias = Callable[..., Tensor]

_LABELS = ("labels", "label")  # what labels are called in a batch that is a mapping
_SCORES = ("logits", "last_hidden_state")  # what an output with names calls the part that is compared
_TEMPERATURE = 2.0  # of the scores of student and teacher, which makes the smaller ones count


@dataclass(frozen=True)
class Task:
    """The loss of a network on a batch.

    A batch is a tensor, inputs followed by labels, or a mapping from argument names to values. Without a `loss` it is
    the one that the network returns itself, as those of Hugging Face do, or else the cross-entropy with the labels.
    `loss(output, labels)` is called with what the network returns. With a `teacher`, its output is the third argument,
    and the default adds the divergence from its scores (at temperature 2), or is the mean squared difference if the
    batches have no labels.
    """

    loss: Loss | None = None
    teacher: nn.Module | None = None

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch, a number that can be differentiated."""
        output, labels = answer(model, batch), labels_of(batch)
        if self.teacher is None:
            value = own_or_cross_entropy(output, labels) if self.loss is None else self.loss(output, labels)
        else:
            with torch.no_grad():
                known = answer(self.teacher, batch)
            value = _distilled(output, labels, known) if self.loss is None else self.loss(output, labels, known)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the loss of a batch must be one number in a tensor, got {got}")
        return value.squeeze()


def answer(model: nn.Module, batch: Batch) -> Any:
    """Return what a network returns for a batch, to which its labels are given only if it has a name for them."""
    match batch:
        case Tensor():
            return model(batch)
        case Mapping():
            return model(**{name: value for name, value in batch.items() if name in _accepted(model, batch)})
        case [only]:
            return model(only)
        case [*inputs, _]:
            return model(*inputs)
    raise ValueError(
        f"a batch must be a tensor, a tuple of inputs and labels, or a mapping, got {type(batch).__name__}"
    )


def labels_of(batch: Batch) -> Any:
    """Return the labels of a batch: the last part of a tuple, or what a mapping calls so; None if it has none."""
    match batch:
        case Mapping():
            return next((batch[name] for name in _LABELS if name in batch), None)
        case [_, *_, labels]:
            return labels
    return None


def scores_of(output: Any) -> Tensor:
    """Return the tensor that matters in what a network returns: its scores, or its first output."""
    match output:
        case Tensor():
            return output
        case Mapping():
            found = next((output[name] for name in _SCORES if name in output), None)
        case [first, *_]:
            found = first
        case _:
            found = next((value for name in _SCORES if (value := getattr(output, name, None)) is not None), None)
    if not isinstance(found, Tensor):
        raise ValueError(f"the network returns {type(output).__name__}, in which no scores are known: give a loss")
    return found


def samples_in(batch: Batch) -> int:
    """Return how many samples a batch has."""
    parts = list(batch.values()) if isinstance(batch, Mapping) else [batch] if isinstance(batch, Tensor) else batch
    first = next((part for part in parts if isinstance(part, Tensor) and part.dim()), None)
    if first is None:
        raise ValueError("a batch has no tensor whose first dimension counts its samples")
    return len(first)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device."""
    match batch:
        case Tensor():
            return batch.to(device)
        case Mapping():
            return {name: moved(value, device) for name, value in batch.items()}
        case tuple() | list():
            return tuple(moved(value, device) for value in batch)
    return batch


def own_or_cross_entropy(output: Any, labels: Any) -> Tensor:
    """Return the loss that a network returns itself or, if it returns none, the cross-entropy with the labels."""
    own = _own_loss(output)
    if own is not None:
        return own
    if labels is None:
        raise ValueError(
            "the batches have no labels, and the network returns no loss of its own: give a loss, a function of the "
            "network's output and the labels"
        )
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"cross-entropy needs the numbers of classes as labels, got {got}: give a loss")
    return functional.cross_entropy(scores_of(output), labels)


def _own_loss(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.dim() == 0 else None
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return found if isinstance(found, Tensor) else None


def _distilled(output: Any, labels: Any, known: Any) -> Tensor:
    student, teacher = scores_of(output), scores_of(known)
    if student.shape != teacher.shape:
        raise ValueError(
            f"the teacher returns a tensor of shape {tuple(teacher.shape)}, the network one of {tuple(student.shape)}: "
            "give a loss of the output, the labels and the teacher's output"
        )
    if labels is None:
        return functional.mse_loss(student, teacher)
    divergence = functional.kl_div(
        (student / _TEMPERATURE).log_softmax(dim=1),
        (teacher / _TEMPERATURE).log_softmax(dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return own_or_cross_entropy(output, labels) + _TEMPERATURE**2 * divergence


def _accepted(model: nn.Module, batch: Mapping[str, Any]) -> set[str]:
    """Return the names in a batch that are arguments of the network; a column too many is common."""
    inner = getattr(model, "_orig_mod", model)  # of torch.compile
    inner = inner.module if isinstance(inner, DistributedDataParallel) else inner
    parameters = inspect.signature(inner.forward).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    accepted = set(batch) if takes_any else set(batch) & set(parameters)
    if not accepted:
        raise ValueError(
            f"a batch has {', '.join(map(str, batch))}, and the network takes {', '.join(parameters) or 'no argument'}"
        )
    return accepted
