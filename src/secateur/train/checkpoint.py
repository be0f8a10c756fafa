"""Checkpoints of a training under way: one file, written atomically, without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from secateur.atomic import write_atomically

# Gathers what FSDP2 has sharded and drops DDP's prefix, so that a checkpoint does not depend on how it was trained.
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_WHOLE_AND_FLAT = StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True)


class CheckpointError(Exception):
    """A checkpoint that is damaged or was written by another model or optimizer."""


def save(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    facts: dict[str, Any],
    *,
    by_process: Mapping[str, Tensor] | None = None,
    write: bool,
) -> None:
    """Write model, optimizer and `facts` (plain JSON) to `path`, atomically; all ranks call it, one has `write` set.

    `by_process` is what every process has of its own in the middle of an epoch, one row for each.
    """
    weights, moments = get_state_dict(model, optimizer, options=_WHOLE_AND_FLAT)
    if not write:
        return
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for kind, state in (("model", weights), ("optimizer", moments), ("by_process", by_process or {})):
        for key, value in state.items():
            if isinstance(value, Tensor):
                # Tied tensors share memory, which the format refuses: each gets its own copy.
                tensors[f"{kind}:{key}"] = value.detach().clone().contiguous()
            else:
                numbers[f"{kind}:{key}"] = value
    header = {"facts": json.dumps(facts), "numbers": json.dumps(numbers)}
    write_atomically(path, safetensors.torch.save(tensors, metadata=header))


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Load model and optimizer from `path`; return the facts and what every process had of its own."""
    state, facts = _read(path)
    moments = _nested(state["optimizer"])
    try:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=moments, options=_WHOLE)
    except (RuntimeError, KeyError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise CheckpointError(f"{path} was written by another model or optimizer: {first}") from error
    _lay_out_like_parameters(optimizer)
    return facts, state["by_process"]


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state as torch nests it, every parameter in a group of its own.

    torch flattens the optimizer's state when asked, but cannot load it again (2.13): KeyError in param_groups.
    """
    moments: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        section, _, place = key.partition(".")
        parameter, _, name = place.rpartition(".")
        if section == "state":
            moments.setdefault(parameter, {})[name] = value
        else:
            groups.setdefault(parameter, {"params": [parameter]})[name] = value
    return {"state": moments, "param_groups": list(groups.values())}


def _lay_out_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give moments the memory layout of their parameter: files do not store it, and fused kernels rely on it."""
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def load_model(path: Path) -> dict[str, Tensor]:
    """Return the state dict of the model only."""
    return _read(path)[0]["model"]


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata()
            entries: dict[str, Any] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
        facts, numbers = json.loads(header["facts"]), json.loads(header["numbers"])
        state: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "by_process": {}}
        for name, value in {**entries, **numbers}.items():
            kind, _, key = name.partition(":")
            state[kind][key] = value
        return state, dict(facts)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: the run has not reached this stage") from None
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a usable checkpoint ({error}): delete it and start again") from error
