"""Networks that do everything a forward pass may do."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Functional(nn.Module):
    """Convolutions, pools and linear layers, with everything between them as functions."""

    def __init__(self, flatten) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 3, stride=2)
        self.hidden, self.out = nn.Linear(8 * 2 * 2, 20), nn.Linear(20, 5)
        self.flatten = flatten

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.gelu(self.second(x), approximate="tanh")
        return self.out(self.hidden(self.flatten(x)).relu())


class Residual(nn.Module):
    def __init__(self, add, inplace: bool = True) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.down = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.relu, self.add = nn.ReLU(inplace), add

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_two(self.two(self.relu(self.norm_one(self.one(x)))))
        return self.relu(self.add(y, self.down(x)))


class Twice(nn.Module):
    """One module, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.out = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.layer(self.norm(self.layer(x)).relu())))


class ReadElsewhere(nn.Module):
    """A weight that the forward pass also reads by itself, before a batch norm that could be folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) + F.linear(x, self.layer.weight)


class TiedLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x)).relu())


class Branching(nn.Module):
    """What cannot be traced, of parts that can."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.odd, self.even = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.odd(x) if x.sum() > 0 else self.even(x)


class MaskedPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layer(x) if mask is None else self.layer(x) * mask


class BranchingWithMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.out = MaskedPart(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.part(x, torch.ones(6) if x.sum() > 1e9 else torch.zeros(6)))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor, y: Tensor, scale: float = 2.0, mask: Tensor | None = None):
        both = F.relu(self.left(x)) + self.right(y) * scale
        return {"sum": both if mask is None else both * mask, "parts": (self.left.bias, [both.mean()])}


class Tokens(nn.Module):
    """Layers over (samples, steps, features), flattened at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.out = nn.Linear(6, 12), nn.Linear(12, 6), nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.flatten(x + self.down(F.gelu(self.up(x))), 1))


class FlattenedTokens(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.each, self.out = nn.Linear(6, 4), nn.Linear(4 * steps, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.each(x).relu().flatten(1))


class Padded(nn.Module):
    """A transformer that is told what is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1]) >= lengths.abs().clamp(1, 4).round()
        return self.last(self.encoder(self.first(x), src_key_padding_mask=padding))


class PaddedByValue(Padded):
    """The same where nothing can be traced."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(x, lengths) if lengths.sum() > -1e9 else x


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x, x.flip(1))


class Answers(nn.Module):
    """Numbers, truths, infinities and a shape, in a structure."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, object]:
        y = self.second(F.relu(self.first(x)))
        masked = y.masked_fill(torch.tensor([True, False, False]), -torch.inf)
        return {"y": y, "is": [x > 0, x.shape[-1]], "masked": masked, "none": (masked * 0, None)}


class LayerByLayer(nn.Module):
    """A part that is not called as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body if x.sum() > -1e9 else ():
            x = layer(x)
        return x


class ByName(nn.Module):
    """An argument that can only be given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return self.first(x) if mask is None else self.first(x) * mask


class Query(nn.Module):
    """What is added to a layer's output has more samples than that."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.first, self.last = nn.Parameter(torch.randn(1, 6)), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(self.query) + x))


class Lines(nn.Sequential):
    def __init__(self) -> None:
        first = nn.Conv1d(3, 8, 5, 2, 2), nn.BatchNorm1d(8), nn.ReLU()
        second = nn.Conv1d(8, 6, 3, dilation=2), nn.GELU(), nn.MaxPool1d(2), nn.Conv1d(6, 6, 1, groups=2)
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(18, 4))


class LinesWithResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(6, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + x)


class SingleImage(nn.Module):
    """An image without a batch, whose channels are the samples of what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.out = nn.Conv2d(2, 3, 3), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.image(x).flatten(1))


class InPlace(nn.Module):
    """In-place operations whose results are not used, and inputs that change after a layer has read them."""

    def __init__(self, act) -> None:
        super().__init__()
        self.one, self.two, self.act = nn.Linear(6, 6), nn.Linear(6, 6), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self, x.clone())


def _unused_result(self: InPlace, x: Tensor) -> Tensor:
    y = self.one(x)
    F.relu_(y)
    y.mul_(2)
    return self.two(y)


def _changed_source(self: InPlace, x: Tensor) -> Tensor:
    y = self.one(x)
    x.add_(1)
    return self.two(F.relu(y)) + x


def _changed_other(self: InPlace, x: Tensor) -> Tensor:
    kept = x
    x += self.one(x)
    return self.two(x) + kept


def _changed_between(self: InPlace, x: Tensor) -> Tensor:
    y = F.relu(self.one(x))
    x.zero_()
    return self.two(y) + x


def _half_residual(self: InPlace, x: Tensor) -> Tensor:
    return self.two(self.one(x) + x.half())


class SamePadding(nn.Conv2d):
    """TensorFlow's padding, which depends on the size of the input."""

    def forward(self, x: Tensor) -> Tensor:
        missing = [
            max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            for size, stride, kernel in zip(x.shape[-2:], self.stride, self.kernel_size, strict=True)
        ]
        if max(missing) > 0:
            high, wide = missing
            x = F.pad(x, [wide // 2, wide - wide // 2, high // 2, high - high // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Scaled(nn.Linear):
    """A subclass that does more than its class."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class Products(nn.Module):
    """Linear layers that are not written as modules, and one called twice, by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.offset = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8))
        self.two, self.three = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(9, 5))
        self.layer, self.left = nn.Linear(4, 4), nn.Parameter(torch.randn(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(F.relu(x @ self.one + self.offset), self.two)
        y = torch.matmul(y, self.three[2:6].transpose(0, 1))
        y = self.layer(input=self.layer(y)) + F.linear(y, weight=self.layer.weight)
        return torch.matmul(self.left, y)


class Tied(nn.Module):
    """A head whose weight is that of the embedding, behind an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention = nn.Embedding(11, 6), nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x.abs().clamp(0, 10).long())
        return (y + self.attention(y, y, y, need_weights=False)[0]) @ self.words.weight.t()


class CrossAttention(nn.Module):
    """Attention over another tensor, with a mask and weights, steps first."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **sizes)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(x.shape[0], y.shape[0], dtype=torch.bool).triu(1)
        return self.attention(x, y, y, attn_mask=mask)


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 30), nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.dropout(F.dropout(self.one(x), 0.5, self.training), 0.5, training=self.training))


class NamesTaken(nn.Module):
    """Parts that are called what the compiled network would call its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sparse0, self.sparse1 = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.sparse1(self.sparse0(self.layer(x)))
