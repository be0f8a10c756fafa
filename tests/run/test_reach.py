"""Every matrix is found by what is computed with it, and the plan says why others stay dense."""

import pickle

import pytest
import torch
from compiled import chains, sparsened
from torch import Tensor, nn
from zoo import zoo

from secateur.run import Plan, compile_sparse

NAMES = {
    "same padding": {"0", "3"},
    "uneven padding": {"1", "3"},
    "subclass": {"0", "2"},
    "products": {"one", "two", "three", "layer", "layer@2", "layer@3", "left"},
    "Hugging Face's Conv1D": {"0", "2"},
    "tied head": {"words", "attention.in_proj", "attention.out_proj"},
    "attention": {"q_proj", "k_proj", "v_proj", "out_proj"},
    "cross-attention": {f"attention.{name}_proj" for name in ("q", "k", "v", "out")},
    "encoder layer": {"self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"},
    "called twice": {"layer", "layer@2", "out"},
    "read elsewhere": {"layer", "layer@2"},
    "one convolution": {"0"},
}


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_runs_sparse(name, sparse_wins):
    model, inputs = zoo(name)
    compiled = compile_sparse(model, inputs)
    assert {layer for chain in chains(compiled) for layer in chain.names} == NAMES[name]
    assert compiled.plan.dense == {}


def test_a_layer_that_pads_by_the_size_of_its_input_refuses_another_size(sparse_wins):
    model, inputs = zoo("same padding")
    with pytest.raises(ValueError, match=r'"0" pads its input by its size and was compiled for \(3, 9, 8\)'):
        compile_sparse(model, inputs)(torch.randn(2, 3, 10, 8))


def test_a_mask_of_truths_is_read_the_same_after_pickling(sparse_wins):
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]

    model, x, mask = sparsened(Masked()).eval(), torch.randn(3, 5, 6), torch.arange(5) >= torch.tensor([[2], [5], [4]])
    compiled = compile_sparse(model, (x, mask))
    assert chains(compiled)
    with torch.no_grad():
        torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(x, mask), model(x, mask))


class Mixed(nn.Module):
    """Weights that stay dense, each for another reason."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.hooked, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.words, self.cell, self.last = nn.Embedding(5, 6), Cell(), nn.Linear(6, 6)
        self.hooked.register_forward_hook(lambda *_: None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hooked(self.full(x)) + self.words(torch.zeros(x.shape[0], dtype=torch.long))
        return self.last(self.cell(x))


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if x.sum() > -1e9 else x


def test_the_plan_says_why_a_weight_stays_dense(sparse_wins):
    model = sparsened(Mixed())
    nn.init.ones_(model.full.weight)
    plan = compile_sparse(model, torch.randn(4, 6)).plan
    assert plan.dense.keys() == {"full", "hooked", "unused", "words", "cell"}
    assert plan.dense["full"] == "too dense: 100% of its weights are left"
    assert plan.dense["hooked"] == "has hooks"
    assert plan.dense["unused"] == "not called by the example"
    assert plan.dense["words"] == "not a product of an input and a weight: Embedding reads it"
    assert plan.dense["cell"].startswith('not traceable: "cell": symbolically traced variables cannot be used')
    assert plan.dense["cell"].endswith("(test_reach.py, line 79)")
    assert Plan.from_json(plan.to_json()) == plan


def test_where_sparse_is_not_faster_the_plan_says_so(dense_wins):
    model = sparsened(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    plan = compile_sparse(model, torch.randn(4, 6)).plan
    assert plan.dense.keys() == {"0", "2"}
    assert all(why.startswith(("too small: ", "not faster: ")) for why in plan.dense.values())


class Shared(nn.Module):
    """A part that cannot be traced, and calls its layers by keyword, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(input=self.one(input=x)) if x.sum() > -1e9 else x
        return self.two(input=x)


def test_layers_called_by_keyword_and_twice_run_sparse_where_nothing_can_be_traced(sparse_wins):
    model, x = sparsened(Shared()), torch.randn(4, 6)
    compiled = compile_sparse(model, {"x": x})
    assert {layer for chain in chains(compiled) for layer in chain.names} == {"one", "two"}
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
