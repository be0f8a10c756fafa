"""Small networks of every kind of layer, and two steps of training for them."""

import torch
from torch import Tensor, nn

import secateur


class Tied(nn.Module):
    """A language model in miniature: embedding and head are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(tokens)))).mean(1)


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(5, 7, num_layers=2, bidirectional=True)
        self.head = nn.Linear(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0].mean(0))


class Custom(nn.Module):
    """A layer nobody knows, with a matrix under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 5))
        self.offset = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix.T + self.offset


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.ConvTranspose2d(6, 4, 2),
        nn.Flatten(),
        nn.Linear(4 * 5 * 5, 4),
    )


CASES = {
    "mlp": (mlp, lambda: torch.randn(9, 12)),
    "convolutional": (convolutional, lambda: torch.randn(9, 2, 6, 6)),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 6, 3), nn.ConvTranspose1d(6, 3, 2, groups=3), nn.Flatten(), nn.Linear(21, 4)
        ),
        lambda: torch.randn(9, 2, 8),
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.ConvTranspose3d(4, 2, 2), nn.Flatten(), nn.Linear(54, 4)),
        lambda: torch.randn(9, 2, 3, 3, 3),
    ),
    "tied": (Tied, lambda: torch.randint(0, 11, (9, 3))),
    "attention": (Attention, lambda: torch.randn(9, 3, 8)),
    "attention with separate projections": (lambda: Attention(kdim=8, vdim=8), lambda: torch.randn(9, 3, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(3, 9, 5)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(3, 9, 5)),
}


def train(sibling: nn.Module, inputs: Tensor, steps: int = 2, lr: float = 1e-2, rho: float = 1e-1) -> None:
    """Take a few steps of the paper's objective towards random labels."""
    optimizer = torch.optim.Adam(secateur.parameter_groups(sibling, lr=lr, rho=rho, lambda_wd=1e-4))
    for _ in range(steps):
        outputs = sibling(inputs)
        labels = torch.arange(len(outputs)) % outputs.shape[1]
        loss = nn.functional.cross_entropy(outputs, labels) + secateur.penalty(sibling, 1e-2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
