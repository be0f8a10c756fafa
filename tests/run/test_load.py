"""From a file to a sparse network, without dense weights on the way."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import fx, nn
from torch.testing import assert_close

import secateur
from secateur import networks
from secateur.encode import Architecture, Archive
from secateur.functions.inputs import RoundedInputs, SignInputs, attach_inputs
from secateur.graph.simplify import fold
from secateur.graph.trace import note_shapes
from secateur.run import Group, Kernel, SparseChain, compile_sparse, load, load_sparse, timing
from secateur.run.fusion import fused_layers
from secateur.run.sparse_weight import SparseWeight


def pruned(name, density, seed=0):
    model = networks.build(name, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.weight *= torch.rand(module.weight.shape, generator=generator) < density
                module.weight += 0.0  # no negative zeros
                module.bias.uniform_(-1, 1, generator=generator)
    return model.eval()


@pytest.fixture
def images():
    return torch.randn(70, 1, 28, 28, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["lenet-300-100", "lenet-5"])
@pytest.mark.parametrize("batch", [1, 7, 8, 64])
@pytest.mark.parametrize("codec", ["huffman", "rans", "context"])
def test_a_file_answers_as_its_dense_network_does(tmp_path, images, name, batch, codec):
    model = pruned(name, 0.1)
    secateur.save(model, tmp_path / "model.cut", codec=codec)
    network = load_sparse(tmp_path / "model.cut", batch=batch)
    with torch.no_grad():
        for size in (1, batch, 70):
            assert_close(network(images[:size]), model(images[:size]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("room", "panels"), [(16 << 20, True), (1 << 20, False)])
def test_images_that_are_too_large_do_not_stand_side_by_side(tmp_path, images, monkeypatch, room, panels):
    model = pruned("lenet-5", 0.1)
    secateur.save(model, tmp_path / "model.cut")
    monkeypatch.setattr(load, "_PANEL_BYTES", room)  # as LeNet-5's are to the default, VGG-16's are to this
    network = load_sparse(tmp_path / "model.cut", batch=64)
    assert {group.kernel.vectors > 0 for group in network.plan.groups} == {panels}
    with torch.no_grad():
        assert_close(network(images), model(images), rtol=1e-4, atol=1e-4)


def test_threads_may_load_at_once(tmp_path, images):
    model = pruned("lenet-300-100", 0.1)
    secateur.save(model, tmp_path / "model.cut")
    with ThreadPoolExecutor(4) as pool:
        networks = [*pool.map(lambda _: load_sparse(tmp_path / "model.cut"), range(12))]
    with torch.no_grad():
        wanted = model(images)
        for network in networks:
            assert_close(network(images), wanted, rtol=1e-4, atol=1e-4)


def test_no_sparse_layer_is_ever_dense(tmp_path, monkeypatch):
    secateur.save(pruned("lenet-5", 0.1), tmp_path / "model.cut")
    read = []
    dense = Archive.read
    monkeypatch.setattr(Archive, "read", lambda self, record: (read.append(record.name), dense(self, record))[1])
    network = load_sparse(tmp_path / "model.cut")
    assert read == ["conv1.bias", "conv2.bias", "fc3.bias", "fc4.bias"]
    assert [group.layers for group in network.plan.groups] == [("conv1", "conv2", "fc3", "fc4")]
    assert sum(parameter.numel() for parameter in network.parameters()) == 0


def normed():
    """Layers with norms after them that have seen some batches."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, padding=1),
        nn.BatchNorm2d(4, affine=False),
        nn.Flatten(),
        nn.Linear(4 * 36, 10),
        nn.BatchNorm1d(10),
    )
    with torch.no_grad():
        for norm in (model[1], model[4], model[7]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            if norm.affine:
                norm.weight.uniform_(-2, 2)
                norm.bias.normal_()
        for layer in (model[0], model[3], model[6]):
            layer.weight[torch.rand_like(layer.weight) > 0.3] = 0
    return model.eval()


@pytest.mark.parametrize("endless", [False, True])
def test_norms_are_folded_into_weights_that_are_not_in_the_graph(endless):
    model, x = normed(), torch.randn(5, 3, 8, 8)
    if endless:
        model[4].running_var.fill_(torch.inf)
        model[4].running_mean.fill_(torch.inf)
    graph = fx.symbolic_trace(model)
    note_shapes(graph, (x,))
    expected = model(x)
    names = ("0", "3", "6")
    weights = {name: SparseWeight.of(graph.get_submodule(name).weight) for name in names}
    for name in names:
        graph.get_submodule(name).weight = nn.Parameter(torch.empty(0, device="meta"))
    fold(graph, partial(load._fold_norm, weights))
    norms = [node.target for node in graph.graph.nodes if node.target in ("1", "4", "7")]
    assert norms == (["4"] if endless else [])
    if not endless:
        y = x
        for unit in fused_layers(graph, weights):
            y = unit.layer.twin(y.flatten(1) if unit.flattens else y)
        assert_close(y, expected, rtol=1e-4, atol=1e-4)


def test_layers_that_are_not_sparse_stay_dense(tmp_path, images):
    model = pruned("lenet-300-100", 0.1)
    with torch.no_grad():
        model.fc2.weight.normal_()
    secateur.save(model, tmp_path / "model.cut")
    network = load_sparse(tmp_path / "model.cut")
    assert [group.layers for group in network.plan.groups] == [("fc1",), ("fc3",)]
    with torch.no_grad():
        assert_close(network(images), model(images), rtol=1e-4, atol=1e-4)


def test_a_dense_file_gives_the_dense_network(tmp_path, images):
    model = pruned("lenet-300-100", 1.0)
    secateur.save(model, tmp_path / "model.cut")
    network = load_sparse(tmp_path / "model.cut")
    assert not any(isinstance(module, SparseChain) for module in network.modules())
    with torch.no_grad():
        assert_close(network(images), model(images))


def test_a_network_whose_layers_round_what_they_read_answers_as_it_did(tmp_path, images):
    model = pruned("lenet-300-100", 0.05).train()
    attach_inputs(model.fc2, RoundedInputs(3))
    attach_inputs(model.fc3, SignInputs(100, scaled=True))
    model(images)  # in training: it fits steps, means and variances
    secateur.save(model, tmp_path / "model.cut", codec="raw", sort_units=True)
    assert_close(load_sparse(tmp_path / "model.cut")(images), model.eval()(images))
    assert_close(compile_sparse(model, images)(images), model(images))


def test_half_precision_runs_in_single(tmp_path, images):
    model = pruned("lenet-300-100", 0.1).half()
    secateur.save(model, tmp_path / "model.cut")
    with torch.no_grad():
        assert_close(load_sparse(tmp_path / "model.cut")(images), model.float()(images), rtol=1e-4, atol=1e-4)


def test_negative_zeros_are_zeros(tmp_path):
    model = pruned("lenet-300-100", 0.1)
    with torch.no_grad():
        model.fc1.weight[0, :5] = -0.0
    secateur.save(model, tmp_path / "model.cut")
    network = load_sparse(tmp_path / "model.cut")
    assert network.plan.weights["fc1"][1] == model.fc1.weight.count_nonzero()


def test_a_batch_below_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch must be ≥ 1, got 0"):
        load_sparse(tmp_path / "model.cut", batch=0)


def test_a_network_that_is_not_ours_is_refused(tmp_path):
    secateur.save(nn.Linear(3, 2), tmp_path / "model.cut")
    with pytest.raises(ValueError, match="does not say which network it holds"):
        load_sparse(tmp_path / "model.cut")
    secateur.save(nn.Linear(3, 2), tmp_path / "model.cut", architecture=("torch.nn:Linear", {}))
    with pytest.raises(ValueError, match=r"names torch\.nn:Linear, .* nothing was imported"):
        load_sparse(tmp_path / "model.cut")


@pytest.mark.parametrize("wrong", ["shape", "missing", "more"])
def test_a_file_that_holds_another_network_than_it_says_is_refused(tmp_path, wrong):
    state = pruned("lenet-300-100", 0.1).state_dict()
    if wrong == "shape":
        state["fc1.weight"] = torch.zeros(300, 783)
    elif wrong == "missing":
        del state["fc3.bias"]
    else:
        state["fc4.bias"] = torch.zeros(3)
    content = secateur.encode.to_bytes(state, architecture=Architecture("lenet-300-100"))
    (tmp_path / "model.cut").write_bytes(content)
    with pytest.raises(ValueError, match=r"fc1\.weight|fc3\.bias|fc4\.bias"):
        load_sparse(tmp_path / "model.cut")


def test_the_result_can_be_copied(tmp_path, images):
    secateur.save(pruned("lenet-5", 0.1), tmp_path / "model.cut")
    network = load_sparse(tmp_path / "model.cut")
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(network)(images), network(images))


def test_a_plan_in_the_file_is_followed(tmp_path, images, monkeypatch):
    model = pruned("lenet-300-100", 0.1)
    monkeypatch.setattr(timing, "race", lambda calls, **_: [9.0, *[1.0] * (len(calls) - 1)])
    plan = compile_sparse(model, images).plan
    secateur.save(model, tmp_path / "model.cut", metadata={"plan": plan.to_json()})
    monkeypatch.setattr(timing, "race", lambda *_, **__: pytest.fail("nothing is to be timed"))
    network = compile_sparse(tmp_path / "model.cut", images)
    assert network.plan.to_json() == plan.to_json()
    assert any(isinstance(module, SparseChain) for module in network.modules())
    with torch.no_grad():
        assert_close(network(images), model(images), rtol=1e-4, atol=1e-4)


def saved_with_plan(path, model, change, images, monkeypatch):
    """Save a network whose layers all win, with the plan that `change` makes of theirs."""
    monkeypatch.setattr(timing, "race", lambda calls, **_: [9.0, *[1.0] * (len(calls) - 1)])
    plan = change(compile_sparse(model, images).plan)
    secateur.save(model, path, metadata={"plan": plan.to_json()})
    return plan


def test_a_plan_in_the_file_is_followed_without_dense_weights(tmp_path, images, monkeypatch):
    model = pruned("lenet-300-100", 0.1)

    def apart(plan):  # where load_sparse would join all layers
        kernels = {"fc1": Kernel(4, 2), "fc2": None, "fc3": Kernel(1, 1, True)}
        return replace(plan, groups=tuple(Group((name,), kernel, 2.0, 1.0) for name, kernel in kernels.items()))

    plan = saved_with_plan(tmp_path / "model.cut", model, apart, images, monkeypatch)
    assert plan.weights["fc2"][0][0] < 100  # units that no layer reads are removed before planning
    network = load_sparse(tmp_path / "model.cut", batch=64)
    assert [(group.layers, group.kernel) for group in network.plan.groups] == [
        (("fc1",), Kernel(4, 2)),
        (("fc3",), Kernel(1, 1, True)),
    ]
    assert [name for name, _ in network.named_parameters()] == ["fc2.weight", "fc2.bias"]
    with torch.no_grad():
        assert_close(network(images), model(images), rtol=1e-4, atol=1e-4)


def larger(plan):
    shape, count = plan.weights["fc1"]
    return replace(plan, weights={**plan.weights, "fc1": (shape, count + 1)})


def of_another(plan):
    groups = tuple(replace(group, layers=tuple(f"layer.{name}" for name in group.layers)) for group in plan.groups)
    return replace(plan, groups=groups, weights={f"layer.{name}": one for name, one in plan.weights.items()})


def crossed(plan):
    return replace(plan, groups=(Group(("fc1", "fc3"), Kernel(), 2.0, 1.0), Group(("fc2",), None, 2.0, 1.0)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (larger, r'model\.cut: the plan was made for another network: "fc1" has .* weights of shape'),
        (of_another, r'model\.cut: the plan was made for another network: "layer\.fc1" .* no weights in the network'),
        (crossed, r"model\.cut: the plan joins fc1, fc3, which do not follow each other"),
    ],
)
def test_a_plan_in_the_file_that_is_of_another_network_is_refused(tmp_path, images, monkeypatch, change, message):
    saved_with_plan(tmp_path / "model.cut", pruned("lenet-300-100", 0.1), change, images, monkeypatch)
    with pytest.raises(ValueError, match=message):
        load_sparse(tmp_path / "model.cut")


@pytest.mark.parametrize("read", [load_sparse, lambda path: compile_sparse(path, torch.randn(2, 1, 28, 28))])
def test_a_damaged_plan_in_the_file_is_refused(tmp_path, read):
    secateur.save(pruned("lenet-300-100", 0.1), tmp_path / "model.cut", metadata={"plan": "{"})
    with pytest.raises(ValueError, match=r"model\.cut: the plan is damaged"):
        read(tmp_path / "model.cut")


def test_the_limit_of_memory_is_respected(tmp_path):
    secateur.save(pruned("lenet-300-100", 0.1), tmp_path / "model.cut")
    with pytest.raises(secateur.FormatError):
        load_sparse(tmp_path / "model.cut", max_bytes=1000)
