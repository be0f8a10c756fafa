"""The benchmark's arithmetic in closed form, its clock at layers, and one whole benchmark on a clock that we turn."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur import networks
from secateur.measure import count_flops
from secateur.run import Group, Kernel, Plan
from secateur.run.bench import BatchSpeed, Bench, GroupSpeed, LayerSpeed, bench, benchmark
from secateur.run.bench.chains import chains_of, multiplications
from secateur.run.bench.layer_clock import LayerClock
from secateur.run.bench.roofline import Limit, Machine, machine, measure_machine
from secateur.run.compile import compile_sparse
from secateur.run.kernels import bindings

HERE = Machine(1, ((1 << 20, 50.0), (1 << 28, 10.0)), 100.0)


# ---- limits ----


@pytest.mark.parametrize(
    ("working_set", "gbs"), [(0, 50.0), (1 << 20, 50.0), ((1 << 20) + 1, 10.0), (1 << 28, 10.0), (1 << 40, 10.0)]
)
def test_what_a_cache_holds_is_read_at_the_speed_of_that_cache(working_set, gbs):
    assert HERE.bandwidth(working_set) == gbs


def test_the_limit_is_the_longer_of_reading_and_multiplying():
    # 10 GB/s are 10 MB in a millisecond, 100 GFLOP/s are 100 million in one.
    assert HERE.limit(30_000_000, 200_000_000, 1 << 28) == Limit(3.0, "bytes")
    assert HERE.limit(10_000_000, 200_000_000, 1 << 28) == Limit(2.0, "flops")
    assert HERE.limit(50_000, 0, 50_000) == Limit(0.001, "bytes")


def test_a_machine_is_measured_by_bytes_and_flops_over_the_shortest_time():
    clock = itertools.count(0, 0.5).__next__  # every call takes half a second
    found = measure_machine(3, read_bytes=(1 << 14, 1 << 12), matrix=8, clock=clock)
    # Fewer bytes in the same time are no slower memory: they get the speed of more.
    assert found.read_gbs == ((1 << 12, 2 * (1 << 14) / 1e9), (1 << 14, 2 * (1 << 14) / 1e9))
    assert (found.threads, found.gflops) == (3, 2 * 2 * 8**3 / 1e9)


def test_this_machine_is_measured_once():
    assert machine(1) is machine(1)
    speeds = [speed for _, speed in machine(1).read_gbs]
    assert speeds == sorted(speeds, reverse=True)
    assert machine(1).gflops > 0


# ---- ceilings ----


def group(dense_ms, sparse_ms, kernel="sample", compiled_ms=None, limit=None, name="layer"):
    compiled_ms = sparse_ms if compiled_ms is None else compiled_ms
    return GroupSpeed((LayerSpeed(name, 100, 10, dense_ms, sparse_ms),), kernel, sparse_ms, compiled_ms, limit)


def speed(dense_ms, sparse_ms, *groups):
    return BatchSpeed(1, dense_ms, sparse_ms, dense_ms / sparse_ms, (1.0, 1.0), {}, groups, 0.0, 1, 1)


def test_the_ceiling_is_the_whole_over_what_is_not_in_sparse_layers():
    found = speed(10.0, 5.0, group(6.0, 1.0), group(2.0, 3.0, kernel=None, compiled_ms=2.0))
    assert found.ceiling == 10.0 / (10.0 - 6.0)
    assert found.fused_ceiling == 10.0 / (5.0 - 1.0)
    assert found.other_ms == (10.0 - 6.0 - 2.0, 5.0 - 1.0 - 2.0)


def test_where_nothing_runs_sparse_the_ceiling_is_the_present():
    found = speed(10.0, 10.0, group(6.0, 7.0, kernel=None, compiled_ms=6.0))
    assert (found.ceiling, found.fused_ceiling) == (1.0, 1.0)


def test_where_nothing_else_takes_time_there_is_no_ceiling():
    found = speed(10.0, 5.0, group(10.0, 5.0))
    assert (found.ceiling, found.fused_ceiling) == (None, None)
    assert speed(10.0, 5.0, group(11.0, 6.0)).other_ms == (0.0, 0.0)  # layers and whole are timed apart


times = st.floats(0.01, 100)


@given(dense_ms=times, sparse=times, rest=times)
def test_no_speed_up_passes_the_ceiling_that_counts_what_is_fused(dense_ms, sparse, rest):
    found = speed(dense_ms, sparse + rest, group(dense_ms / 2, sparse))
    assert found.speedup <= found.fused_ceiling * (1 + 1e-9)


def test_achieved_is_the_limit_over_the_time():
    assert group(9.0, 4.0, limit=Limit(1.0, "bytes")).achieved == 0.25
    assert group(9.0, 4.0).achieved is None
    assert group(9.0, 0.0, limit=Limit(1.0, "bytes")).achieved is None


# ---- work ----


def test_a_chain_multiplies_as_often_as_the_ruler_counts():
    model = sparse_(networks.build("lenet-5", seed=0), 0.3)
    x = torch.randn(3, *model.input_shape)
    fast = compile_sparse(model, x, plan=plan_of(model, [("conv1", "conv2"), ("fc3", "fc4")]))
    chains = list(chains_of(fast, fast.plan).values())
    shapes = [x.shape, (3, 50, 4, 4)]
    counted = [sum(multiplications(chain, tuple(shape))) for chain, shape in zip(chains, shapes, strict=True)]
    assert 3 * sum(counted) == count_flops(model, x).sparse_macs


def test_a_linear_layer_multiplies_once_for_every_vector_of_a_sample():
    model = sparse_(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), 0.5)
    x = torch.randn(2, 7, 6)
    fast = compile_sparse(model, x, plan=plan_of(model, [("0", "2")]))
    (chain,) = chains_of(fast, fast.plan).values()
    assert 2 * sum(multiplications(chain, tuple(x.shape))) == count_flops(model, x).sparse_macs


def sparse_(model, density):
    """Keep weights in random places, and one in every row and column: no unit is removed."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                rows, columns = (torch.arange(size) for size in parameter.flatten(1).shape)
                kept = torch.rand(len(rows), len(columns)) < density
                kept[rows, rows % len(columns)] = True
                kept[columns % len(rows), columns] = True
                parameter.masked_fill_(~kept.view_as(parameter), 0.0)
    return model.eval()


def plan_of(model, together):
    """Return a plan that runs some layers sparse, in these groups, and the others dense."""
    layers = {name: layer.weight for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    joined = {names[0]: names for names in together}
    inside = {name for names in together for name in names}
    groups = [
        Group(joined.get(name, (name,)), Kernel() if name in inside else None, 2.0, 1.0)
        for name in layers
        if name in joined or name not in inside
    ]
    weights = {name: (tuple(weight.shape), int(weight.count_nonzero())) for name, weight in layers.items()}
    return Plan(tuple(groups), weights)


# ---- the clock at layers ----


class Time:
    """A clock that only moves when it is told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def passes_in(self, module, milliseconds):
        """Let every call of a module take so long."""
        forward = module.forward

        def slow(*args):
            self.seconds += milliseconds / 1e3
            return forward(*args)

        module.forward = slow


def test_a_watch_notes_what_each_module_took_in_a_call():
    time, model = Time(), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    time.passes_in(model[0], 3.0)
    time.passes_in(model[1], 5.0)
    time.passes_in(model[2], 0.25)
    watch = LayerClock({"first": model[0], "last": model[2]}, time)
    turn = watch.turn(lambda: model(torch.zeros(8, 3)), calls=4)
    turn()
    turn()
    assert watch.medians_ms(2) == pytest.approx({"first": 3.0, "last": 0.25})
    assert len(watch.rounds) == 2
    assert watch.shapes == {"first": (8, 3), "last": (8, 4)}
    assert watch.moved == {"first": 4 * 8 * (3 + 4), "last": 4 * 8 * (4 + 2)}


def test_a_watch_leaves_modules_as_they_were_even_after_a_failure():
    plain, patched = nn.Linear(3, 3), nn.Linear(3, 3)
    patched.forward = own = lambda x: x
    watch = LayerClock({"plain": plain, "patched": patched})
    with pytest.raises(RuntimeError):
        watch.turn(lambda: plain(torch.zeros(1, 99)), calls=1)()
    assert "forward" not in plain.__dict__
    assert patched.forward is own


def test_a_module_that_is_not_called_has_no_time():
    watch = LayerClock({"idle": nn.Linear(3, 3)})
    watch.turn(lambda: None, calls=1)()
    assert watch.medians_ms(1) == {}
    assert LayerClock({}).medians_ms(1) == {}


# ---- the whole ----


@pytest.fixture
def _plans_the_first_layer_sparse(monkeypatch):
    """Decide without timing anything."""

    def compile_first(model, x):
        first = next(name for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
        return compile_sparse(model, x, plan=plan_of(model, [(first,)]))

    monkeypatch.setattr(benchmark, "compile_sparse", compile_first)


@pytest.mark.usefixtures("_plans_the_first_layer_sparse")
def test_times_ratios_and_ceilings_of_a_network_on_a_clock_of_ours():
    time, model = Time(), sparse_(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), 0.5)
    time.passes_in(model[0], 6.0)
    time.passes_in(model[1], 3.0)  # which the sparse call will take over
    time.passes_in(model[2], 1.0)
    seen = []
    found = bench(model, (6,), batches=(1, 4), repeats=6, engines=("eager",), clock=time, observe=seen.append)
    assert found.speeds == tuple(seen)
    assert [one.batch for one in seen] == [1, 4]
    for one in seen:
        assert (one.dense_ms, one.sparse_ms, one.speedup) == pytest.approx((10.0, 1.0, 10.0))
        assert one.interval == pytest.approx((10.0, 10.0))
        assert one.ceiling == pytest.approx(10 / (10 - 6))
        assert one.fused_ceiling == pytest.approx(10.0)
        assert one.other_ms == pytest.approx((3.0, 0.0))
        first, second = one.groups
        assert (first.kernel, first.dense_ms, first.sparse_ms) == ("sample", pytest.approx(6.0), 0.0)
        assert (second.kernel, second.dense_ms, second.sparse_ms) == (None, pytest.approx(1.0), 1.0)
        assert second.compiled_ms == pytest.approx(1.0)
        assert second.limit is None


@pytest.mark.usefixtures("_plans_the_first_layer_sparse")
def test_a_sparse_call_is_limited_by_what_it_reads_writes_and_multiplies(monkeypatch):
    monkeypatch.setattr(benchmark, "machine", lambda threads: HERE)
    model = sparse_(nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 4)), 0.5)
    kept = int(model[0].weight.count_nonzero())
    found = bench(model, (64,), batches=(1, 64), repeats=6, engines=())
    one, many = (each.groups[0].limit for each in found.speeds)
    others = found.speeds[0].sparse_bytes - (32 * 4 + 4) * 4  # all weights but those of the dense layer
    assert one == Limit(pytest.approx((others + (64 + 32) * 4) / 50e6), "bytes")
    assert many == Limit(pytest.approx(2 * 64 * kept / 100e6), "flops")
    assert 4 * kept < others < found.dense_bytes


@pytest.mark.usefixtures("_plans_the_first_layer_sparse")
def test_without_native_kernels_compressed_rows_are_what_is_read(monkeypatch):
    monkeypatch.setattr(bindings, "chain_routine", lambda: None)
    model = sparse_(nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 4)), 0.5)
    (found,) = bench(model, (64,), repeats=6, engines=()).speeds
    kept, dense = int(model[0].weight.count_nonzero()), (32 * 4 + 4) * 4
    assert found.sparse_bytes == dense + 8 * kept + 4 * (32 + 1) + 4 * 32  # value and column, row starts, biases
    assert found.held_bytes == found.sparse_bytes + 8 * kept + 4 * 32


@pytest.mark.usefixtures("_plans_the_first_layer_sparse")
def test_the_weights_of_a_layer_are_counted_in_the_network_as_given():
    model = sparse_(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), 0.5)
    found = bench(model, (6,), repeats=6, engines=())
    (first,), (second,) = (each.layers for each in found.speeds[0].groups)
    assert (first.name, first.weights, first.kept) == ("0", 30, int(model[0].weight.count_nonzero()))
    assert (second.name, second.weights, second.kept) == ("1", 20, int(model[1].weight.count_nonzero()))
    assert found.dense_bytes == 4 * (30 + 5 + 20 + 4)


def test_what_is_found_is_json_without_holes():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))  # too dense for any sparse way to be tried
    found = bench(model, (6,), network="tiny", repeats=6, engines=())
    read = json.loads(found.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (read["network"], read["repeats"], read["threads"], read["density"]) == ("tiny", 6, 1, None)
    (only,) = read["speeds"]
    assert [each["sparse_ms"] for each in only["groups"]] == [None, None]
    assert only["ceiling"] == 1.0


def test_a_summary_has_what_a_report_shows():
    small = speed(10.0, 2.0, group(6.00001, 1.0), group(2.0, None, kernel=None, compiled_ms=1.5, name="other"))
    large = replace(speed(30.0, 10.0), batch=64)
    found = Bench("tiny", 1, 6, None, 99, HERE, (small, large), {"torch": "2"}).summary()
    shown = {"batch": 1, "threads": 1, "dense_ms": 10.0, "sparse_ms": 2.0, "speedup": 5.0}
    assert shown.items() <= found.items()
    assert found["layers"] == {
        "layer.weight": {"dense_ms": 6.0, "sparse_ms": 1.0},
        "other.weight": {"dense_ms": 2.0, "sparse_ms": 1.5},  # which it takes in the sparse network
    }
    assert [(one["batch"], one["speedup"]) for one in found["batches"]] == [(1, 5.0), (64, 3.0)]


def test_joined_layers_have_times_of_their_own(monkeypatch):
    def compile_joined(model, x):
        return compile_sparse(model, x, plan=plan_of(model, [("conv1", "conv2", "fc3", "fc4")]))

    monkeypatch.setattr(benchmark, "compile_sparse", compile_joined)
    model = sparse_(networks.build("lenet-5", seed=0), 0.3)
    model.fc3.bias.data += 1  # so that no unit is zero
    found = bench(model, model.input_shape, batches=(3,), repeats=6, engines=())
    (joined,) = found.speeds[0].groups
    assert [layer.name for layer in joined.layers] == ["conv1", "conv2", "fc3", "fc4"]
    assert all(layer.sparse_ms > 0 and layer.dense_ms > 0 for layer in joined.layers)
    assert joined.sparse_ms == joined.compiled_ms > 0


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_a_lone_layer_can_be_timed_whichever_way_it_runs(density):
    found = bench(sparse_(nn.Linear(400, 300), density), (400,), repeats=6, engines=())
    (only,) = found.speeds[0].groups
    assert only.layers[0].weights == 120_000
    assert only.layers[0].dense_ms > 0


class Branching(nn.Module):
    """Its forward looks at values, so that its layers are compiled one by one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(40, 30), nn.Linear(30, 20)

    def forward(self, x):
        hidden = self.first(x)
        return self.second(hidden.relu() if hidden.sum() > 0 else hidden)


def test_a_network_that_cannot_be_traced_is_timed_by_its_layers():
    model = sparse_(Branching(), 0.2)
    (speed,) = bench(model, (40,), repeats=6, engines=()).speeds
    assert [layer.name for group in speed.groups for layer in group.layers] == ["first", "second"]


def test_layers_that_torch_computes_together_have_a_time():
    model = sparse_(nn.TransformerEncoderLayer(64, 2, 128, batch_first=True), 0.1)
    (speed,) = bench(model, (16, 64), repeats=6, engines=()).speeds
    names = ["self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"]
    assert [layer.name for group in speed.groups for layer in group.layers] == names
    assert all(layer.dense_ms > 0 for group in speed.groups for layer in group.layers)


def test_a_network_and_torch_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 4)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = bench(model, (6,), repeats=6, threads=2, engines=())
    assert found.threads == found.machine.threads == 2
    assert torch.get_num_threads() == 1
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setattr(benchmark, "compile_sparse", lambda model, x: nn.Sequential(model, nn.Threshold(math.inf, 7.0)))
    with pytest.raises(ValueError, match=r"differs from the dense one by .*: not timed"):
        bench(nn.Linear(6, 5), (6,), repeats=6)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"repeats": 5}, "repeats must be ≥ 6 for an interval of the median, got 5"),
        ({"batches": (1, 0)}, "batch sizes must be ≥ 1, got 1, 0"),
        ({"batches": ()}, "batch sizes must be ≥ 1, got none"),
    ],
)
def test_settings_that_measure_nothing_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        bench(nn.Linear(6, 5), (6,), **settings)
