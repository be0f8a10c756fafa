"""`secateur.compress`: any network and any data in one call."""

import json
import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import secateur
from secateur import Budget, Recipe
from secateur.cli import main
from secateur.compress import importable
from secateur.results import RunError

HALF, FAST = Budget(ratio=2), Recipe(epochs=6, batch_size=16, lr=0.02, schedule="cosine")
CENTRES = torch.tensor([[3.0, 0, 0, 0, 0, 0], [0, 3, 0, 0, 0, 0], [0, 0, 3, 0, 0, 0]])


def points(number, seed):
    """Three clouds in six dimensions, of which three are noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (number,), generator=generator)
    return CENTRES[labels] + torch.randn(number, 6, generator=generator), labels


TRAIN, VALIDATION = TensorDataset(*points(96, 0)), TensorDataset(*points(48, 1))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.fixture(scope="module")
def trained():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        loss = functional.cross_entropy(model(TRAIN.tensors[0]), TRAIN.tensors[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def compressed(model, directory, train=TRAIN, validation=VALIDATION, **settings):
    defaults = {"budget": HALF, "epochs": 2, "progress": False, "page": False}
    return secateur.compress(model, train, validation, directory=directory, **(defaults | settings))


@pytest.fixture(scope="module")
def result(trained, tmp_path_factory):
    return compressed(trained, tmp_path_factory.mktemp("compress") / "run", test=VALIDATION, page=True)


# What comes back


def test_the_network_has_the_budget_and_its_own_class(result, trained):
    assert type(result.model) is type(trained)
    assert list(result.model.state_dict()) == list(trained.state_dict())
    assert result.ratio >= 2
    assert not result.model.training


def test_the_file_holds_the_network(result):
    again = secateur.load(result.path, network(1))
    assert_close(again(TRAIN.tensors[0]), result.model(TRAIN.tensors[0]), rtol=0, atol=0)
    assert result.path.stat().st_size == result.bytes


def test_the_given_network_is_left_alone(trained, tmp_path):
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    compressed(trained, tmp_path / "run")
    assert_close(trained.state_dict(), before, rtol=0, atol=0)


def test_the_dense_error_is_that_of_the_given_network(result, trained):
    wrong = trained(VALIDATION.tensors[0]).argmax(1) != VALIDATION.tensors[1]
    assert result.dense_error == pytest.approx(100 * wrong.double().mean().item())


def test_the_error_is_that_of_the_file(result):
    wrong = result.model(VALIDATION.tensors[0]).argmax(1) != VALIDATION.tensors[1]
    assert result.error == pytest.approx(100 * wrong.double().mean().item())


def test_a_network_that_was_not_trained_has_no_dense_error(tmp_path):
    assert math.isnan(compressed(network(), tmp_path / "run", recipe=FAST, epochs=None).dense_error)


def test_it_says_its_numbers_in_one_line(result):
    said = f"{result.ratio:.1f}× fewer weights, {result.bytes:,} bytes, validation error % {result.dense_error:.2f} → "
    assert str(result).startswith(said)


def test_without_quantisation_weights_keep_their_values(trained, tmp_path):
    found = compressed(trained, tmp_path / "run", quantize=False)
    assert [method.name for method in found.result.job.methods] == ["budget"]


def test_a_budget_of_bytes_is_kept(trained, tmp_path):
    assert compressed(trained, tmp_path / "run", budget=Budget(bytes=420), epochs=6).bytes <= 420


# The run that is left


def test_the_run_has_a_page_and_its_test_error(result):
    directory = result.path.parent
    assert "Sequential" in (directory / "report.html").read_text()
    assert set(json.loads((directory / "test.json").read_text())["errors"]) == {"dense", "file"}


@pytest.mark.parametrize("command", ["report", "evaluate"])
def test_commands_understand_the_run(result, command, capsys):
    assert main([command, str(result.path.parent)]) == 0


def test_a_finished_run_is_tested_once_test_data_are_given(trained, tmp_path, monkeypatch):
    compressed(trained, tmp_path / "run")
    assert not (tmp_path / "run" / "test.json").exists()
    monkeypatch.setattr(sys.modules["secateur.compress"], "carry_out", pytest.fail)
    compressed(trained, tmp_path / "run", resume=True, test=VALIDATION)
    assert (tmp_path / "run" / "test.json").exists()
    monkeypatch.setattr(sys.modules["secateur.compress"], "_test", pytest.fail)
    compressed(trained, tmp_path / "run", resume=True, test=VALIDATION)


def test_without_test_data_evaluate_says_how_to_give_them(trained, tmp_path, capsys):
    directory = compressed(trained, tmp_path / "run").path.parent
    assert main(["evaluate", str(directory)]) == 1
    assert "secateur.compress(…, test=…)" in capsys.readouterr().err


def test_a_finished_run_is_returned_as_it_is(result, trained):
    again = compressed(trained, result.path.parent, train=Breaking(TRAIN, after=2))
    assert_close(again.model.state_dict(), result.model.state_dict(), rtol=0, atol=0)


def test_the_directory_of_another_network_is_refused(result):
    with pytest.raises(RunError, match="other settings"):
        compressed(network(1), result.path.parent)


class Breaking(Dataset):
    """A data set that fails after so many samples."""

    def __init__(self, whole, after):
        self.whole, self.left = whole, after

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, index):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.whole[index]


@pytest.mark.parametrize("as_loader", [False, True])
def test_a_killed_run_resumes_bit_for_bit(trained, tmp_path, as_loader):
    def data(samples):
        return DataLoader(samples, 32, shuffle=True) if as_loader else samples

    whole = compressed(trained, tmp_path / "whole", data(TRAIN), epochs=6)
    with pytest.raises(KeyboardInterrupt):
        compressed(trained, tmp_path / "run", data(Breaking(TRAIN, after=300)), epochs=6)
    with pytest.raises(RunError, match="unfinished run"):
        compressed(trained, tmp_path / "run", data(TRAIN), epochs=6)
    resumed = compressed(trained, tmp_path / "run", data(TRAIN), epochs=6, resume=True)
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


# Data and losses of every kind


class Mapped(Dataset):
    """Samples as mappings, with a name that no network takes."""

    def __len__(self):
        return len(TRAIN)

    def __getitem__(self, index):
        x, labels = TRAIN[index]
        return {"x": x, "labels": labels, "number": index}


class OwnLoss(nn.Module):
    """Returns its loss with its scores, as networks of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x, labels=None):
        scores = self.inner(x)
        return {"loss": functional.cross_entropy(scores, labels), "logits": scores}


def test_a_network_with_a_loss_of_its_own_learns_from_mappings(tmp_path):
    found = compressed(OwnLoss(), tmp_path / "run", Mapped(), Mapped(), recipe=FAST, epochs=None)
    assert found.result.measure == "error %"
    assert found.error < 40


def test_a_regression_is_measured_by_its_loss(tmp_path):
    model = nn.Linear(6, 6)
    pairs = [(batch, batch) for batch in TRAIN.tensors[0].split(32)]
    found = compressed(model, tmp_path / "run", pairs, pairs, loss=functional.mse_loss, epochs=3)
    assert found.result.measure == "loss"
    expected = functional.mse_loss(found.model(TRAIN.tensors[0]), TRAIN.tensors[0])
    assert found.error == pytest.approx(expected.item(), rel=1e-4)


def test_an_error_of_the_caller_is_what_is_measured(trained, tmp_path):
    found = compressed(trained, tmp_path / "run", error=lambda model: float(count_zeros(model)))
    assert found.error == count_zeros(found.model)


def count_zeros(model):
    return sum(int((parameter == 0).sum()) for parameter in model.parameters())


def test_a_teacher_needs_no_labels(trained, tmp_path):
    batches = list(TRAIN.tensors[0].split(32))
    found = compressed(trained, tmp_path / "run", batches, batches, teacher=trained, epochs=4)
    assert found.dense_error == 0
    assert 0 < found.error < 5


def test_the_recipe_of_the_caller_is_used(trained, tmp_path):
    recipe = Recipe(epochs=7, optimizer="sgd", lr=0.05, batch_size=48)
    found = compressed(trained, tmp_path / "run", recipe=recipe, epochs=None)
    assert found.result.job.recipe == recipe


# What is refused, before a directory is made


class Endless(IterableDataset):
    def __iter__(self):
        yield from TRAIN


class Unpicklable(Dataset):
    def __init__(self):
        self.read = lambda index: TRAIN[index]

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.read(index)


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch's own, before it raises
@pytest.mark.parametrize(
    ("train", "said"),
    [
        ([], "train yields no batch"),
        (TensorDataset(torch.empty(0, 6), torch.empty(0, dtype=torch.int64)), "train is empty"),
        (iter([(1, 2)]), "train must be a DataLoader, a data set with a length, or a list of batches"),
        (DataLoader(Endless(), 4), "train has no length"),
        ([(torch.rand(4, 5), torch.zeros(4, dtype=torch.int64))], r"the network fails on a batch of train, \(float32"),
        ([(torch.full((4, 6), math.nan), torch.zeros(4, dtype=torch.int64))], "the loss of the first batch of train"),
        ([torch.rand(4, 6)], "the batches have no labels"),
        (
            DataLoader(Unpicklable(), 4, num_workers=1, multiprocessing_context="spawn"),
            "train cannot be sent to worker processes",
        ),
    ],
)
def test_data_that_cannot_be_used_are_refused(tmp_path, train, said):
    with pytest.raises(ValueError, match=said):
        compressed(network(), tmp_path / "run", train)
    assert not (tmp_path / "run").exists()


def test_a_budget_that_cannot_be_met_is_refused_before_training(trained, tmp_path):
    with pytest.raises(ValueError, match="is the most"):
        compressed(trained, tmp_path / "run", budget=Budget(ratio=500))
    assert not (tmp_path / "run").exists()


# What the file says about the network


class Plain(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, width)


def test_a_class_that_takes_no_arguments_is_recorded():
    assert importable(Plain()) == (f"{__name__}:Plain", {})


def test_a_network_of_another_size_than_its_class_builds_is_not():
    assert importable(Plain(5)) is None


class Failing(Plain):
    def __init__(self, width=None):
        super().__init__(width + 1)


def test_a_class_that_cannot_be_built_without_arguments_is_not():
    assert importable(Failing(3)) is None


def test_a_class_within_a_function_is_not():
    class Local(nn.Linear):
        pass

    assert importable(Local(2, 2)) is None
