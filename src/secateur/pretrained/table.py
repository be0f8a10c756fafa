"""The table of pretrained weights."""

from secateur.pretrained.convolutions import ALEXNET_CONVOLUTIONS, VGG_16_CONVOLUTIONS
from secateur.pretrained.deep_compression import SQUEEZENET_HAN
from secateur.pretrained.efficientnet_lite import EFFICIENTNET_LITE0_TENSORFLOW
from secateur.pretrained.entry import Pretrained
from secateur.pretrained.resnet import RESNET_50_V1_KERAS
from secateur.table import Table

PRETRAINED: Table[Pretrained] = Table(
    "pretrained network",
    "secateur.pretrained",
    Pretrained,
    (
        RESNET_50_V1_KERAS,
        EFFICIENTNET_LITE0_TENSORFLOW,
        ALEXNET_CONVOLUTIONS,
        VGG_16_CONVOLUTIONS,
        SQUEEZENET_HAN,
    ),
)
