"""The benchmark of a pretrained encoder, on a tiny random one."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from secateur import Budget, Pruner
from secateur.measure import count

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import sentence_encoder
from sentence_encoder import METHODS, Sentences, batches, distil, embed, spearman, split


class TinyEncoder(nn.Module):
    """Called as an encoder of transformers is, and with the same two parts."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(50, 12)
        self.encoder = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12), nn.LayerNorm(12))

    def forward(self, input_ids, attention_mask):
        states = self.embeddings(input_ids)
        there = attention_mask.unsqueeze(2).to(states.dtype)
        context = (states * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
        return SimpleNamespace(last_hidden_state=self.encoder(states + context))


@pytest.fixture
def teacher():
    torch.manual_seed(0)
    return TinyEncoder().eval().requires_grad_(False)


@pytest.fixture
def sentences():
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (40, 1), generator=generator)
    return Sentences(torch.randint(0, 50, (40, 8), generator=generator), (torch.arange(8) < lengths).long())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_its_share_of_the_weights_and_an_encoder_like_the_teacher(teacher, sentences, method):
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = distil(teacher, sentences, method, sparsity=0.5, steps=30, batch=8, lr=1e-3, seed=0)
    assert count(student.encoder).prunable.kept == 288
    assert (embed(student, sentences) * embed(teacher, sentences)).sum(1).mean() > 0.9
    assert student.state_dict().keys() == before.keys()
    assert torch.equal(student.embeddings.weight, before["embeddings.weight"])
    assert not torch.equal(student.encoder[0].weight, before["encoder.0.weight"])  # it was trained
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_a_budget_starts_with_the_function_of_the_pretrained_encoder(teacher, sentences):
    expected = embed(teacher, sentences)
    Pruner(teacher.encoder.requires_grad_(True), Budget(sparsity=0.8), steps=10)
    assert torch.equal(embed(teacher, sentences), expected)


def test_padding_does_not_change_an_embedding(teacher, sentences):
    alone = torch.cat([embed(teacher, sentences.rows(torch.tensor([row]))) for row in range(5)])
    assert_close(alone, embed(teacher, sentences)[:5])


def test_batches_are_a_function_of_the_seed_and_take_every_sentence_once_a_pass(sentences):
    def one_pass(seed):
        return torch.cat([rows for _, rows in zip(range(5), batches(sentences, 8, seed), strict=False)])

    assert torch.equal(one_pass(0).sort().values, torch.arange(40))
    assert torch.equal(one_pass(0), one_pass(0))
    assert not torch.equal(one_pass(0), one_pass(1))


def test_no_sentence_is_in_two_parts(monkeypatch):
    for name in ("HELD_OUT", "VALIDATION", "TRAINING"):
        monkeypatch.setattr(sentence_encoder, name, 10)
    parts = split([(0.0, f"sentence {i % 23}", f"sentence {i % 19}") for i in range(30)])
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert all(parts)


def test_spearman_gives_equal_values_their_mean_rank():
    found = spearman(torch.tensor([10.0, 20, 20, 70]), torch.tensor([0.1, 0.3, 0.2, 0.4]))
    assert found == pytest.approx(4.5 / (4.5 * 5) ** 0.5)  # ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4
