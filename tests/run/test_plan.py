"""A plan is followed without timing, survives its text, and is refused whenever it is not what it should be."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from secateur.run import Group, Kernel, Plan, SparseChain, compile_sparse, timing

names = st.text(min_size=1, max_size=6)
times = st.one_of(st.just(math.nan), st.floats(0, 1e6))
made_kernels = st.builds(Kernel, st.sampled_from([0, 1, 2, 4, 8]), st.integers(1, 1 << 20), st.booleans())


@st.composite
def plans(draw) -> Plan:
    layers = draw(st.lists(names, unique=True, max_size=6))
    groups = []
    while layers:
        size = draw(st.integers(1, len(layers)))
        kernel = draw(st.none() | made_kernels)
        groups.append(Group(tuple(layers[:size]), kernel, draw(times), draw(times)))
        layers = layers[size:]
    weights = {
        name: (tuple(draw(st.lists(st.integers(0, 9), max_size=4))), draw(st.integers(0, 99)))
        for group in groups
        for name in group.layers
    }
    return Plan(tuple(groups), weights, 3, 2, 16, draw(times), draw(times))


@given(plan=plans())
def test_a_plan_survives_its_text(plan):
    back = Plan.from_json(plan.to_json())
    assert repr(back) == repr(plan)  # NaN is not equal to itself, but reads the same
    assert json.loads(plan.to_json(), parse_constant=pytest.fail)


def test_a_layer_called_nan_keeps_its_name():
    plan = Plan((Group(("NaN",), None, math.nan, 1.0),), {"NaN": ((2, 2), 1)})
    assert Plan.from_json(plan.to_json()).groups[0].layers == ("NaN",)


GOOD = Plan((Group(("a", "b"), Kernel(2), 1.0, 0.5),), {"a": ((2, 3), 4), "b": ((1, 2), 1)})


def test_a_plan_from_before_there_were_aligned_kernels_is_read():
    text = GOOD.to_json().replace(',"aligned":false', "")
    assert "aligned" not in text
    assert Plan.from_json(text) == GOOD


@settings(max_examples=200)
@given(data=st.data())
def test_no_text_is_taken_for_a_plan_that_is_none(data):
    text = GOOD.to_json()
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 12)))
    spoilt = text[:first] + data.draw(st.text('0123456789-.eE{}[],:"abnulInfty\\', max_size=8)) + text[last:]
    refused = None
    try:
        plan = Plan.from_json(spoilt)
    except ValueError as error:
        refused = str(error)
    assert (
        refused.startswith("the plan is damaged (") if refused else repr(Plan.from_json(plan.to_json())) == repr(plan)
    )


def edited(**changes: object) -> str:
    return json.dumps({**json.loads(GOOD.to_json()), **changes})


def edited_group(**changes: object) -> str:
    return edited(groups=[{**json.loads(GOOD.to_json())["groups"][0], **changes}])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "3",
        '"plan"',
        "[" * 100_000,
        GOOD.to_json()[:-1],
        edited(version=2),
        edited(version=None),
        edited(batch=-1),
        edited(batch=1.5),
        edited(batch=True),
        edited(batch=10**400),
        edited(dense_ms=-1),
        edited(dense_ms=10**400),
        edited(dense_ms="1"),
        edited(more=1),
        edited(groups={}),
        edited(groups=None),
        edited(groups=["a"]),
        edited(weights=[]),
        edited(weights={"a": [[2, 3], 4]}),
        edited(weights={"a": [[2, 3]], "b": [[1, 2], 1]}),
        edited(weights={"a": ["23", 4], "b": [[1, 2], 1]}),
        edited(weights={"a": [[2, -3], 4], "b": [[1, 2], 1]}),
        edited_group(layers=[]),
        edited_group(layers=["a", "a"]),
        edited_group(layers=["a", 1]),
        edited_group(layers="ab", more=[]),
        edited_group(kernel=3),
        edited_group(kernel=[]),
        edited_group(kernel={}),
        edited_group(kernel={"vectors": 3, "spread": 1, "shared": False}),
        edited_group(kernel={"vectors": 1 << 40, "spread": 1, "shared": False}),
        edited_group(kernel={"vectors": 0, "spread": 0, "shared": False}),
        edited_group(kernel={"vectors": 0, "spread": 1, "shared": 1}),
        edited_group(kernel={"vectors": 0, "spread": 1, "shared": False, "aligned": None}),
        edited_group(kernel={"vectors": 0.0, "spread": 1, "shared": False}),
        edited_group(kernel={"vectors": 0, "spread": 1, "shared": False, "more": 1}),
    ],
)
def test_a_damaged_plan_is_refused_with_one_sentence(text, tmp_path):
    with pytest.raises(ValueError, match=r"^the plan is damaged \(.*\): make a new one with compile_sparse$"):
        Plan.from_json(text)
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"plan\.json: the plan is damaged"):
        Plan.load(path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a plan"):
        Plan.load(path)


# ---- plans and networks ----


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    for layer in (made[0], made[2], made[4]):
        layer.weight.data *= torch.rand(layer.weight.shape) < 0.5
    return made


@pytest.fixture
def planned(monkeypatch) -> tuple[nn.Sequential, nn.Module]:
    """A network that was compiled without timing; timing anything from here on fails the test."""
    monkeypatch.setattr(timing, "race", lambda calls, **_: [1.0, *[0.1] * (len(calls) - 1)])
    model = network()
    compiled = compile_sparse(model, torch.randn(4, 6))
    monkeypatch.setattr(timing, "race", lambda *_, **__: pytest.fail("something was timed"))
    return model, compiled


def test_a_plan_is_followed_without_timing(planned, tmp_path):
    model, compiled = planned
    path = tmp_path / "plan.json"
    compiled.plan.save(path)
    x = torch.randn(4, 6)
    for plan in (compiled.plan, path, str(path)):
        again = compile_sparse(model, x, plan=plan)
        assert [str(module) for module in again.modules()] == [str(module) for module in compiled.modules()]
        assert torch.equal(again(x), compiled(x))
        assert again.plan.groups == compiled.plan.groups


def test_a_plan_to_stay_dense_is_followed(planned):
    model, compiled = planned
    dense = replace(compiled.plan, groups=tuple(replace(group, kernel=None) for group in compiled.plan.groups))
    assert type(compile_sparse(model, torch.randn(4, 6), plan=dense)) is nn.Sequential


def test_plans_of_other_networks_are_refused(planned):
    model, compiled = planned
    x, plan = torch.randn(4, 6), compiled.plan
    pruned = network()
    pruned[0].weight.data[0] = 0
    for other in (pruned, nn.Sequential(*network(), nn.Linear(3, 3)), network()[:3], nn.Sequential(nn.ReLU())):
        with pytest.raises(ValueError, match=r"the plan (was made for another network|joins)"):
            compile_sparse(other, x, plan=plan)
    foreign = Plan((Group(("x",), Kernel(), 1.0, 0.1),), {"x": ((8, 6), 24)})
    with pytest.raises(ValueError, match="another network"):
        compile_sparse(model, x, plan=foreign)


def test_a_plan_that_joins_what_does_not_follow_is_refused(planned):
    model, compiled = planned
    plan = compiled.plan
    for layers in (("0", "2", "4"), ("2", "0"), ("2", "4")):
        rest = [Group((name,), None, 1.0, 1.0) for name in plan.weights if name not in layers]
        hostile = replace(plan, groups=(Group(layers, Kernel(), 1.0, 0.1), *rest))
        with pytest.raises(ValueError, match=f"the plan joins {layers[0]}"):
            compile_sparse(model, torch.randn(4, 6), plan=hostile)


def test_a_plan_may_run_a_residual_in_panels(monkeypatch):
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return torch.relu(x + self.layer(x))

    monkeypatch.setattr(timing, "race", lambda calls, **_: [1.0, *[0.1 + 1 / k for k in range(2, len(calls) + 1)]])
    model, x = Adding(), torch.randn(4, 6)
    model.layer.weight.data[::2] = 0
    compiled = compile_sparse(model, x)
    assert [group.kernel.vectors for group in compiled.plan.groups] == [1]
    assert [node.op for node in compiled.graph.nodes] == ["placeholder", "get_attr", "call_method", "output"]
    with torch.no_grad():
        for network in (compiled, compile_sparse(model, x, plan=compiled.plan)):
            torch.testing.assert_close(network(x), model(x))


def test_a_plan_says_what_runs_how(planned):
    _, compiled = planned
    plan = compiled.plan
    assert plan.batch == 4
    assert set(plan.weights) == {name for group in plan.groups for name in group.layers}
    assert len(plan.sparse_groups) == sum(isinstance(module, SparseChain) for module in compiled.modules())
