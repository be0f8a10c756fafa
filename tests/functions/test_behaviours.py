"""What peers get wrong: a sibling is cast, compiled, exported and shared like any other model."""

import copy
import operator
import shutil

import pytest
import torch
from siblings import gradients, sibling_at
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from toy_networks import CASES, Attention, Recurrent, Tied, convolutional, mlp, train

from secateur import SiblingConfig, build_sibling, learned_thresholds, parameter_groups, penalty, prune, theta
from secateur.measure import count


@pytest.mark.parametrize("case", ["mlp", "tied", "attention"])
def test_a_compiled_sibling_trains_like_an_eager_one(case):
    torch._dynamo.reset()
    make, inputs = CASES[case]
    sibling, x = build_sibling(make()), inputs()
    compiled = torch.compile(sibling, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        grads = [gradients(sibling, x, run=compiled) for _ in range(2)]
    assert_close(grads, [gradients(sibling, x)] * 2, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert_close(compiled(x), sibling(x))


def test_a_whole_compiled_objective_trains_like_an_eager_one():
    torch._dynamo.reset()
    sibling, x = build_sibling(mlp()), torch.randn(6, 12)
    twin = copy.deepcopy(sibling)

    def objective(model):
        return model(x).square().mean() + penalty(model)

    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    for model, loss in ((sibling, compiled), (twin, objective)):
        optimizer = torch.optim.SGD(parameter_groups(model, lr=0.1, rho=1.0))
        for _ in range(3):
            with torch._dynamo.config.patch(error_on_recompile=True):
                loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_close(sibling.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-6)


def test_compiled_thresholds_follow_projected_descent_without_a_penalty_too():
    torch._dynamo.reset()
    sibling, x = build_sibling(nn.Linear(6, 4)), torch.randn(9, 6)
    compiled = torch.compile(sibling, fullgraph=True, backend="aot_eager")
    threshold = learned_thresholds(sibling)["weight"].threshold
    optimizer = torch.optim.SGD(parameter_groups(sibling, lr=0.1, rho=20.0))
    expected, touched_zero = threshold.item(), False
    for sign in (-1, -1, 1, 1):  # large outputs want a threshold of zero, small ones want it up again
        (sign * compiled(x).square().mean()).backward()
        expected = max(0.0, expected - 2.0 * threshold.grad.item())
        touched_zero |= expected == 0
        optimizer.step()
        optimizer.zero_grad()
        assert max(0.0, threshold.item()) == pytest.approx(expected, abs=1e-6)
    assert touched_zero


@pytest.mark.slow  # 20 s of C++ compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method. is deprecated:DeprecationWarning")  # inductor's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_sibling_compiled_by_inductor_trains_like_an_eager_one():
    torch._dynamo.reset()
    sibling, x = build_sibling(mlp()), torch.randn(6, 12)
    compiled = torch.compile(sibling, fullgraph=True)
    assert_close(gradients(sibling, x, run=compiled), gradients(sibling, x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_sibling_exports_to_plain_aten(case):
    make, inputs = CASES[case]
    sibling, x = sibling_at(0.1, make()).eval(), inputs()
    exported = torch.export.export(sibling, (x,))
    calls = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert all(call is operator.getitem or call.namespace == "aten" for call in calls)
    assert_close(exported.module()(x), sibling(x))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn._flat_weights")  # torch's own, of a plain LSTM
def test_a_pruned_model_exports_like_the_plain_one(case):
    make, inputs = CASES[case]
    plain, pruned, x = make().eval(), prune(sibling_at(0.1, make())).eval(), inputs()
    exported = torch.export.export(pruned, (x,))
    assert exported.graph_module.code == torch.export.export(plain, (x,)).graph_module.code
    assert_close(exported.module()(x), pruned(x))


def test_bfloat16_autocast_computes_close_to_float32_and_gives_float32_gradients():
    sibling, x = build_sibling(mlp()), torch.randn(6, 12)
    exact = gradients(sibling, x)

    def autocast(x):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = sibling(x)
        assert outputs.dtype is torch.bfloat16
        return outputs.float()

    assert_close(gradients(sibling, x, run=autocast), exact, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cast_first", [True, False])
def test_a_bfloat16_sibling_learns_float32_thresholds(case, cast_first):
    make, inputs = CASES[case]
    x = inputs()
    x = x.bfloat16() if x.is_floating_point() else x
    sibling = build_sibling(make().bfloat16()) if cast_first else build_sibling(make()).bfloat16()
    sibling(x)
    grads = gradients(sibling, x)
    for name, grad in grads.items():
        assert grad.dtype is (torch.float32 if name.endswith(".threshold") else torch.bfloat16)
        assert grad.isfinite().all()
        assert grad.any() or not name.endswith(".threshold")


@pytest.mark.parametrize("cast_first", [True, False])
def test_a_pruned_bfloat16_model_keeps_its_zeros(cast_first):
    sibling, x = sibling_at(0.1, mlp()), torch.randn(5, 12)
    zeros = prune(sibling)[0].weight == 0
    pruned = prune(sibling.bfloat16()) if cast_first else prune(sibling).bfloat16()
    assert 0 < zeros.sum() < zeros.numel()
    assert ((pruned[0].weight == 0) != zeros).sum() <= 1  # one weight may round across the cutoff
    assert pruned(x.bfloat16()).dtype is torch.bfloat16


def test_a_double_sibling_computes_in_double():
    sibling, x = build_sibling(mlp()), torch.randn(5, 12)
    single, precise = gradients(sibling, x), gradients(sibling.double(), x.double())
    assert {grad.dtype for grad in precise.values()} == {torch.float64}
    assert_close(single, precise, check_dtype=False, rtol=1e-3, atol=1e-6)
    assert prune(sibling)[0].weight.dtype is torch.float64


def test_channels_last_changes_nothing_but_the_layout():
    sibling, x = build_sibling(convolutional()), torch.randn(9, 2, 6, 6)
    expected = gradients(sibling, x)
    sibling.to(memory_format=torch.channels_last)
    assert sibling[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert_close(gradients(sibling, x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-6)


def test_attention_trains_every_weight_and_threshold():
    sibling, x = build_sibling(Attention()), torch.randn(9, 3, 8)
    before = copy.deepcopy(sibling.state_dict())
    train(sibling, x, steps=2)
    unmoved = [name for name, value in sibling.state_dict().items() if torch.equal(value, before[name])]
    assert unmoved == []


def test_the_fast_path_of_a_transformer_layer_reads_theta(monkeypatch):
    calls, kernel = [], torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: calls.append(1) or kernel(*args))
    sibling = sibling_at(0.1, nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    pruned, x = prune(sibling, 0), torch.randn(3, 4, 8)
    assert_close(sibling(x), pruned(x))
    with torch.no_grad():
        assert_close(sibling.eval()(x), pruned(x))
    assert len(calls) == 1


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_react_to_their_thresholds(kind):
    sibling, x = sibling_at(0.0, Recurrent(kind)), torch.randn(3, 9, 5)
    before = sibling(x)
    for function in learned_thresholds(sibling).values():
        nn.init.constant_(function.threshold, 0.1)
    assert not torch.allclose(sibling(x), before)
    assert_close(sibling(x), prune(sibling, 0)(x))
    assert all(grad.any() for name, grad in gradients(sibling, x).items() if name.endswith("threshold"))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_copied_after_forward_and_cast(kind):
    sibling, x = build_sibling(Recurrent(kind)), torch.randn(3, 9, 5)
    sibling(x).sum().backward()
    sibling.to(torch.float64)
    outputs = sibling(x.double())
    sibling.rnn.flatten_parameters()
    twin = copy.deepcopy(sibling)
    assert torch.equal(twin(x.double()), outputs)
    train(twin, x.double())
    assert torch.equal(sibling(x.double()), outputs)


def test_recurrent_layers_compute_theta_once_per_forward():
    sibling, calls = build_sibling(Recurrent(nn.LSTM)), []
    learned_thresholds(sibling)["rnn.weight_hh_l0"].register_forward_hook(lambda *_: calls.append(1))
    sibling(torch.randn(3, 9, 5))
    assert len(calls) == 1


def test_a_tied_embedding_and_head_learn_one_threshold_that_counts_once():
    sibling = sibling_at(0.3, Tied())
    grads = gradients(sibling, torch.randint(0, 11, (9, 3)))
    assert [name for name in grads if name.endswith("threshold")] == [
        "embed.parametrizations.weight.0.threshold",
        "body.parametrizations.weight.0.threshold",
    ]
    assert all(grad.any() for grad in grads.values())
    assert_close(penalty(sibling, 1.0), sibling.embed.weight.abs().sum() + sibling.body.weight.abs().sum())


def test_a_tied_embedding_and_head_have_the_same_zeros_counted_once():
    sibling = sibling_at(0.3, Tied())
    zeros = sibling.embed.weight.abs() < 1e-3
    pruned = prune(sibling)
    assert pruned.embed.weight is pruned.head.weight
    assert torch.equal(pruned.head.weight == 0, zeros)
    assert count(pruned).prunable.tensors[0].zeros == zeros.sum() > 0
    assert count(pruned).prunable.weights == 11 * 6 + 6 * 6


def test_sparsity_of_prunable_weights_and_of_the_whole_is_counted_after_the_cut():
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[0.5, 0.01, -0.02], [0.03, -0.9, 0.7]])
    model[2].weight.data = torch.tensor([[0.001, -1.0], [2.0, 3.0]])
    model[0].bias.data.fill_(1.0)
    counts = count(prune(sibling_at(0.2, model)))
    assert [tensor.zeros for tensor in counts.prunable.tensors] == [3, 1]
    assert (counts.prunable.weights, counts.prunable.zeros, counts.prunable.sparsity) == (10, 4, 0.4)
    # Besides, two biases, two scales and two shifts of the norm; only the shifts are zero.
    assert (counts.whole.weights, counts.whole.zeros, counts.whole.ratio) == (16, 6, 1.6)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_layer_with_sparse_gradients_trains_like_one_with_dense_gradients(kind):
    dense, tokens = build_sibling(kind(10, 4)), torch.randint(0, 10, (6, 3))
    sparse = build_sibling(kind(10, 4, sparse=True))
    sparse.load_state_dict(dense.state_dict())
    assert_close(gradients(sparse, tokens), gradients(dense, tokens))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}])
def test_gradient_checkpointing_equals_plain_training(reentrant, options):
    plain, x = build_sibling(mlp()), torch.randn(9, 12, requires_grad=True)
    checkpointed = copy.deepcopy(plain)
    for model in (plain, checkpointed):
        optimizer = torch.optim.Adam(parameter_groups(model, lr=0.1, rho=0.1), **options)
        for _ in range(4):
            outputs = model(x) if model is plain else checkpoint(model, x, use_reentrant=reentrant)
            (functional.cross_entropy(outputs, torch.arange(9) % 4) + penalty(model)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_close(checkpointed.state_dict(), plain.state_dict(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_the_penalty_after_a_step_is_that_of_the_new_weights(options):
    sibling, x = build_sibling(mlp()), torch.randn(9, 12)
    optimizer = torch.optim.Adam(parameter_groups(sibling, lr=0.1), **options)
    (sibling(x).sum() + penalty(sibling)).backward()
    optimizer.step()
    after = penalty(sibling).item()
    sibling(x)
    assert after == pytest.approx(penalty(sibling).item())


@pytest.mark.parametrize("compiles", [False, True])
def test_the_penalty_after_loading_other_tensors_is_theirs(compiles):
    sibling, x = sibling_at(0.1, mlp()), torch.randn(9, 12)
    other = sibling_at(0.2, mlp())
    (torch.compile(sibling, backend="aot_eager") if compiles else sibling)(x)
    sibling.load_state_dict(other.state_dict(), assign=True)
    assert penalty(sibling).item() == penalty(other).item()


def test_a_functional_call_computes_with_the_tensors_it_is_given():
    sibling, other, x = sibling_at(0.1, mlp()), sibling_at(0.2, mlp()), torch.randn(5, 12)
    assert torch.equal(functional_call(sibling, dict(other.named_parameters()), x), other(x))
    given = {name: parameter.detach() for name, parameter in other.named_parameters()}
    assert torch.equal(functional_call(sibling, given, x), other(x))
    expected = penalty(copy.deepcopy(sibling)).item()
    assert penalty(sibling).item() == expected != penalty(other).item()


def test_thresholds_learn_over_frozen_weights():
    model = mlp().requires_grad_(False)
    sibling, x = build_sibling(model, layers={nn.Linear: SiblingConfig()}), torch.randn(9, 12)
    before = copy.deepcopy(sibling.state_dict())
    train(sibling, x)
    moved = [name for name, value in sibling.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == ["0.parametrizations.weight.0.threshold", "2.parametrizations.weight.0.threshold"]


def test_a_module_that_is_used_twice_is_penalised_once():
    layer, x = nn.Linear(6, 6), torch.randn(5, 6)
    sibling = build_sibling(nn.Sequential(layer, nn.ReLU(), layer))
    sibling(x)
    expected = theta(layer.parametrizations.weight.original, *layer.parametrizations.weight[0].parameters(), 100.0)
    assert penalty(sibling, 1.0).item() == pytest.approx(expected.abs().sum().item())
    assert len(learned_thresholds(sibling)) == 1


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_on_the_list_of_functions_is_called_at_every_read(register):
    layer, calls = build_sibling(nn.Linear(3, 2)), []
    getattr(layer.parametrizations.weight, register)(lambda *_: calls.append(1))
    layer(torch.randn(1, 3))
    assert calls == [1]


def test_a_function_registered_on_top_of_theta_is_applied_after_it():
    layer = build_sibling(nn.Linear(3, 2))
    mapped = layer.weight
    parametrize.register_parametrization(layer, "weight", nn.Flatten(0), unsafe=True)
    assert torch.equal(layer.weight, mapped.flatten())


def test_a_cached_parametrization_gives_the_same_gradients():
    sibling, x = build_sibling(mlp()), torch.randn(5, 12)
    expected = gradients(sibling, x, run=lambda x: sibling(x) + sibling(2 * x))
    with parametrize.cached():
        assert_close(gradients(sibling, x, run=lambda x: sibling(x) + sibling(2 * x)), expected)


@pytest.mark.parametrize("case", ["mlp", "lstm", "tied"])
def test_evaluation_under_inference_mode_leaves_training_alone(case):
    make, inputs = CASES[case]
    sibling, x = build_sibling(make()), inputs()
    twin = copy.deepcopy(sibling)
    for model in (sibling, twin):
        train(model, x)
        if model is sibling:
            with torch.inference_mode():
                assert not model(x).requires_grad
        train(model, x)
    assert_close(sibling.state_dict(), twin.state_dict(), rtol=0, atol=0)
