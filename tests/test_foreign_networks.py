"""Other people's networks: their layers are known, what is left out is said, and what cannot be done is refused."""

import copy
import re

import pytest
import torch
from foreign_layers import Config, Configured, Conv1D, gpt, mixture
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close
from toy_networks import Custom, mlp, train

import secateur
from secateur import Budget, Pruner, QuantizeConfig, SiblingConfig, build_sibling, learned_thresholds, targets
from secateur.measure import count, count_flops
from secateur.report.terminal import summary_table
from secateur.sibling import left_out

FOREIGN = {
    "gpt": (gpt, {"0.weight", "2.weight", "3.weight"}),
    "mixture": (mixture, {"0.weight", "1.gate_up_proj", "1.down_proj", "2.weight"}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_weights_of_foreign_layers_are_pruned_and_counted(name):
    make, weights = FOREIGN[name]
    assert {target.name for target in targets(make())} == weights
    assert {tensor.name for tensor in count(make()).prunable.tensors} == weights


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_layers_go_all_the_way_to_a_file(name, tmp_path):
    model, x = FOREIGN[name][0](), torch.randn(9, 12)
    sibling = build_sibling(model, SiblingConfig(init_quantile=0.5))
    train(sibling, x)
    plain = secateur.prune(sibling)
    assert all(tensor.zeros for tensor in count(plain).prunable.tensors)
    assert_close(plain(x), sibling(x), atol=2e-2, rtol=0)
    few = secateur.freeze(secateur.quantize(copy.deepcopy(plain), QuantizeConfig(levels=8)))
    assert all(len(dict(few.named_parameters())[name].unique()) <= 9 for name in FOREIGN[name][1])
    secateur.save(few, tmp_path / "model.cut")
    assert torch.equal(secateur.load(tmp_path / "model.cut", FOREIGN[name][0]())(x), few(x))


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_layers_are_pruned_to_a_budget(name):
    model, x = FOREIGN[name][0](), torch.randn(9, 12)
    pruner, optimizer = Pruner(model, Budget(ratio=4), steps=10), torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(10):
        model(x).square().mean().backward()
        optimizer.step()
        pruner.step()
        optimizer.zero_grad()
    assert count(secateur.prune(model)).prunable.kept == round(pruner.weights / 4)


def test_filters_of_a_conv1d_are_its_columns():
    shapes = {
        granularity: tuple(
            learned_thresholds(build_sibling(Conv1D(5, 3), SiblingConfig(granularity=granularity)))[
                "weight"
            ].threshold.shape
        )
        for granularity in ("paper", "layer", "filter", "row")
    }
    assert shapes == {"paper": (1, 1), "layer": (1, 1), "filter": (1, 5), "row": (3, 1)}


def test_a_scale_per_channel_of_a_conv1d_is_one_per_column():
    layer = Conv1D(5, 3)
    layer.weight.data *= torch.logspace(0, 4, 5)
    few = secateur.freeze(secateur.quantize(layer, QuantizeConfig(method="int8", granularity="channel")))
    steps = few.weight.abs().amax(0) / 127
    assert_close(few.weight / steps, (few.weight / steps).round(), rtol=0, atol=1e-3)


def test_a_filter_of_fused_experts_is_an_expert():
    sibling = build_sibling(mixture(), SiblingConfig(granularity="filter"))
    assert learned_thresholds(sibling)["1.down_proj"].threshold.shape == (3, 1, 1)


def test_a_conv1d_multiplies_as_often_as_a_linear_layer():
    x = torch.randn(7, 3)
    assert count_flops(Conv1D(5, 3), x).macs == count_flops(nn.Linear(3, 5), x).macs == 7 * 15


def test_large_tensors_that_are_left_out_are_named_with_the_reason_and_their_share():
    model = nn.Sequential(Custom(), Custom(), nn.Linear(6, 10))
    share = 60 / sum(parameter.numel() for parameter in model.parameters())
    with pytest.warns(UserWarning, match=re.escape(f"{100 * share:.0f} % of the parameters of Sequential")) as said:
        build_sibling(model)
    [warning] = said
    assert '"0.matrix" and 1 more (42 %: Custom is not a layer that we know)' in str(warning.message)
    with pytest.warns(UserWarning, match="left out"):
        Pruner(nn.Sequential(Custom(), nn.Linear(6, 10)), Budget(ratio=2))


def test_small_tensors_and_those_that_a_rule_leaves_out_are_not_mentioned():
    assert left_out(nn.Sequential(Custom(), nn.Linear(600, 10))) == ()
    assert left_out(nn.Sequential(Custom(), nn.Linear(6, 10)), layers={Custom: None}) == ()
    build_sibling(nn.Sequential(Custom(), nn.Linear(6, 10)), layers={"0.matrix": None})


def test_a_summary_shows_what_is_left_out():
    model = nn.Sequential(Custom(), nn.Linear(6, 10))
    caption = str(summary_table(targets(model), left_out(model)).caption)
    assert '"0.matrix" (28 %: Custom is not a layer that we know)' in caption
    assert summary_table(targets(mlp()), left_out(mlp())).caption is None


def half_frozen():
    model = mlp()
    model[0].requires_grad_(False)
    return model


def test_frozen_weights_are_left_alone_and_that_is_said():
    with pytest.warns(UserWarning, match=r'"0\.weight" \(.* %: frozen, requires_grad=False\)'):
        sibling = build_sibling(half_frozen())
    assert learned_thresholds(sibling).keys() == {"2.weight"}
    with pytest.warns(UserWarning, match="frozen"):
        assert Pruner(half_frozen(), Budget(ratio=2)).weights == 64


@pytest.mark.parametrize("key", ["0", "0.weight", "*", nn.Linear])
def test_frozen_weights_are_pruned_when_a_rule_asks_for_them(key):
    sibling = build_sibling(half_frozen(), layers={key: SiblingConfig()})
    assert learned_thresholds(sibling).keys() == {"0.weight", "2.weight"}


def test_a_network_that_is_frozen_as_a_whole_has_nothing_to_prune():
    with pytest.raises(ValueError, match=r"nothing to prune.*frozen"):
        build_sibling(mlp().requires_grad_(False))


NORMS = [nn.utils.weight_norm, nn.utils.spectral_norm, parametrizations.weight_norm, parametrizations.orthogonal]


@pytest.mark.parametrize("norm", NORMS, ids=["old weight norm", "old spectral norm", "weight norm", "orthogonal"])
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_a_layer_with_a_norm_of_its_weight_is_skipped_and_that_is_said(norm):
    model, x = mlp(), torch.randn(9, 12)
    norm(model[0])
    with pytest.warns(UserWarning, match=r'"0\.weight.*read through .*, which has to be removed first'):
        sibling = build_sibling(model)
    assert learned_thresholds(sibling).keys() == {"2.weight"}
    train(sibling, x)
    plain = secateur.prune(sibling).eval()
    assert_close(plain(x), sibling.eval()(x), atol=1e-2, rtol=0)


def scripted():
    return nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.Linear(3, 3))


def packed():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0] = torch.ao.nn.quantized.dynamic.Linear(3, 3)
    return model


@pytest.mark.parametrize("change", [build_sibling, targets, secateur.quantize])
@pytest.mark.parametrize(
    ("make", "message"),
    [(scripted, 'layer "0" is compiled by torch.jit'), (packed, 'layer "0" is a Linear that holds packed integers')],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:torch.quantize_per_tensor")
def test_layers_that_cannot_be_changed_any_more_are_refused_in_one_sentence(make, message, change):
    with pytest.raises(TypeError, match=message):
        change(make())


@pytest.mark.parametrize("change", [build_sibling, secateur.quantize, count])
def test_a_network_without_values_is_refused_in_one_sentence(change):
    with pytest.raises(ValueError, match=r'"0\.weight" is on the meta device'):
        change(mlp().to("meta"))


def test_frozen_integers_of_a_quantised_layer_do_not_keep_the_others_from_being_pruned():
    model = mlp()
    model[0].weight = nn.Parameter(torch.ones(16, 12, dtype=torch.int8), requires_grad=False)
    with pytest.warns(UserWarning, match="frozen"):
        assert learned_thresholds(build_sibling(model)).keys() == {"2.weight"}


def test_a_bfloat16_network_is_pruned_with_thresholds_in_float32(tmp_path):
    model, x = mlp().bfloat16(), torch.randn(9, 12, dtype=torch.bfloat16)
    sibling = build_sibling(model, SiblingConfig(init="inverse", init_quantile=0.5))
    train(sibling, x)
    assert {each.threshold.dtype for each in learned_thresholds(sibling).values()} == {torch.float32}
    plain = secateur.prune(sibling)
    assert {parameter.dtype for parameter in plain.parameters()} == {torch.bfloat16}
    secateur.save(plain, tmp_path / "model.cut")
    assert torch.equal(secateur.load(tmp_path / "model.cut", mlp().bfloat16())(x), plain(x))


def test_a_bfloat16_network_reads_the_weights_that_the_pruner_counts():
    torch.manual_seed(0)
    model = nn.Linear(40, 50, bias=False).bfloat16()
    pruner = Pruner(model, Budget(ratio=4), steps=1)
    for _ in range(20):
        for each in learned_thresholds(model).values():
            each.threshold.data.uniform_(0.01, 0.15)
        assert count(model).prunable.kept == pruner.kept


def test_a_lost_rho_is_mentioned_where_a_layer_would_be_emptied():
    sibling = build_sibling(mlp())
    for each in learned_thresholds(sibling).values():
        nn.init.constant_(each.threshold, 9.0)
    with pytest.raises(ValueError, match=r"smaller rho \(it needs an optimizer with the groups of"):
        secateur.prune(sibling)
    secateur.parameter_groups(sibling, lr=1e-3)
    with pytest.raises(ValueError, match="smaller rho, lambda_t"):
        secateur.prune(sibling)


def test_a_model_with_a_configuration_is_built_again_from_its_file(tmp_path):
    path, model, x = tmp_path / "model.cut", Configured(Config(width=3)), torch.randn(5, 3)
    secateur.save(model, path, architecture=model.config)
    with pytest.raises(ValueError, match="nothing was imported"):
        secateur.load(path)
    assert torch.equal(secateur.load(path, trust=["foreign_layers"])(x), model(x))


@pytest.mark.parametrize("recorded", [3, ["os:system", {}], ["nothing", {}], ["os.path:join", {"a": "b"}]])
def test_a_file_with_a_configuration_that_is_none_is_refused(recorded, tmp_path):
    path = tmp_path / "model.cut"
    secateur.save(Configured(Config()), path, architecture=("foreign_layers:Configured", {"__config__": recorded}))
    with pytest.raises(ValueError, match="names a configuration that is none"):
        secateur.load(path, trust=["foreign_layers", "os"])


def test_an_architecture_of_another_type_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a configuration with to_dict\(\), got 3"):
        secateur.save(Custom(), tmp_path / "model.cut", architecture=3)


def test_the_version_is_that_of_the_installed_package():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", secateur.__version__)


def test_counts_are_shown_in_one_line():
    shown = repr(count(secateur.prune(build_sibling(mlp(), SiblingConfig(init_quantile=0.5)))))
    assert re.fullmatch(
        r"Counts\(prunable=<\d+ of 256 weights kept in 2 tensors, [\d.]+×>, whole=<\d+ of 276 weights kept in "
        r"4 tensors, [\d.]+×>\)",
        shown,
    )
