"""AlexNet, as the pruning papers use it (paper, table 2)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 227, 227)
_NEIGHBOURS, _ALPHA = 5, 1e-4  # of the normalisation across channels


class AlexNet(nn.Module):
    """Five convolutions and three linear layers: 60,954,656 weights and 10,568 biases.

    This is Caffe's variant of Krizhevsky's network, the one pruning papers mean: 227×227 pixels, conv2, conv4 and
    conv5 in two groups (once one per GPU), normalisation across channels before the first two poolings.
    torchvision's network of that name differs (64 filters in conv1, no groups, 61,090,496 weights).
    """

    def __init__(self, classes: int = 1000, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.conv1 = nn.Conv2d(3, 96, 11, stride=4)
        self.conv2 = nn.Conv2d(96, 256, 5, padding=2, groups=2)
        self.conv3 = nn.Conv2d(256, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 384, 3, padding=1, groups=2)
        self.conv5 = nn.Conv2d(384, 256, 3, padding=1, groups=2)
        self.fc6 = nn.Linear(9216, 4096)
        self.drop6 = nn.Dropout()
        self.fc7 = nn.Linear(4096, 4096)
        self.drop7 = nn.Dropout()
        self.fc8 = nn.Linear(4096, classes)
        self._init_gaussian_()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, 3, 227, 227) to logits (images, classes)."""
        x = F.max_pool2d(_normalize(F.relu(self.conv1(x))), 3, 2)
        x = F.max_pool2d(_normalize(F.relu(self.conv2(x))), 3, 2)
        x = F.relu(self.conv3(x))
        x = F.relu(self.conv4(x))
        x = F.max_pool2d(F.relu(self.conv5(x)), 3, 2)
        x = self.drop6(F.relu(self.fc6(x.flatten(1))))
        x = self.drop7(F.relu(self.fc7(x)))
        logits: Tensor = self.fc8(x)
        return logits

    def _init_gaussian_(self) -> None:
        """Draw the weights as Caffe does; the biases that Krizhevsky set to 1 are 0.1 there."""
        for name, layer in self.named_children():
            if not isinstance(layer, nn.Linear | nn.Conv2d):
                continue
            assert layer.bias is not None
            nn.init.normal_(layer.weight, std=0.005 if name in ("fc6", "fc7") else 0.01)
            nn.init.constant_(layer.bias, 0.0 if name in ("conv1", "conv3", "fc8") else 0.1)


def _normalize(x: Tensor) -> Tensor:
    """Divide by (1 + 1e-4 · mean of the squares of 5 neighbouring channels) to the power ¾."""
    is_transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if isinstance(x, Tensor) and x.requires_grad and x.is_cpu and not is_transformed:
        normalized: Tensor = _TrainedNormalize.apply(x)  # type: ignore[no-untyped-call]  # torch's stubs
        return normalized
    return F.local_response_norm(x, _NEIGHBOURS, alpha=_ALPHA, beta=0.75, k=1.0)


class _TrainedNormalize(torch.autograd.Function):
    """The same with a backward pass in closed form: forward and backward take a fifth of torch's time on the CPU.

    y = x·s^(−¾) with s = 1 + B·x², where the matrix B adds up neighbouring channels: a convolution of one pixel. Its
    transpose is itself, so ∂L/∂x = g·s^(−¾) − (3/2)·x·B·(g·x·s^(−7/4)) for the gradient g of the loss by y. Everything
    has the type of x: in bfloat16 the result is off by a few units in the last place, as that of any layer is.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        channel = torch.arange(x.shape[1])
        near = (channel[:, None] - channel).abs() <= _NEIGHBOURS // 2
        band = (near * (_ALPHA / _NEIGHBOURS)).to(x.dtype).view(len(near), -1, 1, 1)
        s = F.conv2d(x.square(), band, torch.ones(len(near), dtype=x.dtype))
        scale = s.rsqrt()
        scale *= scale.sqrt()
        ctx.save_for_backward(x, s, scale, band)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("AlexNet's normalisation has no second derivative here: take it through torch.func")
        x, s, scale, band = ctx.saved_tensors
        scaled = grad * scale
        around = F.conv2d((scaled * x).div_(s), band)
        by_x: Tensor = scaled.addcmul_(around, x, value=-1.5)
        return by_x


ALEXNET = Network(
    name="alexnet",
    title="five convolutions and three linear layers, for ImageNet (60,954,656 weights)",
    build=AlexNet,
    input_shape=_SHAPE,
    classes=1000,
    smallest_size=None,
)
