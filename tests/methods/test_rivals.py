"""Methods of other packages, which stand-ins with the same interface take the place of here."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from small_training import carry_out, small_network
from torch import nn

from secateur.measure import count
from secateur.methods.nncf_rb import NncfRb
from secateur.methods.pquant import PquantAutoSparse, PquantDst
from secateur.train.recipe import Recipe


class Layer(nn.Module):
    """A threshold of 0.1 for each output, or a score for each weight, as both packages have them."""

    def __init__(self, *given):
        super().__init__()
        self.epochs = []
        if len(given) == 1:
            self.mask = nn.Parameter(torch.arange(float(torch.Size(given[0]).numel())).view(given[0]) - 3)

    def build(self, shape):
        self.threshold = nn.Parameter(torch.full((shape[0], 1), 0.1))

    def post_pre_train_function(self):
        self.is_ready = True

    def post_epoch_function(self, epoch, epochs):
        self.epochs.append((epoch, epochs))

    def calculate_additional_loss(self):
        return (-self.threshold).exp().sum()

    def loss(self):
        return torch.sigmoid(self.mask)

    def forward(self, weight):
        return weight * (torch.sigmoid(self.mask) if hasattr(self, "mask") else 1 - self.threshold.mean())


@pytest.fixture
def stand_ins(monkeypatch):
    layers = {"RBPruningMask": Layer, "DST": Layer, "AutoSparse": Layer}
    settings = {"dst_config": SimpleNamespace, "autosparse_config": SimpleNamespace}
    methods = "pquant.core.torch.pruning_methods"
    names = ("nncf", "nncf.torch.function_hook.pruning.rb.modules", "pquant", f"{methods}.dst", f"{methods}.autosparse")
    for name in names:
        module = ModuleType(name)
        vars(module).update(layers, **settings, __spec__=ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("KERAS_BACKEND", "torch")


@pytest.mark.parametrize("kind", [NncfRb, PquantDst, PquantAutoSparse])
def test_a_rival_is_trained_and_cut_to_the_ratio(kind, stand_ins):
    torch.manual_seed(0)
    model, stages = small_network(), []
    finished = carry_out(kind(ratio=8), model, stages.append)
    assert [stage.phase for stage in stages] == ["train", "fine-tune"]
    assert count(finished).prunable.kept == 840 // 8
    assert list(finished.state_dict()) == list(small_network().state_dict())


def test_masks_of_nncf_are_asked_for_a_share_of_zeros_that_rises(stand_ins):
    stage = next(NncfRb(ratio=10, ramp=0.5).stages(small_network(), Recipe(epochs=2)))
    [*_, function] = [module for module in stage.model.modules() if hasattr(module, "pressure")]
    found = []
    for done in (0, 25, 50, 100):
        stage.between(done, 100)
        found.append(float(function.pressure))
    assert found == pytest.approx([0, 0.9 * (1 - 0.5**3), 0.9, 0.9])


@pytest.mark.parametrize("kind", [NncfRb, PquantDst, PquantAutoSparse])
def test_a_missing_package_is_one_sentence(kind, monkeypatch):
    monkeypatch.setattr("secateur.methods.rivals.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f'method "{kind.name}" needs .* not installed: pip install'):
        kind().check(small_network())


def test_another_version_of_a_package_is_one_sentence(stand_ins, monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf.torch.function_hook.pruning.rb.modules", None)
    with pytest.raises(ValueError, match=r'method "nncf-rb" cannot use the nncf that is installed'):
        next(NncfRb().stages(small_network(), None))
