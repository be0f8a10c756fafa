"""Quantising a network: which tensors, what is refused, and that it stays a network like any other."""

import copy
import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quantizing import METHODS, layer_of, quantizers, sibling_at, sparse, tune
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from toy_networks import CASES, Custom, Recurrent, Tied, convolutional, mlp

from secateur import (
    QuantizeConfig,
    build_sibling,
    coded_bits,
    freeze,
    keep_zeros,
    learned_thresholds,
    parameter_groups,
    penalty,
    quantize,
)
from secateur.functions.integer_grid import IntegerGrid
from secateur.functions.learned_step import LearnedStep
from secateur.measure import count
from secateur.train.journal import Journal
from secateur.train.loop import fit
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage


def test_biases_are_quantised_only_when_asked():
    model = convolutional()
    nn.init.normal_(model[1].bias)
    assert set(quantizers(quantize(copy.deepcopy(model)))) == {"0.weight", "3.weight", "4.weight", "6.weight"}
    asked = quantizers(quantize(model, QuantizeConfig(bias_levels=15)))
    assert {"0.bias", "1.bias", "6.bias"} < set(asked)
    assert "1.weight" not in asked
    assert all(isinstance(asked[name], LearnedStep) for name in asked if name.endswith("bias"))
    assert len(freeze(model)[6].bias.unique()) <= 15


def test_a_bias_of_zeros_has_no_scale_and_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.init.zeros_(model[0].bias)
    assert quantizers(quantize(model, QuantizeConfig(bias_levels=15))).keys() == {"0.weight", "1.weight", "1.bias"}


@given(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=40).filter(any), st.integers(3, 33))
def test_biases_round_to_the_nearest_level_zero_included(values, levels):
    layer = nn.Linear(1, len(values))
    layer.bias.data = torch.tensor(values)
    bias = layer.bias.detach().clone()
    frozen = freeze(quantize(layer, QuantizeConfig(bias_levels=levels))).bias
    step = quantizers(layer)["bias"].step
    assert len(frozen.unique()) <= levels
    inside = bias.abs() <= (levels - 1) // 2 * step
    assert ((frozen - bias).abs()[inside] <= step / 2 * (1 + 1e-5)).all()


def test_rules_choose_by_layer():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), Custom())
    rules = {"0": 3, "1": None, "2": QuantizeConfig(method="int8"), "3.matrix": 5, "0.bias": 2}
    found = quantizers(quantize(model, QuantizeConfig(levels=7), layers=rules))
    assert found.keys() == {"0.weight", "0.bias", "2.weight", "3.matrix"}
    assert [len(found[name].centroids) for name in ("0.weight", "3.matrix", "0.bias")] == [3, 5, 2]
    assert isinstance(found["2.weight"], IntegerGrid)


def test_rules_name_tensors_of_a_masked_model_as_those_of_the_plain_one():
    model = keep_zeros(sparse(mlp()))
    assert quantizers(quantize(model, layers={"2.weight": None})).keys() == {"0.weight"}


def test_tied_tensors_share_one_quantiser():
    model = quantize(sparse(Tied()), QuantizeConfig(levels=4))
    assert len({id(function) for function in quantizers(model).values()}) == 2
    assert torch.equal(model.embed.weight, model.head.weight)
    tune(model, torch.randint(0, 11, (9, 3)))
    frozen = freeze(model)
    assert frozen.embed.weight is frozen.head.weight
    assert torch.equal(frozen.embed.weight, model.embed.weight)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU()), {}, "nothing to quantise"),
        (mlp, {"layers": {"3": 4}}, 'no layer or tensor matches "3"'),
        (mlp, {"layers": {nn.Conv2d: 4}}, "no layer of type Conv2d"),
        (mlp, {"layers": {"0.weight": True}}, r'layers\["0.weight"\] must be .*, got True'),
        (mlp, {"layers": {nn.Linear: 3.5}}, r"layers\[Linear\] must be .*, got 3.5"),
        (lambda: quantize(mlp()), {}, '"0.weight" is quantised already'),
        (lambda: build_sibling(mlp()), {}, 'method "shared" fixes what is zero'),
        (lambda: nn.Linear(3, 3, dtype=torch.complex64), {}, "floating-point"),
        (lambda: layer_of([math.nan]), {}, "NaN or infinite"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), {}, "run one batch"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature", "ignore:Complex modules are a new feature")
def test_what_cannot_be_quantised_is_refused_in_one_sentence(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        quantize(make(), **arguments)


def test_a_refused_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.constant_(model[1].weight, math.inf)
    with pytest.raises(ValueError, match=r'"1\.weight" holds NaN'):
        quantize(model)
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert model[0].weight.requires_grad


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "k-means"},
        {"init": "kmeans++"},
        {"granularity": "row"},
        {"levels": 0},
        {"levels": 65_536},
        {"levels": 3.5},
        {"levels": True},
        {"bias_levels": 2},
        {"bias_levels": 7.0},
        {"cutoff": -1.0},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        QuantizeConfig(**settings)


def test_freezing_what_is_not_quantised_is_refused():
    with pytest.raises(ValueError, match="is not quantised"):
        freeze(mlp())


def test_a_quantised_sibling_that_would_vanish_is_refused():
    sibling = quantize(sibling_at(0.1, mlp()), QuantizeConfig(method="uniform"))
    learned_thresholds(sibling)["2.weight"].threshold.data.fill_(0.9)
    with pytest.raises(ValueError, match=r'"2\.weight" would lose all of its 64 weights'):
        freeze(sibling)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_a_deep_copy_computes_the_same_and_trains_alone(case, method):
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4)).eval(), inputs()
    outputs = model(x)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), outputs)
    tune(twin, x)
    assert torch.equal(model(x), outputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_a_state_dict_round_trips(case, method):
    make, inputs = CASES[case]
    config = QuantizeConfig(method=method, levels=4, bias_levels=7)
    model, fresh, x = quantize(sparse(make()), config), quantize(sparse(make()), config), inputs()
    tune(model, x)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(fresh.eval()(x), model.eval()(x))
    assert coded_bits(fresh).item() == coded_bits(model).item()


@pytest.mark.parametrize(
    ("case", "method"), [("mlp", "int4"), ("tied", "shared"), ("attention", "uniform"), ("convolutional", "int8")]
)
def test_a_compiled_model_trains_like_an_eager_one(case, method):
    torch._dynamo.reset()
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4, bias_levels=9)), inputs()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (compiled, model):
        model.zero_grad()
        with torch._dynamo.config.patch(error_on_recompile=True):
            run(x).square().mean().backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_a_compiled_quantised_sibling_trains_like_an_eager_one():
    torch._dynamo.reset()
    model, x = quantize(sibling_at(0.1, mlp()), QuantizeConfig(method="uniform", levels=4)), torch.randn(9, 12)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (compiled, model):
        model.zero_grad()
        (run(x).square().mean() + penalty(model)).backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    assert_close(*grads, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["mlp", "lstm"])
def test_two_forwards_before_one_backward_add_up(case, method):
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4)), inputs()

    def gradients(*losses):
        model.zero_grad()
        for loss in losses:
            loss().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    first, second = (lambda: model(x).square().mean()), (lambda: model(2 * x).sum())
    assert_close(gradients(lambda: first() + second()), gradients(first, second), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["convolutional", "lstm"])
def test_a_quantised_model_exports(case, method):
    make, inputs = CASES[case]
    model, x = quantize(sparse(make()), QuantizeConfig(method=method, levels=4)).eval(), inputs()
    assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_keep_zeros_and_learn(method, dtype):
    model, x = sparse(mlp()).to(dtype), torch.randn(9, 12, dtype=dtype)
    kept = model[0].weight != 0
    quantize(model, QuantizeConfig(method=method, levels=4, bias_levels=7))
    assert model[0].weight.dtype is dtype
    frozen = freeze(tune(model, x))
    assert frozen[0].weight.dtype is dtype
    assert coded_bits(model).dtype is torch.float32
    assert torch.equal(frozen[0].weight != 0, kept)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_read_their_quantised_weights(kind):
    model, x = quantize(sparse(Recurrent(kind)), QuantizeConfig(levels=2)), torch.randn(3, 9, 5)
    assert_close(freeze(model)(x), model(x))


@pytest.mark.parametrize("method", METHODS)
def test_counting_sees_the_quantised_weights(method):
    model = sparse(mlp())
    expected = count(model).prunable.kept
    assert count(quantize(model, QuantizeConfig(method=method))).prunable.kept == expected


def test_what_a_quantiser_learns_is_never_decayed():
    model = quantize(sparse(mlp()), QuantizeConfig(method="uniform", bias_levels=7), layers={"2": QuantizeConfig()})
    model[2].parametrizations.weight.original.requires_grad_(True)
    decayed, free = parameter_groups(model, lr=0.1, lambda_wd=0.5, decay_biases=True)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert free["weight_decay"] == 0
    assert {names[id(p)].rpartition(".")[2] for p in free["params"]} == {"log_step", "centroids"}
    assert {names[id(p)].rpartition(".")[2] for p in decayed["params"]} == {"original", "bias"}


class Images:
    """A few labelled vectors in memory."""

    def __init__(self):
        self.inputs, self.labels = torch.randn(40, 12), torch.arange(40) % 4

    def __len__(self):
        return len(self.labels)

    def batch(self, indices, generator):
        return self.inputs[indices], self.labels[indices]


@pytest.mark.parametrize("method", METHODS)
def test_the_loop_fine_tunes_a_quantised_model_and_resumes_it(method, tmp_path):
    recipe = Recipe(epochs=3, batch_size=8, lr=1e-2, schedule="cosine")
    images, model = (
        Images(),
        quantize(keep_zeros(sparse(mlp())), QuantizeConfig(method=method, levels=4, bias_levels=7)),
    )

    def run(model, name, stop_after=3):
        def measure(model):
            measured.append(coded_bits(model).item())
            if len(measured) == stop_after:
                raise KeyboardInterrupt
            return {"bits": measured[-1]}

        measured = []
        journal = Journal(checkpoint=tmp_path / name, log=tmp_path / f"{name}.log")
        stage = Stage(name="fine-tune", model=model, recipe=recipe, phase="fine-tune")
        fit(stage, images, seed=0, measure=measure, journal=journal)

    straight, resumed = copy.deepcopy(model), copy.deepcopy(model)
    before = functional.cross_entropy(model(images.inputs), images.labels)
    run(straight, "straight", stop_after=0)
    with pytest.raises(KeyboardInterrupt):
        run(copy.deepcopy(model), "resumed", stop_after=2)
    run(resumed, "resumed", stop_after=0)
    assert_close(resumed.state_dict(), straight.state_dict(), rtol=0, atol=0)
    assert functional.cross_entropy(straight(images.inputs), images.labels) < before


def test_scales_of_norms_stay_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.Linear(64, 4))
    with torch.no_grad():
        model[1].weight += 0.1 * torch.randn(64)
        model[1].bias += torch.randn(64)
    plain = freeze(quantize(copy.deepcopy(model), QuantizeConfig(levels=8, bias_levels=15)))
    assert torch.equal(plain[1].weight, model[1].weight)
    assert len(plain[1].bias.unique()) <= 15
