"""A network on the processes that train it together: a copy in each (DDP), or a shard of every tensor (FSDP2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn

from secateur.train.recipe import Recipe
from secateur.weights.reading import copied

if TYPE_CHECKING:
    from accelerate import Accelerator


def accelerator_of(recipe: Recipe) -> Accelerator:
    """Return Accelerate's view of the processes that torchrun started, with the precision of a recipe."""
    try:
        from accelerate import Accelerator  # the train extra; heavy, so not before it is needed
        from accelerate.state import AcceleratorState
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("training needs accelerate: pip install 'secateur[train]'") from error
    if recipe.precision == "fp16" and not torch.cuda.is_available():
        raise ValueError("precision fp16 needs a GPU: choose bf16 or no")
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != recipe.precision:
        AcceleratorState._reset_state()  # or it would refuse a second training of another precision in this process
    return Accelerator(mixed_precision=recipe.precision, cpu=not torch.cuda.is_available())


def restore_forward_(model: nn.Module) -> None:
    """Remove the forward in mixed precision that Accelerate's preparation has given to a network.

    So what was trained in bfloat16 is evaluated, copied and pruned in float32, like the file it is written to.
    """
    own = vars(model).pop("_original_forward", None)
    if own is not None:
        del model.forward
        if getattr(own, "__func__", None) is not type(model).forward:
            model.forward = own  # the caller's, of this one network


def require_enough(samples: int, batch_size: int, processes: int) -> None:
    """Refuse processes that would have no sample in any step."""
    most = min(samples, batch_size)
    if processes > most:
        what = f"{samples:,} training samples" if samples < batch_size else f"batches of {batch_size:,} samples"
        raise ValueError(f"{processes} processes cannot share {what}: start at most {most}")


def sharded(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a network whose tensors lie in shards on all processes (FSDP2).

    Accelerate's own preparation for FSDP2 ignores processes without a GPU; this is the same on all devices. FSDP2 takes
    no channels-last tensors.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    copy = copied(model).to(device)
    for parameter in copy.parameters():
        parameter.data = parameter.data.contiguous()
    for layer in _units(copy):
        fully_shard(layer, mesh=mesh)
    fully_shard(copy, mesh=mesh)
    return copy


def _units(model: nn.Module) -> list[nn.Module]:
    """Return the layers that are gathered one at a time; a network with tied tensors is gathered as a whole."""
    every = list(model.parameters())
    if len(list(model.named_parameters(remove_duplicate=False))) > len(every):
        return []
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for layer in model.modules():
        has_tensors = next(layer.parameters(recurse=False), None) is not None or hasattr(layer, "parametrizations")
        if layer is not model and layer not in inside and has_tensors:
            found.append(layer)
            inside.update(layer.modules())
    return found


def gather_(shards: nn.Module, model: nn.Module) -> None:
    """Copy the whole tensors of a sharded network into a plain one of the same kind, in every process."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model.load_state_dict(get_model_state_dict(shards, options=StateDictOptions(full_state_dict=True)))


def share_buffers_(model: nn.Module) -> None:
    """Give all processes the buffers of the first: batch norm's running statistics are those of its own samples."""
    if distributed.is_available() and distributed.is_initialized():
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)


def in_any_process(claims: list[bool], device: torch.device) -> list[bool]:
    """Return, for each claim, whether it is true in any process."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return claims
    votes = torch.tensor(claims, dtype=torch.int32, device=device)
    distributed.all_reduce(votes)
    return votes.bool().tolist()


def mean_over_processes(values: list[float], device: torch.device) -> list[float]:
    """Return the means of numbers that every process has its own of."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return values
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(sums)
    return (sums / distributed.get_world_size()).tolist()


def from_all_processes(value: Tensor, accelerator: Accelerator) -> Tensor:
    """Return the tensors that the processes have, one row for each."""
    rows: Tensor = accelerator.gather(value[None].to(accelerator.device))
    return rows.cpu()
