"""A compiled network is exported and compiled by torch with its sparse calls as operators."""

import io

import pytest
import torch
from compiled import chains
from torch import nn
from zoo import zoo

from secateur.run import OPERATOR, compile_sparse


def exported(compiled: nn.Module, inputs: tuple[torch.Tensor, ...], **options: object) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(compiled, inputs, **options)


@pytest.mark.parametrize(
    "name", ["functional, view", "residual, add", "lines", "encoder layer", "same padding", "depthwise"]
)
def test_an_exported_network_computes_the_same_with_sparse_operators(name, sparse_wins):
    model, inputs = zoo(name)
    compiled = compile_sparse(model, inputs)
    program = exported(compiled, inputs)
    operators = [node for node in program.graph.nodes if str(node.target).startswith(OPERATOR.replace("::", "."))]
    assert len(operators) == len(chains(compiled)) > 0
    with torch.no_grad():
        assert torch.equal(program.module()(*inputs), compiled(*inputs))


def test_an_exported_network_is_saved_and_takes_any_batch(sparse_wins):
    model, (x,) = zoo("functional, view")
    compiled, file = compile_sparse(model, x), io.BytesIO()
    torch.export.save(exported(compiled, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), file)
    file.seek(0)
    other = torch.randn(3, *x.shape[1:])
    with torch.no_grad():
        assert torch.equal(torch.export.load(file).module()(other), compiled(other))


def test_torch_compile_takes_a_compiled_network_without_graph_breaks(sparse_wins):
    model, inputs = zoo("functional, view")
    compiled = compile_sparse(model, inputs)
    with torch.no_grad():
        again = torch.compile(compiled, backend="eager", fullgraph=True)
        assert torch.equal(again(*inputs), compiled(*inputs))
