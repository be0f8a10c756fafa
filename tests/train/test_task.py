from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from secateur.train.task import Task, answer, labels_of, moved, samples_in, scores_of

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Named(nn.Module):
    """Takes arguments by name, and returns a loss of its own where it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def test_a_pair_is_input_and_labels(linear):
    assert_close(Task()(linear, (X, Y)), functional.cross_entropy(linear(X), Y))


def test_a_list_serves_as_a_tuple(linear):
    assert_close(Task()(linear, [X, Y]), Task()(linear, (X, Y)))


def test_all_but_the_last_part_of_a_tuple_are_inputs():
    model = nn.Bilinear(4, 4, 3)
    assert_close(Task()(model, (X, X, Y)), functional.cross_entropy(model(X, X), Y))


def test_a_tensor_is_an_input_without_labels(linear):
    assert labels_of(X) is None
    assert_close(Task(lambda output, labels: output.square().mean())(linear, X), linear(X).square().mean())


def test_a_tuple_of_one_is_an_input_without_labels(linear):
    assert labels_of((X,)) is None
    assert_close(answer(linear, (X,)), linear(X))


def test_the_loss_that_a_network_returns_is_used():
    model = Named()
    assert_close(Task()(model, {"x": X, "labels": Y}), functional.cross_entropy(model.layer(X), Y))


def test_names_that_a_network_does_not_take_are_left_out():
    model = Named()
    assert_close(Task()(model, {"x": X, "labels": Y, "sentence": ["a"] * 6}), Task()(model, {"x": X, "labels": Y}))


def test_labels_under_another_name_are_compared_with_the_scores():
    model = Named()
    assert_close(Task()(model, {"x": X, "label": Y}), functional.cross_entropy(model.layer(X), Y))


def test_a_number_that_a_network_returns_is_its_loss():
    class OwnLoss(nn.Module):
        def forward(self, x):
            return x.square().mean()

    assert_close(Task()(OwnLoss(), X), X.square().mean())


def test_a_loss_of_the_caller_takes_output_and_labels(linear):
    assert_close(Task(functional.multi_margin_loss)(linear, (X, Y)), functional.multi_margin_loss(linear(X), Y))


# Distillation


def test_a_teacher_equal_to_the_student_adds_nothing(linear):
    assert_close(Task(teacher=linear)(linear, (X, Y)), Task()(linear, (X, Y)))


def test_a_teacher_adds_the_divergence_at_temperature_two(linear):
    teacher = nn.Linear(4, 3)
    p, q = ((model(X) / 2).softmax(1) for model in (teacher, linear))
    divergence = (p * (p / q).log()).sum(1).mean()
    assert_close(Task(teacher=teacher)(linear, (X, Y)), Task()(linear, (X, Y)) + 4 * divergence)


def test_without_labels_a_teacher_is_copied(linear):
    teacher = nn.Linear(4, 3)
    assert_close(Task(teacher=teacher)(linear, X), (teacher(X) - linear(X)).square().mean())


def test_a_loss_of_the_caller_gets_the_output_of_the_teacher(linear):
    teacher = nn.Linear(4, 3)
    seen = Task(lambda output, labels, known: known.sum() + 0 * output.sum(), teacher)(linear, (X, Y))
    assert_close(seen, teacher(X).sum())


def test_no_gradient_reaches_the_teacher(linear):
    teacher = nn.Linear(4, 3)
    Task(teacher=teacher)(linear, (X, Y)).backward()
    assert teacher.weight.grad is None
    assert linear.weight.grad is not None


# What is refused


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (X, "the batches have no labels"),
        ((X, X[:, 0]), "cross-entropy needs the numbers of classes as labels, got torch.float32"),
        ({"y": X}, "a batch has y, and the network takes"),
        (7, "a batch must be a tensor, a tuple of inputs and labels, or a mapping, got int"),
        ((), "a batch must be a tensor"),
    ],
)
def test_batches_that_do_not_fit_are_refused(linear, batch, said):
    with pytest.raises(ValueError, match=said):
        Task()(linear, batch)


def test_a_loss_of_several_numbers_is_refused(linear):
    with pytest.raises(ValueError, match=r"one number in a tensor, got shape \(6,\)"):
        Task(lambda output, labels: output.sum(1))(linear, (X, Y))


def test_a_teacher_of_another_shape_is_refused(linear):
    with pytest.raises(ValueError, match=r"the teacher returns a tensor of shape \(6, 5\)"):
        Task(teacher=nn.Linear(4, 5))(linear, (X, Y))


def test_an_output_without_scores_is_refused():
    with pytest.raises(ValueError, match="SimpleNamespace, in which no scores are known"):
        scores_of(SimpleNamespace(hidden=X))


# Batches of any kind


@pytest.mark.parametrize("batch", [X, (X, Y), [X, Y], {"x": X, "labels": Y}, {"text": ["a"] * 6, "x": X}])
def test_samples_are_counted_along_the_first_dimension(batch):
    assert samples_in(batch) == 6


def test_a_batch_without_tensors_has_no_samples():
    with pytest.raises(ValueError, match="no tensor"):
        samples_in({"text": ["a"]})


def test_moving_keeps_what_is_no_tensor():
    batch = moved({"x": X, "more": (Y, ["a"])}, torch.device("meta"))
    assert batch["x"].is_meta
    assert batch["more"][0].is_meta
    assert batch["more"][1] == ("a",)
