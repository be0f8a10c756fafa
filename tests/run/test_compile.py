"""A compiled network computes what the network computes, whatever it is made of, and leaves it alone.

Timing decides what runs sparse, so that every test here decides in its place.
"""

import copy
import inspect
import io

import pytest
import torch
from compiled import assert_same, chains, decide, sparsened
from foreign_layers import Config, Configured
from torch import Tensor, nn
from torch.nn.utils import prune
from toy_networks import CASES
from zoo import ZOO, fresh, zoo

import secateur
from secateur.run import answers, compile_sparse, timing

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


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


STAYS_DENSE = {"in place, changed_other"}  # torch.fx takes x += y for x = x + y, which shows


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", sorted(ZOO.keys() - STAYS_DENSE))
def test_the_zoo_runs_sparse(name, sparse_wins):
    model, inputs = zoo(name)
    assert chains(compile_sparse(model, inputs))


@pytest.mark.parametrize("name", ["encoder layer", "encoder", "encoder in a row", "branching", "lines"])
def test_layers_are_named_as_in_the_network(name, sparse_wins):
    model, inputs = zoo(name)
    compiled = compile_sparse(model, inputs)
    named = {name.removesuffix("_weight").removesuffix(".weight") for name, _ in model.named_parameters()}
    assert compiled.plan.weights.keys() <= named
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
        assert answers.agrees(lambda answer=answer: answer, answer)
    for one, two in (
        (torch.tensor([1.0, torch.inf]), torch.tensor([2.0, torch.inf])),
        (torch.tensor([torch.inf]), torch.tensor([1.0])),
        (torch.tensor([True]), torch.tensor([False])),
        (1.0, 2.0),
        ([1.0], [1.0, 2.0]),
        ("one", "two"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
    ):
        assert not answers.agrees(lambda one=one: one, two)


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
    part = timing.race
    monkeypatch.setattr(timing, "race", lambda calls, **more: [1.0, 1.0] if "most" in more else part(calls))
    compiled = compile_sparse(model, inputs)
    assert [type(module) for module in compiled.modules()] == [type(module) for module in model.modules()]
    assert all(len(group.layers) == 1 and group.kernel is None for group in compiled.plan.groups)  # nothing is joined


def test_a_part_that_comes_out_differently_is_not_kept(monkeypatch):
    model, inputs = zoo("branching")
    decide(monkeypatch, 0.1)
    monkeypatch.setattr(answers, "_close", lambda *_: False)
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


def test_siblings_are_refused():
    sibling = secateur.build_sibling(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    with pytest.raises(ValueError, match=r'the weights of "0" are read through a function: make them plain first'):
        compile_sparse(sibling, torch.randn(2, 6))


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


@pytest.mark.parametrize("keywords", [{}, {"mask": torch.rand(9, 2)}, {"scale": 2.0}, {"scale": torch.tensor(3.0)}])
def test_an_example_may_be_given_by_name(keywords, sparse_wins):
    model, example = sparsened(Configured(Config())), {"ids": torch.randn(9, 4), **keywords}
    compiled = compile_sparse(model, example)
    assert chains(compiled)
    with torch.no_grad():
        assert_same(compiled(**example), model.eval()(**example))


def test_an_example_with_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"Configured cannot be called with the example: .*inputs"):
        compile_sparse(Configured(Config()), {"ids": torch.randn(2, 4), "inputs": torch.randn(2, 4)})
