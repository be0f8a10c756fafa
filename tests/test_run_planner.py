"""A compiled network computes what the network computes, whatever it is made of, and leaves it alone.

Timing decides what runs sparse, so that every test here decides in its place.
"""

import copy
import inspect
import io
import pickle
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from networks import CASES
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils import _pytree as pytree

import secateur
from secateur.run import SparseChain, compile_sparse, planner
from secateur.run.simplify import simplify
from secateur.run.tracing import note_shapes, trace
from secateur.run.units import runs, units

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def sparsened(model: nn.Module, density: float = 0.3) -> nn.Module:
    """Set most weights to zero, and give batch norms something to do."""
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1:
                parameter.data *= torch.rand(parameter.shape) < density
            elif "Norm" in type(module).__name__:
                parameter.data = torch.randn(parameter.shape).to(parameter.dtype)
        if isinstance(getattr(module, "running_mean", None), Tensor):
            module.running_mean.copy_(torch.randn(module.num_features))
            module.running_var.copy_(torch.rand(module.num_features) + 0.5)
    return model


def decide(monkeypatch: pytest.MonkeyPatch, sparse: float, *, prefer_last: bool = False) -> None:
    """Let the first of all calls, the dense one, take 1 ms, and the others about `sparse`."""

    def race(calls, **_):
        rest = [sparse * (1 + 0.01 * (-k if prefer_last else k)) for k in range(len(calls) - 1)]
        for call in calls:
            call()
        return [1.0, *rest]

    monkeypatch.setattr(planner, "race", race)


@pytest.fixture(params=["samples", "panels"])
def sparse_wins(request, monkeypatch):
    decide(monkeypatch, 0.1, prefer_last=request.param == "panels")


@pytest.fixture
def dense_wins(monkeypatch):
    monkeypatch.setattr(planner, "WIN", 1e9)


def assert_same(found: object, wanted: object) -> None:
    """Outputs of the same structure, to 1e-4 of the largest."""
    own, other = pytree.tree_flatten(found), pytree.tree_flatten(wanted)
    assert own[1] == other[1]
    for one, two in zip(own[0], other[0], strict=True):
        if isinstance(two, Tensor) and two.is_floating_point():
            assert one.shape == two.shape
            finite = two[two.isfinite()]
            most = float(finite.abs().max()) if finite.numel() else 0.0
            torch.testing.assert_close(one, two, rtol=0, atol=1e-4 * most, equal_nan=True)
        elif isinstance(two, Tensor):
            assert torch.equal(one, two)
        else:
            assert one == two


def chains(model: nn.Module) -> list[SparseChain]:
    return [module for module in model.modules() if isinstance(module, SparseChain)]


class Functional(nn.Module):
    """Convolutions, pools and linear layers, with everything between them as functions."""

    def __init__(self, flatten) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 3, stride=2)
        self.hidden, self.out = nn.Linear(8 * 2 * 2, 20), nn.Linear(20, 5)
        self.flatten = flatten

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.gelu(self.second(x), approximate="tanh")
        return self.out(self.hidden(self.flatten(x)).relu())


class Residual(nn.Module):
    def __init__(self, add, inplace: bool = True) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.down = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.relu, self.add = nn.ReLU(inplace), add

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_two(self.two(self.relu(self.norm_one(self.one(x)))))
        return self.relu(self.add(y, self.down(x)))


class Twice(nn.Module):
    """One module, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.out = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.layer(self.norm(self.layer(x)).relu())))


class ReadElsewhere(nn.Module):
    """A weight that the forward pass also reads by itself, before a batch norm that could be folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) + F.linear(x, self.layer.weight)


class TiedLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x)).relu())


class Branching(nn.Module):
    """What cannot be traced, of parts that can."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.odd, self.even = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.odd(x) if x.sum() > 0 else self.even(x)


class MaskedPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layer(x) if mask is None else self.layer(x) * mask


class BranchingWithMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.out = MaskedPart(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.part(x, torch.ones(6) if x.sum() > 1e9 else torch.zeros(6)))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor, y: Tensor, scale: float = 2.0, mask: Tensor | None = None):
        both = F.relu(self.left(x)) + self.right(y) * scale
        return {"sum": both if mask is None else both * mask, "parts": (self.left.bias, [both.mean()])}


class Tokens(nn.Module):
    """Layers over (samples, steps, features), flattened at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.out = nn.Linear(6, 12), nn.Linear(12, 6), nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.flatten(x + self.down(F.gelu(self.up(x))), 1))


class FlattenedTokens(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.each, self.out = nn.Linear(6, 4), nn.Linear(4 * steps, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.each(x).relu().flatten(1))


class Padded(nn.Module):
    """A transformer that is told what is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1]) >= lengths.abs().clamp(1, 4).round()
        return self.last(self.encoder(self.first(x), src_key_padding_mask=padding))


class PaddedByValue(Padded):
    """The same where nothing can be traced."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(x, lengths) if lengths.sum() > -1e9 else x


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x, x.flip(1))


class Answers(nn.Module):
    """Numbers, truths, infinities and a shape, in a structure."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, object]:
        y = self.second(F.relu(self.first(x)))
        masked = y.masked_fill(torch.tensor([True, False, False]), -torch.inf)
        return {"y": y, "is": [x > 0, x.shape[-1]], "masked": masked, "none": (masked * 0, None)}


class LayerByLayer(nn.Module):
    """A part that is not called as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body if x.sum() > -1e9 else ():
            x = layer(x)
        return x


class ByName(nn.Module):
    """An argument that can only be given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return self.first(x) if mask is None else self.first(x) * mask


class Query(nn.Module):
    """What is added to a layer's output has more samples than that."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.first, self.last = nn.Parameter(torch.randn(1, 6)), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(self.query) + x))


class Lines(nn.Sequential):
    def __init__(self) -> None:
        first = nn.Conv1d(3, 8, 5, 2, 2), nn.BatchNorm1d(8), nn.ReLU()
        second = nn.Conv1d(8, 6, 3, dilation=2), nn.GELU(), nn.MaxPool1d(2), nn.Conv1d(6, 6, 1, groups=2)
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(18, 4))


class LinesWithResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(6, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + x)


class SingleImage(nn.Module):
    """An image without a batch, whose channels are the samples of what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.out = nn.Conv2d(2, 3, 3), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.image(x).flatten(1))


class InPlace(nn.Module):
    """In-place operations whose results nobody takes, and sources that change behind a layer's back."""

    def __init__(self, act) -> None:
        super().__init__()
        self.one, self.two, self.act = nn.Linear(6, 6), nn.Linear(6, 6), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self, x.clone())


def _unused_result(self: InPlace, x: Tensor) -> Tensor:
    y = self.one(x)
    F.relu_(y)
    y.mul_(2)
    return self.two(y)


def _changed_source(self: InPlace, x: Tensor) -> Tensor:
    y = self.one(x)
    x.add_(1)
    return self.two(F.relu(y)) + x


def _changed_other(self: InPlace, x: Tensor) -> Tensor:
    kept = x
    x += self.one(x)
    return self.two(x) + kept


def _changed_between(self: InPlace, x: Tensor) -> Tensor:
    y = F.relu(self.one(x))
    x.zero_()
    return self.two(y) + x


def _half_residual(self: InPlace, x: Tensor) -> Tensor:
    return self.two(self.one(x) + x.half())


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 30), nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.dropout(F.dropout(self.one(x), 0.5, self.training), 0.5, training=self.training))


class NamesTaken(nn.Module):
    """Parts that are called what the compiled network would call its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sparse0, self.sparse1 = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.sparse1(self.sparse0(self.layer(x)))


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


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ZOO)
def test_a_compiled_network_computes_the_same_and_leaves_the_network_alone(name, sparse_wins):
    model, inputs = zoo(name)
    model.train()
    before, given = copy.deepcopy(model.state_dict()), fresh(inputs)
    compiled = compile_sparse(model, inputs if len(inputs) > 1 else inputs[0])
    assert all(torch.equal(one, two) for one, two in zip(inputs, given, strict=True))
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not compiled.training
    with torch.no_grad():
        wanted = model.eval()(*fresh(inputs))
        assert_same(compiled(*fresh(inputs)), wanted)
        if not name.startswith("single"):
            other = tuple(torch.randn(2, *one.shape[1:]) if one.dim() > 1 else one for one in inputs)
            assert_same(compiled(*fresh(other)), model(*fresh(other)))


# Layers whose weights someone else reads, or of other kinds; and torch.fx takes x += y for x = x + y, which shows.
STAYS_DENSE = {"read elsewhere", "one convolution", "in place, changed_other"}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", sorted(ZOO.keys() - STAYS_DENSE))
def test_the_zoo_runs_sparse(name, sparse_wins):
    model, inputs = zoo(name)
    assert chains(compile_sparse(model, inputs))


@pytest.mark.parametrize("name", ["encoder layer", "encoder", "encoder in a row", "branching", "lines"])
def test_layers_are_named_as_in_the_network(name, sparse_wins):
    model, inputs = zoo(name)
    compiled = compile_sparse(model, inputs)
    named = dict(model.named_modules())
    assert {type(named[layer]) for layer in compiled.plan.weights} <= {nn.Linear, nn.Conv1d}
    assert sorted(chain.names for chain in chains(compiled)) == sorted(
        group.layers for group in compiled.plan.sparse_groups
    )
    again = compile_sparse(model, inputs, plan=compiled.plan)
    assert [chain.names for chain in chains(again)] == [chain.names for chain in chains(compiled)]


def test_an_argument_of_none_is_no_argument(sparse_wins):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 8)

        def forward(self, x, mask=None):
            return self.first(x) if mask is None else self.first(x) * mask

    model, x = sparsened(Masked()), torch.randn(5, 6)
    compiled = compile_sparse(model, (x, None))
    assert chains(compiled)
    with torch.no_grad():
        assert_same(compiled(x, None), model(x, None))


def test_what_is_padded_later_is_computed_as_before(sparse_wins):
    model = sparsened(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)).eval()
    x, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[2], [5], [4]])
    compiled = compile_sparse(model, x)
    with torch.no_grad():
        assert_same(compiled(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding))


def test_an_answer_of_nan_or_of_no_numbers_is_compared():
    for answer in (torch.tensor([1.0, torch.nan]), torch.tensor([True]), torch.tensor([3]), 2.0, "word", None, [1.0]):
        assert planner._agrees(lambda answer=answer: answer, answer)
    for one, two in (
        (torch.tensor([1.0, torch.inf]), torch.tensor([2.0, torch.inf])),
        (torch.tensor([torch.inf]), torch.tensor([1.0])),
        (torch.tensor([True]), torch.tensor([False])),
        (1.0, 2.0),
        ([1.0], [1.0, 2.0]),
        ("one", "two"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
    ):
        assert not planner._agrees(lambda one=one: one, two)


def test_both_linear_layers_of_a_transformer_run_sparse(sparse_wins):
    model, inputs = zoo("encoder in a row")
    names = {"0"} | {f"1.layers.{k}.linear{n}" for k in (0, 1) for n in (1, 2)}
    assert {name for chain in chains(compile_sparse(model, inputs)) for name in chain.names} == names


@pytest.mark.parametrize("name", CASES)
def test_networks_of_every_kind_of_layer_stay_right(name, sparse_wins):
    make, inputs = CASES[name]
    model, x = sparsened(make()), inputs()
    compiled = compile_sparse(model, x)
    with torch.no_grad():
        assert_same(compiled(x), model.eval()(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_networks_of_other_types_keep_their_layers(dtype, sparse_wins):
    model = sparsened(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype))
    x = torch.randn(4, 6, dtype=dtype)
    compiled = compile_sparse(model, x)
    assert [type(module) for module in compiled.modules()] == [type(module) for module in model.modules()]
    assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("name", ["functional, view", "blocks", "branching", "several", "tokens", "encoder layer"])
def test_where_nothing_wins_the_network_keeps_its_own_classes(name, dense_wins):
    model, inputs = zoo(name)
    compiled = compile_sparse(model, inputs)
    assert [type(module) for module in compiled.modules()] == [type(module) for module in model.modules()]
    assert not compiled.plan.sparse_groups
    with torch.no_grad():
        assert_same(compiled(*inputs), model.eval()(*inputs))


@pytest.mark.parametrize("name", ["functional, view", "branching"])
def test_where_the_whole_does_not_win_the_network_keeps_its_own_classes(name, monkeypatch):
    model, inputs = zoo(name)
    decide(monkeypatch, 0.1)
    part = planner.race
    monkeypatch.setattr(planner, "race", lambda calls, **more: [1.0, 1.0] if "most" in more else part(calls))
    compiled = compile_sparse(model, inputs)
    assert [type(module) for module in compiled.modules()] == [type(module) for module in model.modules()]
    assert all(len(group.layers) == 1 and group.kernel is None for group in compiled.plan.groups)  # nothing is joined


def test_a_part_that_comes_out_differently_is_not_kept(monkeypatch):
    model, inputs = zoo("branching")
    decide(monkeypatch, 0.1)
    monkeypatch.setattr(planner, "_close", lambda *_: False)
    compiled = compile_sparse(model, inputs)
    assert not chains(compiled)
    assert [type(module) for module in compiled.modules()] == [type(module) for module in model.modules()]


@pytest.mark.parametrize("name", ["functional, view", "blocks", "branching", "several", "tokens", "norm", "one layer"])
def test_a_compiled_network_is_copied_pickled_and_saved(name, sparse_wins):
    model, inputs = zoo(name)
    compiled = compile_sparse(model, inputs)
    assert chains(compiled)
    wanted = compiled(*fresh(inputs))
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(compiled), loaded, copy.deepcopy(loaded)):
        assert chains(other)
        assert_same(other(*fresh(inputs)), wanted)
        assert other.plan == compiled.plan or other.plan.to_json() == compiled.plan.to_json()
    for parameter in loaded.state_dict().values():
        if parameter.is_floating_point():
            parameter.zero_()
    loaded.load_state_dict(compiled.state_dict())
    assert_same(loaded(*fresh(inputs)), wanted)


def test_a_compiled_network_has_tensors_of_its_own(sparse_wins):
    model, inputs = zoo("functional, view")
    compiled = compile_sparse(model, inputs)
    wanted = compiled(*inputs)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert_same(compiled(*inputs), wanted)


def test_the_forward_signature_stays(sparse_wins):
    model, (x, y) = zoo("several")
    compiled = compile_sparse(model, (x, y))
    own, other = inspect.signature(compiled.forward), inspect.signature(model.forward)
    assert list(own.parameters) == list(other.parameters)
    with torch.no_grad():
        assert_same(compiled(x=x, y=y), model(x, y))
        assert_same(compiled(x, y=y, mask=None), model(x, y))
        assert_same(compiled(x, y, 2.0), model(x, y))
    for other in ({"mask": torch.ones(4)}, {"scale": 3.0}):
        with pytest.raises(ValueError, match=f"compiled for {next(iter(other))}="):
            compiled(x, y, **other)


def test_units_that_nobody_reads_are_removed(sparse_wins):
    model = sparsened(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), 0.6)
    with torch.no_grad():
        model[2].weight[:, ::2] = 0  # read by no one
        model[0].weight[1], model[0].bias[1] = 0, 0  # always zero
    x = torch.randn(5, 6)
    compiled = compile_sparse(model, x)
    assert [shape for shape, _ in compiled.plan.weights.values()] == [(3, 6), (3, 3)]
    with torch.no_grad():
        assert_same(compiled(x), model(x))


@pytest.mark.parametrize("flatten", [nn.Flatten(), nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout())])
def test_filters_that_no_linear_layer_reads_are_removed(flatten, sparse_wins):
    pixels = 36 if isinstance(flatten, nn.Flatten) else 9
    model = sparsened(nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), flatten, nn.Linear(5 * pixels, 4)), 0.6).eval()
    with torch.no_grad():
        model[3].weight.view(4, 5, pixels)[:, 1] = 0  # read by no one
        model[0].weight[3], model[0].bias[3] = 0, 0  # always zero
    x = torch.randn(5, 2, 8, 8)
    compiled = compile_sparse(model, x)
    assert [shape for shape, _ in compiled.plan.weights.values()] == [(3, 2, 3, 3), (4, 3 * pixels)]
    with torch.no_grad():
        assert_same(compiled(x), model(x))


@pytest.mark.parametrize("between", [nn.Sigmoid(), nn.Hardtanh(0.5, 2.0), nn.Softmax(1), nn.LayerNorm(9)])
def test_units_that_are_not_zero_behind_their_activation_stay(between, sparse_wins):
    model = sparsened(nn.Sequential(nn.Linear(6, 9), between, nn.Linear(9, 3)), 0.6)
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1] = 0, 0
    x = torch.randn(5, 6)
    compiled = compile_sparse(model, x)
    assert chains(compiled)
    with torch.no_grad():
        assert_same(compiled(x), model.eval()(x))


def test_hooks_are_called_as_before(sparse_wins):
    seen: list[str] = []

    def watch(module: nn.Module, _, output: Tensor) -> None:
        assert isinstance(output, Tensor)
        seen.append(type(module).__name__)

    model = sparsened(
        nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 3)))
    )
    for module in (model[0], model[1]):
        module.register_forward_hook(watch)
    x = torch.randn(4, 6)
    compiled = compile_sparse(model, x)
    for network in (model, compiled):
        seen.clear()
        network(x)
        assert seen == ["Sequential", "Linear"]
    assert chains(compiled)


def test_the_hook_of_a_part_whose_answer_nobody_uses_is_called(sparse_wins):
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.aside = nn.Linear(6, 8), nn.Linear(6, 2)

        def forward(self, x):
            self.aside(x)
            return self.first(x)

    model, seen = sparsened(Watched()), []
    model.aside.register_forward_hook(lambda *_: seen.append("aside"))
    compiled = compile_sparse(model, torch.randn(5, 6))
    assert chains(compiled)
    seen.clear()
    with torch.no_grad():
        compiled(torch.randn(5, 6))
    assert seen == ["aside"]


def test_a_hook_on_the_network_itself_is_called_as_before(sparse_wins):
    seen = []
    model = sparsened(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    model.register_forward_pre_hook(lambda *_: seen.append(1))
    compiled = compile_sparse(model, torch.randn(4, 6))
    seen.clear()
    compiled(torch.randn(4, 6))
    assert seen == [1]


def test_a_state_that_the_network_changes_stays_the_callers(sparse_wins):
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return self.layer(x) + self.calls

    model, x = sparsened(Counting()), torch.randn(2, 6)
    compiled = compile_sparse(model, x)
    assert model.calls == 0
    assert chains(compiled)
    for calls in (1, 2):  # and the compiled network begins with the same
        with torch.no_grad():
            assert_same(compiled(x), model.layer(x) + calls)


class Stateful(nn.Module):
    """Remembers something from call to call."""

    def __init__(self, step) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(6, 3), step
        self.register_buffer("last", None)
        self.register_buffer("sum", torch.zeros(2, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.randn(9, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, self.layer(x))


def _since_the_first_call(net: Stateful, y: Tensor) -> Tensor:
    net.last = y if net.last is None else net.last + y
    return net.last


def _limited_number_of_calls(net: Stateful, y: Tensor) -> Tensor:
    net.calls.add_(1)
    return y + net.table[net.calls]  # which ends at the ninth


def _its_own_buffer(net: Stateful, y: Tensor) -> Tensor:
    return net.sum.mul_(0.5).add_(y)


@pytest.mark.parametrize("step", [_since_the_first_call, _limited_number_of_calls, _its_own_buffer])
def test_what_a_network_remembers_begins_anew_in_the_compiled_one(step, sparse_wins):
    model, x = sparsened(Stateful(step)), torch.randn(2, 6)
    compiled = compile_sparse(model, x)
    assert chains(compiled)
    with torch.no_grad():
        for _ in range(3):
            assert_same(compiled(x), model(x))


def test_a_buffer_that_repeats_itself_is_left_alone(sparse_wins):
    class Repeating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("more", torch.zeros(1).expand(3))  # three numbers in one place, which none can write

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.more

    assert chains(compile_sparse(sparsened(Repeating()), torch.randn(2, 6)))


def test_a_state_that_a_network_of_its_own_layers_has_is_that_of_the_network(dense_wins):
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return self.layer(x) if self.calls > 0 else x

    compiled = compile_sparse(sparsened(Averaging()), torch.randn(2, 6))
    assert compiled.calls == 0


def test_an_example_that_the_network_changes_stays_the_callers(sparse_wins):
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.add_(1))

    model, x = sparsened(Adding()), torch.randn(2, 6)
    given = x.clone()
    compiled = compile_sparse(model, x)
    assert torch.equal(x, given)
    assert chains(compiled)
    assert_same(compiled(x.clone()), model(x.clone()).detach())


def test_a_network_that_changes_its_input_is_timed_on_the_example(sparse_wins):
    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(11, 6), nn.Linear(6, 3)

        def forward(self, numbers: Tensor) -> Tensor:
            return self.layer(self.table(numbers.add_(1)))  # the second time out of the table

    model, numbers = sparsened(Next()), torch.arange(10)
    compiled = compile_sparse(model, numbers)
    assert chains(compiled)
    with torch.no_grad():
        assert_same(compiled(numbers.clone()), model(numbers.clone()))


@pytest.mark.parametrize("shape", [(4, 8, 16), (4, 1, 16)])
def test_flattening_other_dimensions_is_not_taken_for_making_vectors(shape, sparse_wins):
    class Merging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(end_dim=1))

    model = sparsened(Merging())
    compiled = compile_sparse(model, torch.randn(shape))
    assert chains(compiled)
    for x in (torch.randn(shape), torch.randn(2, 3, 16)):
        with torch.no_grad():
            assert_same(compiled(x), model(x))


@pytest.mark.parametrize(
    "view", [lambda x: x.view(-1, 20), lambda x: x.reshape((-1, 20)), lambda x: torch.reshape(x, shape=(-1, 20))]
)
def test_a_view_of_so_many_features_takes_what_it_took(view, sparse_wins):
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(view(x))

    model = sparsened(Viewing())
    compiled = compile_sparse(model, torch.randn(6, 4, 5))
    assert chains(compiled)
    for shape in ((6, 4, 5), (4, 5), (20,), (3, 2, 4, 5), (3, 40)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert_same(compiled(x), model(x))
    with pytest.raises(ValueError, match="takes 20 features, got an input of shape"):
        compiled(torch.randn(3, 7))


class ViewingWithResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x.view(-1, 20)) + y


class ViewingInTheMiddle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).view(-1, 20))


def test_something_can_be_added_to_a_view_of_so_many_features(sparse_wins):
    model, x, y = sparsened(ViewingWithResidual()), torch.randn(6, 4, 5), torch.randn(6, 3)
    compiled = compile_sparse(model, (x, y))
    assert chains(compiled)
    with torch.no_grad():
        for given in ((x, y), (x, y), (x[:1], y), (x[0], y[:1])):
            assert_same(compiled(*given), model(*given))


def test_a_view_between_joined_layers_makes_one_dimension_of_samples(sparse_wins):
    model = sparsened(ViewingInTheMiddle())
    compiled = compile_sparse(model, torch.randn(4, 6))
    assert [len(chain.names) for chain in chains(compiled)] == [2]
    for shape in ((4, 6), (2, 3, 6), (6,)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert_same(compiled(x), model(x))


def test_a_single_image_keeps_its_filters(sparse_wins):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    with torch.no_grad():
        sparsened(model)[0].weight[1], model[0].bias[1] = 0, 0
    x = torch.randn(2, 8, 8)  # whose channels become vectors, of as many pixels as 4 filters could have
    compiled = compile_sparse(model, x)
    with torch.no_grad():
        assert_same(compiled(x), model(x))


def test_an_attribute_called_plan_is_refused_however_it_is_made():
    class Planned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.plan = nn.Linear(6, 3), (16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    with pytest.raises(ValueError, match='a part called "plan"'):
        compile_sparse(Planned(), torch.randn(2, 6))
    again = compile_sparse(nn.Sequential(nn.Linear(6, 3)), torch.randn(2, 6))  # stays dense, and has a plan of ours
    compile_sparse(again, torch.randn(2, 6))


def test_a_network_that_asks_what_its_layers_are_keeps_them(sparse_wins):
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.layer, nn.Linear)
            return self.layer(x) if x.sum() < 1e9 else x

    assert not chains(compile_sparse(sparsened(Asking()), torch.randn(2, 6)))


def test_a_residual_that_wants_a_gradient_is_refused(sparse_wins):
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.layer(x) + y

    x, y = torch.randn(2, 6), torch.randn(2, 3)
    compiled = compile_sparse(sparsened(Adding()), (x, y))
    assert chains(compiled)
    for _ in range(2):  # also once the shape is known
        with pytest.raises(RuntimeError, match="no gradients"):
            compiled(x, y.clone().requires_grad_())
        compiled(x, y)


def test_denormals_are_gone_wherever_weights_stay_dense(sparse_wins):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.layer = nn.LSTM(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            y, _ = self.memory(x)
            return self.layer(y) if y.sum() < 1e9 else y

    model, x = sparsened(Recurrent()), torch.randn(4, 2, 6)
    with torch.no_grad():
        model.memory.weight_ih_l0[0, 0] = 1e-40
    compiled = compile_sparse(model, x)
    assert chains(compiled)
    assert compiled.memory.weight_ih_l0[0, 0] == 0 != model.memory.weight_ih_l0[0, 0]
    with torch.no_grad():
        assert_same(compiled(x), model(x))


def test_threads_that_compile_at_once_wait_for_each_other(sparse_wins):
    model, x = sparsened(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))), torch.randn(2, 6)
    call, failures = nn.Module.__call__, []

    def compile_often() -> None:
        try:
            for _ in range(3):
                assert chains(pickle.loads(pickle.dumps(copy.deepcopy(compile_sparse(model, x)))))
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=compile_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert nn.Module.__call__ is call  # what torch.fx puts there while it traces is gone
    model(x)


def test_siblings_are_refused():
    sibling = secateur.build_sibling(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    with pytest.raises(ValueError, match=r'the weights of "0" are read through a function: make them plain first'):
        compile_sparse(sibling, torch.randn(2, 6))


@pytest.mark.parametrize("name", FLATTENS)
def test_a_network_is_one_run_of_layers_however_its_images_are_flattened(name):
    graph = trace(sparsened(Functional(FLATTENS[name])).eval())
    note_shapes(graph, (torch.randn(IMAGES),))
    simplify(graph)
    note_shapes(graph, (torch.randn(IMAGES),))
    assert [len(run) for run in runs(units(graph))] == [4]


def test_a_compiled_network_is_not_compiled_again(sparse_wins):
    x = torch.randn(2, 6)
    compiled = compile_sparse(sparsened(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))), x)
    with pytest.raises(ValueError, match="compiled already: compile the plain one"):
        compile_sparse(compiled, x)


def test_a_part_that_has_the_name_of_the_plan_is_refused():
    model = nn.ModuleDict({"plan": nn.Linear(6, 5)})
    with pytest.raises(ValueError, match='a part called "plan"'):
        compile_sparse(model, torch.randn(2, 6))


def test_weights_that_torch_prunes_on_the_fly_are_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    prune.l1_unstructured(model[2], "weight", 0.5)
    with pytest.raises(ValueError, match=r'the weights of "2" are read .*torch\.nn\.utils\.prune\.remove'):
        compile_sparse(model, torch.randn(2, 6))


def test_denormal_weights_of_dense_layers_are_flushed(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), sparsened(nn.Linear(8, 8)))
    model[0].weight.data[0] = 1e-40
    decide(monkeypatch, 0.1)
    compiled = compile_sparse(model, torch.randn(2, 6))
    assert chains(compiled)
    assert model[0].weight[0].eq(1e-40).all()
    for value in compiled.state_dict().values():
        if value.is_floating_point():
            assert not ((value != 0) & (value.abs() < torch.finfo(torch.float32).tiny)).any()


@pytest.mark.parametrize("name", ["functional, view", "branching", "tokens"])
def test_many_python_threads_may_call_one_network(name, sparse_wins):
    model, (x,) = zoo(name)
    compiled = compile_sparse(model, x)
    inputs = [torch.randn(1 + number % 4, *x.shape[1:]) for number in range(16)]
    found: list[Tensor | None] = [None] * len(inputs)

    def work(number: int) -> None:
        for _ in range(4):
            found[number] = compiled(inputs[number])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with torch.no_grad():
        for one, given in zip(found, inputs, strict=True):
            assert_same(one, model.eval()(given))


def test_no_call_loses_because_of_the_one_it_follows(monkeypatch):
    # What comes after another call finds nothing in the cache and takes two seconds; after itself it takes one.
    now, before = [0.0], [None]

    def call(name):
        def run():
            now[0] += 1 if before[0] == name else 2
            before[0] = name

        return run

    monkeypatch.setattr(planner.time, "perf_counter", lambda: now[0])
    assert planner.race([call(name) for name in "abc"], budget_ms=1e6, most=6) == [1e3, 1e3, 1e3]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_part_that_is_replaced_is_the_one_that_runs(by_name, sparse_wins):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4))
    compiled, x = compile_sparse(sparsened(model), torch.randn(2, 6)), torch.randn(2, 6)
    other = copy.deepcopy(compiled)
    other.sparse0.bias0.add_(1)
    if by_name:
        compiled.set_submodule("sparse0", other.sparse0)
    else:
        compiled.sparse0 = other.sparse0
    torch.testing.assert_close(compiled(x), model(x).detach() + 1)
    assert compiled.get_submodule("sparse0") is compiled.sparse0 is other.sparse0
    assert [name for name, _ in compiled.named_modules()] == ["", "sparse0"]
