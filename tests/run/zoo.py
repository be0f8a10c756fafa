"""A table of networks that do everything a forward pass may do."""

import torch
from compiled import sparsened
from foreign_layers import Conv1D
from torch import Tensor, nn
from zoo_networks import (
    Answers,
    Branching,
    BranchingWithMask,
    ByName,
    CrossAttention,
    FlattenedTokens,
    Functional,
    InPlace,
    LayerByLayer,
    Lines,
    LinesWithResidual,
    NamesTaken,
    Padded,
    PaddedByValue,
    Products,
    Query,
    Random,
    ReadElsewhere,
    Residual,
    SamePadding,
    Scaled,
    Several,
    SingleImage,
    Tied,
    TiedLayers,
    Tokens,
    Translator,
    Twice,
    _changed_between,
    _changed_other,
    _changed_source,
    _half_residual,
    _unused_result,
)


def norms(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3), norm, nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1), nn.Hardswish())


FLATTENS = {
    "flatten": lambda x: torch.flatten(x, 1),
    "flatten method": lambda x: x.flatten(start_dim=1),
    "view": lambda x: x.view(x.size(0), -1),
    "view of known size": lambda x: x.view(-1, 32),
    "view of shape": lambda x: x.view(x.shape[0], 32),
    "reshape": lambda x: x.reshape(len(x), -1) if isinstance(x, Tensor) else x.reshape(x.size()[0], -1),
    "reshape to a tuple": lambda x: torch.reshape(x, (-1, 32)),
}


ADDS = {
    "add": lambda y, x: y + x,
    "add the other way": lambda y, x: x + y,
    "torch.add": lambda y, x: torch.add(y, x),
    "in place": lambda y, x: y.add_(x),
    "into the other": lambda y, x: x.add_(y),
    "scaled": lambda y, x: torch.add(y, x, alpha=3),
    "itself": lambda y, x: y + y,
}


IMAGES = (7, 1, 14, 14)


ZOO: dict[str, tuple] = {
    **{f"functional, {name}": (lambda f=f: Functional(f), (IMAGES,)) for name, f in FLATTENS.items()},
    **{f"residual, {name}": (lambda f=f: Residual(f), ((3, 4, 6, 5),)) for name, f in ADDS.items()},
    "residual, not in place": (lambda: Residual(ADDS["add"], inplace=False), ((3, 4, 6, 5),)),
    "blocks": (lambda: nn.Sequential(*(Residual(ADDS["in place"]) for _ in range(3))), ((2, 4, 6, 6),)),
    "norm": (lambda: norms(nn.BatchNorm2d(6)), ((3, 2, 7, 7),)),
    "norm without weights": (lambda: norms(nn.BatchNorm2d(6, affine=False)), ((3, 2, 7, 7),)),
    "norm without statistics": (lambda: norms(nn.BatchNorm2d(6, track_running_stats=False)), ((3, 2, 7, 7),)),
    "norm without momentum": (lambda: norms(nn.BatchNorm2d(6, momentum=None)), ((3, 2, 7, 7),)),
    "norm of groups": (lambda: norms(nn.GroupNorm(2, 6)), ((3, 2, 7, 7),)),
    "norm of vectors": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), ((5, 6),)),
    "norm of steps": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(4), nn.Linear(8, 3)), ((5, 4, 6),)),
    "norm of as many steps": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), ((5, 8, 6),)),
    "called twice": (Twice, ((5, 6),)),
    "read elsewhere": (ReadElsewhere, ((5, 6),)),
    "tied": (TiedLayers, ((5, 6),)),
    "branching": (Branching, ((5, 6),)),
    "branching with a mask": (BranchingWithMask, ((5, 6),)),
    "several": (Several, ((5, 6), (5, 5))),
    "tokens": (Tokens, ((5, 3, 6),)),
    "flattened tokens": (lambda: FlattenedTokens(3), ((5, 3, 6),)),
    "flattened single tokens": (lambda: FlattenedTokens(1), ((5, 1, 6),)),
    "single image": (SingleImage, ((2, 6, 6),)),
    **{
        f"in place, {act.__name__[1:]}": (lambda act=act: InPlace(act), ((5, 6),))
        for act in (_unused_result, _changed_source, _changed_other, _changed_between, _half_residual)
    },
    "dropout": (Random, ((5, 6),)),
    "dropout modules": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Identity(), nn.Linear(8, 3)),
        ((5, 6),),
    ),
    "names taken": (NamesTaken, ((5, 6),)),
    "one layer": (lambda: nn.Linear(6, 3), ((5, 6),)),
    "one convolution": (lambda: nn.Conv2d(3, 5, 3, padding="same"), ((2, 3, 6, 6),)),
    "strange convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
            nn.Conv2d(4, 4, (3, 1), (2, 1), (1, 0), (1, 2), groups=2),
            nn.MaxPool2d(2, 2, ceil_mode=True),
            nn.Conv2d(4, 4, 1),
            nn.MaxPool2d((2, 1)),
        ),
        ((2, 2, 9, 9),),
    ),
    "lines": (Lines, ((5, 3, 20),)),
    "lines and vectors": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3, padding="same"), nn.Flatten(), nn.Linear(28, 4)),
        ((5, 3, 7),),
    ),
    "lines and their last dimension": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.Linear(5, 4)), ((5, 3, 7),)),
    "lines with a residual": (LinesWithResidual, ((5, 4, 9),)),
    "single line": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 2)), ((3, 7),)),
    "same padding": (
        lambda: nn.Sequential(SamePadding(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU6(), SamePadding(4, 6, (3, 2))),
        ((2, 3, 9, 8),),
    ),
    "uneven padding": (
        lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(2, 4, 3, stride=2), nn.SiLU(), nn.Conv2d(4, 3, 1)),
        ((3, 2, 9, 6),),
    ),
    "depthwise": (
        lambda: nn.Sequential(
            SamePadding(4, 4, 3, 2, groups=4), nn.BatchNorm2d(4), nn.ReLU6(), nn.Conv2d(4, 6, 1), nn.Hardswish()
        ),
        ((2, 4, 9, 8),),
    ),
    "subclass": (lambda: nn.Sequential(Scaled(6, 8), nn.Hardswish(), Scaled(8, 3)), ((5, 6),)),
    "products": (Products, ((2, 3, 6),)),
    "Hugging Face's Conv1D": (lambda: nn.Sequential(Conv1D(8, 6), nn.GELU(), Conv1D(3, 8)), ((5, 4, 6),)),
    "tied head": (Tied, ((3, 4),)),
    "attention": (lambda: nn.MultiheadAttention(6, 2), ((5, 3, 6),) * 3),
    "cross-attention": (CrossAttention, ((5, 3, 6), (4, 3, 6))),
    "cross-attention of other sizes": (lambda: CrossAttention(kdim=7, vdim=7, bias=False), ((5, 3, 6), (4, 3, 7))),
    "padded": (Padded, ((4, 5, 6), (4, 1))),
    "padded by value": (PaddedByValue, ((4, 5, 6), (4, 1))),
    "translator": (Translator, ((3, 5, 8),)),
    "decoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2),
        ((3, 5, 8), (3, 5, 8)),
    ),
    "answers": (Answers, ((5, 6),)),
    "layer by layer": (LayerByLayer, ((5, 6),)),
    "by name": (ByName, ((5, 6),)),
    "query": (Query, ((1, 6),)),
    "single line with a norm": (
        lambda: nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5), nn.Conv1d(5, 2, 1)),
        ((3, 7),),
    ),
    "no units": (lambda: nn.Sequential(nn.Linear(6, 0), nn.ReLU(), nn.Linear(0, 3)), ((5, 6),)),
    "a batch of none": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), ((0, 6),)),
    "a vector": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), ((6,),)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), ((3, 5, 8),)),
    "encoder layer, sequence first": (lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu"), ((3, 5, 8),)),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), ((3, 5, 8), (3, 5, 8))),
    "encoder in a row": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        ),
        ((3, 5, 6),),
    ),
    "encoder": (
        lambda: nn.Sequential(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False), nn.Linear(8, 3)
        ),
        ((3, 5, 8),),
    ),
}


def zoo(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    make, shapes = ZOO[name]
    torch.manual_seed(0)
    return sparsened(make()), tuple(torch.randn(shape) for shape in shapes)


def fresh(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(one.clone() for one in inputs)
