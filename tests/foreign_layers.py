"""Layers as other libraries have them: the same names, tensors and forward passes, without the libraries."""

import torch
from torch import Tensor, nn


class Conv1D(nn.Module):
    """Hugging Face's linear layer of GPT-2, which stores its weight as (inputs, outputs)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.3)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.shape[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(size)


class MixtureExperts(nn.Module):
    """All experts of a mixture, each matrix of all of them in one tensor."""

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, width, inner) * 0.3)
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(experts, inner))
        self.down_proj = nn.Parameter(torch.randn(experts, inner, width) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(torch.einsum("bw,ewi->ebi", x, self.gate_up_proj) + self.gate_up_proj_bias[:, None])
        return torch.einsum("ebi,eiw->bw", inner, self.down_proj)


class Config:
    """A configuration as Hugging Face has it: data, and a way there and back."""

    def __init__(self, width: int = 4, outputs: int = 2) -> None:
        self.width, self.outputs = width, outputs

    def to_dict(self) -> dict[str, int]:
        return {"width": self.width, "outputs": self.outputs}

    @classmethod
    def from_dict(cls, data: dict[str, int]) -> "Config":
        return cls(**data)


class Configured(nn.Module):
    """A model that is built from a configuration and called by name."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.body = nn.Linear(config.width, 64)
        self.head = nn.Linear(64, config.outputs)

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        out = self.head(torch.relu(self.body(ids)))
        return scale * (out if mask is None else out * mask)


def gpt() -> nn.Sequential:
    """A transformer's feed-forward part with Conv1D, and a linear head."""
    return nn.Sequential(Conv1D(16, 12), nn.ReLU(), Conv1D(12, 16), nn.Linear(12, 4))


def mixture() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 8), MixtureExperts(3, 8, 6), nn.Linear(8, 4))
