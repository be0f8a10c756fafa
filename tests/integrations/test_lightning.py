"""The callback for Lightning, with the real package; without it these tests are skipped."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import secateur
from secateur import Budget
from secateur.functions.solved_threshold import solved_thresholds
from secateur.measure import count

lightning = pytest.importorskip("lightning", reason="needs Lightning: make frameworks")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402  (after the skip)

from secateur.integrations.lightning import Pruning  # noqa: E402  (after the skip)

# Lightning's own warnings, of torch's and of a folder to resume from.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:Checkpoint directory .* not empty")
EPOCHS = 4


class Killed(Exception):
    """What ends a training in the middle."""


class KillIn(lightning.Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == self.epoch and batch_idx == 2:
            raise Killed


class Classifier(lightning.LightningModule):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch, index):
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Sibling(Classifier):
    """The paper's form: thresholds from the constructor, groups in `configure_optimizers`."""

    def __init__(self, seed=0):
        super().__init__(seed)
        secateur.build_sibling(self)

    def configure_optimizers(self):
        return torch.optim.Adam(secateur.parameter_groups(self, lr=1e-2, rho=0.1, lambda_wd=1e-4))


def batches():
    x = torch.randn(48, 12, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :3].argmax(1)), batch_size=8)


def trainer(folder, *callbacks, **options):
    options = {"max_epochs": EPOCHS, "log_every_n_steps": 6, **options}
    return lightning.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, ModelCheckpoint(folder, filename="{epoch}", save_last=True)],
        **options,
    )


def fit(module, folder, *callbacks, resume=None, **options):
    done = trainer(folder, *callbacks, **options)
    done.fit(module, batches(), ckpt_path=resume, weights_only=True if resume else None)
    return done


def same_bits(one, other):
    one, other = one.state_dict(), other.state_dict()
    return list(one) == list(other) and all(torch.equal(one[key], other[key]) for key in one)


def test_the_module_is_plain_again_and_meets_its_budget(tmp_path):
    module = Classifier()
    keys = list(module.state_dict())
    fit(module, tmp_path, Pruning(Budget(ratio=5)))
    totals = count(module).prunable
    assert totals.kept == totals.weights // 5
    assert (type(module), list(module.state_dict())) == (Classifier, keys)
    assert not any(hasattr(each, "parametrizations") for each in module.modules())


@pytest.mark.parametrize("budget", [Budget(ratio=5), Budget(bytes=900)], ids=["ratio", "bytes"])
def test_a_killed_training_resumes_to_the_same_bits(tmp_path, budget):
    whole, resumed = Classifier(), Classifier(seed=7)
    fit(whole, tmp_path / "whole", Pruning(budget))
    with pytest.raises(Killed):
        fit(Classifier(), tmp_path / "killed", Pruning(budget), KillIn(epoch=2))
    fit(resumed, tmp_path / "killed", Pruning(budget), resume=tmp_path / "killed" / "last.ckpt")
    assert same_bits(resumed, whole)
    assert count(whole).prunable.ratio > 2


def test_thresholds_move_once_for_a_step_of_the_optimizer(tmp_path):
    seen = []

    class Spy(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, *batch):
            seen.append(int(next(iter(solved_thresholds(pl_module).values())).counts[0]))

    fit(Classifier(), tmp_path, Pruning(Budget(ratio=5)), Spy(), accumulate_grad_batches=4, max_epochs=2)
    assert seen == [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4]


def test_the_log_has_the_ratio_the_weights_kept_and_the_multiplier(tmp_path):
    module = Classifier()
    logged = fit(module, tmp_path, Pruning(Budget(ratio=5))).logged_metrics
    assert logged["pruning/kept"] == count(module).prunable.kept
    assert logged["pruning/ratio"] == pytest.approx(5, rel=1e-2)
    assert logged["pruning/multiplier"] != 0


def test_a_checkpoint_is_that_of_the_plain_module_with_its_zeros(tmp_path):
    module = Classifier()
    fit(module, tmp_path, Pruning(Budget(ratio=5)))
    read = Classifier.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert same_bits(read, module)


def test_the_papers_form_takes_the_steps_of_the_same_loop_by_hand(tmp_path):
    class Recorded(lightning.Callback):
        def on_train_end(self, trainer, pl_module):
            self.state = {name: value.clone() for name, value in pl_module.state_dict().items()}

    recorded, other = Recorded(), Sibling()
    fit(Sibling(), tmp_path, Pruning(lambda_t=1e-2), recorded, max_epochs=2, accumulate_grad_batches=2)
    optimizer = other.configure_optimizers()
    for _ in range(2):
        for index, batch in enumerate(batches()):
            (other.training_step(batch, index) / 2 + secateur.penalty(other, 1e-2 / 2)).backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(recorded.state[name], value, rtol=1e-4, atol=1e-6)


def test_the_papers_form_resumes_to_the_same_bits_and_ends_plain(tmp_path):
    whole, resumed = Sibling(), Sibling(seed=7)
    fit(whole, tmp_path / "whole", Pruning(lambda_t=1e-2))
    with pytest.raises(Killed):
        fit(Sibling(), tmp_path / "killed", Pruning(lambda_t=1e-2), KillIn(epoch=2))
    fit(resumed, tmp_path / "killed", Pruning(lambda_t=1e-2), resume=tmp_path / "killed" / "last.ckpt")
    assert same_bits(resumed, whole)
    assert list(whole.state_dict()) == list(Classifier().state_dict())
    assert count(whole).prunable.ratio > 1.05


@pytest.mark.parametrize(
    ("module", "options", "said"),
    [
        (Classifier, {}, "is not a sibling: call secateur.build_sibling"),
        (Sibling, {"gradient_clip_val": 0.5}, "clipped at 0.5, those of thresholds too"),
    ],
)
def test_the_papers_form_says_what_is_missing(tmp_path, module, options, said):
    with pytest.raises(ValueError, match=said):
        fit(module(), tmp_path, Pruning(lambda_t=1e-2), **options)


def test_a_training_without_an_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a budget needs the number of all steps"):
        fit(Classifier(), tmp_path, Pruning(Budget(ratio=5)), max_epochs=-1)


def test_a_training_that_ends_early_is_cut_with_a_warning(tmp_path):
    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, *batch):
            trainer.should_stop = trainer.global_step >= 7

    with pytest.warns(UserWarning, match="that of step .* of 24: .* weights are kept, and .* asks for"):
        fit(Classifier(), tmp_path, Pruning(Budget(ratio=5)), Stop())
