"""From a .cut file to a sparse network: weights that become sparse layers are never dense in memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from os import PathLike

import numpy as np
import torch
from torch import Tensor, fx, nn

from secateur import files
from secateur.encode import Archive, TensorRecord, open_archive
from secateur.encode.container import MAX_BYTES
from secateur.encode.filling import require_match
from secateur.functions.inputs import inputs_of
from secateur.graph.layers import is_depthwise, is_plain_layer
from secateur.graph.regions import Region, regions
from secateur.graph.simplify import fold
from secateur.graph.trace import TRACING, note_shapes
from secateur.memory import keep_freed_memory
from secateur.run.assembly import CompiledNetwork, apply, follow
from secateur.run.fusion import FusedLayer, fused_layers, sequences
from secateur.run.kernels import bindings
from secateur.run.kernels.kernel import Kernel
from secateur.run.plan import Group, Plan
from secateur.run.sparse_weight import SparseWeight

_PANEL_BYTES = 16 << 20  # that a thread keeps for images between layers where nothing was timed; LeNet-5's take 8.8 MB
DENSEST = 0.35  # layers up to here are sparse where nothing was timed: sparse kernels win there on every shape we know


def load_sparse(
    path: str | PathLike[str], *, batch: int = 1, max_bytes: int = MAX_BYTES, trust: Collection[str] = ()
) -> nn.Module:
    """Read a network from a .cut file, straight into sparse kernels, for inputs of `batch` samples.

    A plan in the file's metadata, under "plan", is followed. Without one, layers of which at most 35 % of the weights
    are left run sparse, and depthwise convolutions by a kernel of ours. The dense weights of layers that run sparse are
    never built, batch norms are folded, and nothing is timed: `compile_sparse` is for the last bit of speed. As there,
    this process keeps freed memory from then on.

    A network that is not ours is imported if `trust` allows it, as by `load`. The file has to say the shape of its
    inputs, as those of runs do. One whose forward pass cannot be traced, or whose layers round what they read, is
    returned as it is, dense.
    """
    if batch < 1:
        raise ValueError(f"batch must be ≥ 1, got {batch}")
    keep_freed_memory()
    with TRACING:
        return _load(path, batch, max_bytes, trust)


def _load(path: str | PathLike[str], batch: int, max_bytes: int, trust: Collection[str]) -> nn.Module:
    with open_archive(path, max_bytes) as archive:
        stored = Plan.of_file(archive.metadata, path)
        is_ours = files.is_ours(archive.architecture)
        skeleton = _skeleton(archive, path, trust).eval()
        if inputs_of(skeleton):  # kernels know nothing of layers that round what they read
            return _load_dense(path, max_bytes, trust)
        shape = files.input_shape(skeleton, archive.metadata, path)
        found_regions = regions(skeleton, 1).found
        if not is_ours and not _is_whole(found_regions, archive):
            return _load_dense(path, max_bytes, trust)
        [region] = found_regions
        with torch.no_grad():
            note_shapes(region.graph, (torch.zeros((batch, *shape), device="meta" if is_ours else None),))
        weights = _fill(archive, region.graph, stored)
    fold(region.graph, partial(_fold_norm, weights))
    found = fused_layers(region.graph, weights)
    counts = {
        fused.name: (fused.layer.weight.shape, fused.layer.weight.count) for fused in found if fused.name in weights
    }
    if stored is None:
        groups = [group for sequence in sequences(found) for group in _group(sequence, weights, batch)]
    else:
        groups = _follow(stored, found, counts, path)
    if not is_ours and not _reads_all(region.graph, groups, weights):
        return _load_dense(path, max_bytes, trust)
    if weights:
        apply(region.graph, found, groups)
    network = CompiledNetwork(region.graph, region.graph.graph, type(skeleton).__name__)
    named = tuple(group for group in groups if group.layers[0] in counts)
    plan = Plan(named, counts, batch, torch.get_num_threads(), bindings.lanes())
    network.plan = plan  # type: ignore[assignment]  # a plain attribute, not a tensor
    return network.eval().requires_grad_(False)


def _is_whole(found: Sequence[Region], archive: Archive) -> bool:
    """Return whether a network was traced as one graph whose tensors have the names that they have in the file."""
    names = {record.name for record in archive.records}
    return [region.path for region in found] == [""] and set(found[0].graph.state_dict()) <= names


def _reads_all(graph: fx.GraphModule, groups: Sequence[Group], weights: Collection[str]) -> bool:
    """Return whether each sparse weight is read by a sparse layer and by nothing else, such as the forward itself."""
    covered = {name for group in groups for name in group.layers}
    own = {f"{name}.weight" for name in weights}
    return covered >= set(weights) and not any(n.op == "get_attr" and n.target in own for n in graph.graph.nodes)


def _load_dense(path: str | PathLike[str], max_bytes: int, trust: Collection[str]) -> nn.Module:
    return files.load(path, max_bytes=max_bytes, trust=trust).float().eval().requires_grad_(False)


def _fold_norm(
    weights: dict[str, SparseWeight],
    name: str,
    layer: nn.Linear | nn.Conv1d | nn.Conv2d,
    norm: nn.BatchNorm1d | nn.BatchNorm2d,
) -> bool:
    """Fold a batch norm into the sparse weight of a layer; return whether that leaves finite numbers."""
    if name not in weights:
        return False
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = torch.rsqrt(norm.running_var + norm.eps) * (1.0 if norm.weight is None else norm.weight.detach())
    bias = -norm.running_mean if layer.bias is None else layer.bias.detach() - norm.running_mean
    bias = bias * factor + (0.0 if norm.bias is None else norm.bias.detach())
    weight = weights[name].with_rows_times(factor.numpy())
    if not (bool(bias.isfinite().all()) and bool(np.isfinite(weight.values).all())):
        return False
    weights[name] = weight
    layer.bias = nn.Parameter(bias, requires_grad=False)
    return True


def _follow(
    plan: Plan,
    found: Sequence[FusedLayer],
    counts: Mapping[str, tuple[tuple[int, ...], int]],
    path: str | PathLike[str],
) -> list[Group]:
    """Return the groups of a stored plan that run sparse."""
    try:
        plan.require_within(counts)
        return [group for group in follow(plan, found) if group.kernel is not None]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _skeleton(archive: Archive, path: str | PathLike[str], trust: Collection[str]) -> nn.Module:
    """Return the network that a file names, if the file holds all of it; one of ours is on the meta device."""
    architecture = archive.architecture
    if architecture is None:
        raise ValueError(
            f"{path} does not say which network it holds: load it into a model of yours, and compile that with "
            "compile_sparse"
        )
    if files.is_ours(architecture):
        return files.skeleton(archive, path).float()
    model = files.build_imported(archive, path, trust)
    require_match(archive, model.state_dict(), type(model).__name__, path)
    return model.float()


def _fill(archive: Archive, graph: nn.Module, plan: Plan | None) -> dict[str, SparseWeight]:
    """Read all tensors: the weights of sparse layers by name of the layer, the others into the graph."""
    planned = None if plan is None else {name for group in plan.sparse_groups for name in group.layers}
    layers = {f"{name}.weight": (name, module) for name, module in graph.named_modules() if is_plain_layer(module)}
    sparse: dict[str, SparseWeight] = {}
    dense: dict[str, Tensor] = {}
    for record in archive.records:
        source = archive.record(record.alias_of) if record.alias_of is not None else record
        name, module = layers.get(record.name, (None, None))
        gains = _density(source) <= DENSEST or is_depthwise(module)
        if name is not None and (gains if planned is None else name in planned):
            sparse[name] = SparseWeight.of_sparse(*archive.read_sparse(source))
        else:
            tensor = archive.read(source)
            dense[record.name] = tensor.float() if tensor.is_floating_point() else tensor
    graph.load_state_dict(dense, strict=False, assign=True)
    return sparse


def _density(record: TensorRecord) -> float:
    return record.coding.nonzero / max(record.size, 1)


def _is_too_large(sequence: Sequence[FusedLayer], names: Collection[str], vectors: int) -> bool:
    """Return whether images would take too much memory in panels: what is read, padded, and what two layers make."""
    convolutions = [fused for fused in sequence if fused.name in names and fused.layer.window is not None]
    images = [node.meta["shape"][1:] for fused in convolutions for node in (fused.source, fused.nodes[0])]
    return 3 * max(map(math.prod, images), default=0) * vectors * bindings.lanes() * 4 > _PANEL_BYTES


def _group(sequence: list[FusedLayer], weights: Mapping[str, SparseWeight], batch: int) -> list[Group]:
    """Join neighbours that are sparse."""
    groups: list[Group] = []
    together: list[str] = []
    vectors = 0 if batch < bindings.lanes() else min(1 << math.floor(math.log2(batch / bindings.lanes())), 4)
    for fused in sequence:
        if fused.name in weights:
            together.append(fused.name)
            if fused is not sequence[-1]:
                continue
        if together:
            # Panels would multiply depthwise convolutions as sparse ones of which all weights are left.
            by_sample = any(one.layer.is_depthwise for one in sequence if one.name in together)
            own = 0 if by_sample or _is_too_large(sequence, together, vectors) else vectors
            # Vectors of 16 lanes are as long as a line of the cache: unless they begin as one, they lie across two.
            convolves = any(one.layer.window is not None for one in sequence if one.name in together)
            kernel = Kernel(own, aligned=convolves and own == 0 and bindings.lanes() == 16)
            groups.append(Group(tuple(together), kernel, math.nan, math.nan))
            together = []
    return groups
