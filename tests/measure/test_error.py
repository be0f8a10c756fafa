import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from secateur.measure import answers_of_batches, error_of_batches, error_rate

ANSWERS = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 0, 9], [0, 9, 0]])  # top answers 0, 1, 2, 1


def test_one_wrong_answer_of_four_is_25_percent():
    assert error_rate(nn.Identity(), ANSWERS, torch.tensor([0, 1, 2, 2])) == 25.0


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("row", [[math.nan] * 3, [1.0, math.nan, 0.0], [9.0, 0.0, math.nan]])
def test_an_answer_with_a_nan_is_wrong_whatever_the_label(row, label):
    assert error_rate(nn.Identity(), torch.tensor([row]), torch.tensor([label])) == 100.0


def test_an_infinite_answer_may_be_right():
    assert error_rate(nn.Identity(), torch.tensor([[0.0, math.inf]]), torch.tensor([1])) == 0.0


@settings(max_examples=25)
@given(size=st.integers(1, 30), batch_size=st.integers(1, 40), seed=st.integers(0, 99))
def test_the_batch_size_changes_nothing(size, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    answers = torch.rand(size, 3, generator=generator)
    labels = torch.randint(3, (size,), generator=generator)
    tops = [row.index(max(row)) for row in answers.tolist()]
    wrong = sum(top != label for top, label in zip(tops, labels.tolist(), strict=True))
    assert error_rate(nn.Identity(), answers, labels, batch_size) == pytest.approx(100 * wrong / size)


def test_batches_are_read_one_at_a_time_and_count_by_their_size():
    read = []

    def batches():
        for rows, labels in (([0, 1, 2], [0, 1, 0]), ([3], [1])):
            read.append(len(rows))
            yield ANSWERS[rows], torch.tensor(labels)

    class Counting(nn.Module):
        def forward(self, x):
            assert sum(read) <= 4
            assert read[-1] == len(x)
            return x

    assert error_of_batches(Counting(), batches()) == 25.0
    assert read == [3, 1]


def test_no_batches_have_no_error_rate():
    with pytest.raises(ValueError, match="batches must not be empty"):
        error_of_batches(nn.Identity(), [])


class Spy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((len(x), self.training, torch.is_grad_enabled()))
        return x


def test_the_model_is_evaluated_without_gradients_and_put_back():
    model = nn.Sequential(Spy(), nn.Dropout(0.9), nn.Identity()).train()
    model[2].eval()
    assert error_rate(model, ANSWERS, torch.tensor([0, 1, 2, 1]), batch_size=3) == 0.0
    assert model[0].seen == [(3, False, False), (1, False, False)]
    assert [module.training for module in model.modules()] == [True, True, True, False]


def test_modes_are_put_back_after_a_failing_forward():
    model = nn.Sequential(nn.Linear(5, 5)).train()
    with pytest.raises(RuntimeError):
        error_rate(model, ANSWERS, torch.tensor([0, 1, 2, 1]))
    assert model.training
    assert model[0].training


def test_the_top_5_error_is_counted_with_more_than_ten_classes_only():
    scores = torch.arange(11.0).repeat(4, 1)
    scores[3, 0] = torch.nan
    found = answers_of_batches(nn.Identity(), [(scores, torch.tensor([10, 6, 5, 10]))])
    assert (found.error, found.top5_error) == (75.0, 50.0)
    assert answers_of_batches(nn.Identity(), [(scores[:, :10], torch.zeros(4))]).top5_error is None


def test_an_empty_set_has_no_error_rate():
    with pytest.raises(ValueError, match="empty"):
        error_rate(nn.Identity(), torch.ones(0, 3), torch.ones(0))


@pytest.mark.parametrize("labels", [torch.zeros(3), torch.zeros(4, 1), torch.zeros(4, 3)])
def test_labels_that_are_not_one_per_input_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        error_rate(nn.Identity(), ANSWERS, labels)


class FirstOnly(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:1]


@pytest.mark.parametrize("model", [nn.Flatten(0), nn.Unflatten(1, (3, 1)), FirstOnly()])
def test_answers_that_are_not_one_row_per_input_are_refused(model):
    with pytest.raises(ValueError, match="answers"):
        error_rate(model, ANSWERS, torch.zeros(4))


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(ValueError, match="batch_size"):
        error_rate(nn.Identity(), ANSWERS, torch.zeros(4), batch_size=0)


class Elsewhere(nn.Module):
    """A network on a device without memory, whose answers come back as scores."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, device="meta"))

    def forward(self, inputs):
        assert inputs.device.type == "meta"
        return torch.eye(len(inputs))


def test_inputs_are_moved_to_the_device_of_the_network():
    assert error_rate(Elsewhere(), torch.zeros(4, 2), torch.tensor([0, 1, 2, 2])) == 25
