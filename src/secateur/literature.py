"""Every published number once, with its source, and a remark where a paper and the source it quotes differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, kw_only=True)
class Published:
    """One result of a paper; NaN where the paper gives no such number."""

    network: str
    data: str
    method: str
    source: str
    setting: str = ""  # which of several results of the method
    error: float = math.nan  # on test images, percent
    dense_error: float = math.nan  # of the publication's own dense network
    change: float = math.nan  # points of error compared with the paper's own dense network
    change_top5: float = math.nan  # the same of the top-5 error
    kept: float = math.nan  # weights
    bytes: float = math.nan  # of the file
    ratio: float = math.nan  # all weights ÷ weights kept, or bytes of 32-bit floats ÷ bytes of the file
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedLayers:
    """A part of the paper's Table 2: the share of the weights pruned in each layer and in all, in percent."""

    network: str
    data: str
    pruned: Mapping[str, float]
    total: float
    source: str
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedTransfer:
    """A row of the paper's table 3: the features of AlexNet, dense and pruned, on another data set."""

    task: str
    data: str
    title: str
    measure: str
    dense: float
    pruned: float

    @property
    def command(self) -> str:
        """The command that runs this row with two networks of the user."""
        return f"secateur transfer DENSE PRUNED --tasks {self.data} --save results/transfer/{self.data}.json"


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """A misprint of the paper: where, what is printed, and what it should be."""

    place: str
    printed: str
    correct: str


MANESSI = "Manessi et al. 2018"
HAN = "Han et al. 2015"
QUOTED = f"as quoted by {MANESSI}"

_TABLE1, _TABLE2 = "Manessi et al. 2018, table 1", "Manessi et al. 2018, table 2"
_HAN = "Han et al. 2015, arXiv 1506.02626"
_DEEP_COMPRESSION = "Han et al. 2016, arXiv 1510.00149"
_SURGERY = "Guo et al. 2016, arXiv 1608.04493"
_SHARING = "Ullrich et al. 2017, arXiv 1702.04008"
_VARIATIONAL = "Molchanov et al. 2017, arXiv 1701.05369"
_SNIP = "Lee et al. 2019, arXiv 1810.02340"
_ADMM = "Zhang et al. 2018, arXiv 1804.03294"
_MOMENTUM = "Dettmers & Zettlemoyer 2019, arXiv 1907.04840"
_OBS = "Dong et al. 2017, arXiv 1705.07565"
_BAYESIAN = "Louizos et al. 2017, arXiv 1705.08665"
_ENTROPY = "Oktay et al. 2019, arXiv 1906.06624"
_MIRACLE = "Havasi et al. 2018, arXiv 1810.00440"
_SRINIVAS = "Srinivas et al. 2017, arXiv 1611.06694"
_DISTILLER = "Zmora et al. 2019, arXiv 1910.12232"
_LC = "Carreira-Perpiñán & Idelbayev 2018, CVPR"
_LILNETX = "Girish et al. 2023, arXiv 2204.02965"

_FIGURE = "read off the authors' figure"

_lenet_300_100 = partial(Published, network="lenet-300-100", data="mnist")  # 266,200 weights
_lenet_5 = partial(Published, network="lenet-5", data="mnist")  # 430,500 weights
_resnet_20 = partial(Published, network="resnet-20", data="cifar10")  # 268,336 weights
_resnet_32 = partial(Published, network="resnet-32", data="cifar10")  # 461,872 weights
_resnet_56 = partial(Published, network="resnet-56", data="cifar10")  # 848,944 weights
_vgg_16 = partial(Published, network="vgg-16-cifar", data="cifar10")  # 14.7 million weights
_alexnet = partial(Published, network="alexnet", data="imagenet")  # 60.9 million weights

# The paper's own results. It gives neither absolute errors, nor bytes, nor milliseconds.
_THE_PAPER = (
    _lenet_300_100(
        method=MANESSI,
        source=_TABLE1,
        change=0.1,
        kept=14_000,
        ratio=19,
        remark="The layers of table 2 add up to 18.2K (14.6×); the text swaps the ratios of the two LeNets.",
    ),
    _lenet_5(
        method=MANESSI,
        source=_TABLE1,
        change=0.0,
        kept=29_000,
        ratio=15,
        remark="The layers of table 2 add up to 21.3K (20×); the text swaps the ratios of the two LeNets.",
    ),
    _alexnet(method=MANESSI, source=_TABLE1, change=1.1, change_top5=1.0, kept=5_000_000, ratio=12),
)

# What the paper's table 1 says of Han et al. 2015. That publication's own numbers are listed below.
_QUOTED = (
    _lenet_300_100(
        method=HAN, setting=QUOTED, source=_TABLE1, change=-0.1, kept=21_000, ratio=12, remark=f"22K in {_HAN}."
    ),
    _lenet_5(method=HAN, setting=QUOTED, source=_TABLE1, change=-0.1, kept=34_000, ratio=12, remark=f"36K in {_HAN}."),
    _alexnet(
        method=HAN,
        setting=QUOTED,
        source=_TABLE1,
        change=0.0,
        change_top5=0.0,
        kept=7_000_000,
        ratio=9,
        remark=f"6.7M in {_HAN}.",
    ),
)


def _shares(
    result: partial[Published], method: str, source: str, weights: int, errors: Mapping[float, float]
) -> tuple[Published, ...]:
    """Spell out results that are published as percent of the weights kept → percent error."""
    return tuple(
        result(method=method, setting=f"{share:g} % kept", source=source, error=error, kept=weights * share / 100)
        for share, error in errors.items()
    )


# Ratios that come with "no loss" instead of an error are left out: they have no place in a chart.
_OTHERS = (
    _lenet_300_100(method=HAN, source=_HAN, error=1.59, dense_error=1.64, kept=22_000),
    _lenet_300_100(method="Dynamic network surgery", source=_SURGERY, error=1.99, dense_error=2.28, kept=266_200 / 56),
    _lenet_300_100(
        method="Soft weight sharing", source=_SHARING, error=1.94, dense_error=1.89, kept=266_200 * 0.043, bytes=16_700
    ),
    _lenet_300_100(
        method="Sparse variational dropout", source=_VARIATIONAL, error=1.92, dense_error=1.64, kept=266_200 / 68
    ),
    _lenet_300_100(method="Layer-wise OBS", source=_OBS, error=2.0, kept=266_200 * 0.015),
    *_shares(_lenet_300_100, "SNIP", _SNIP, 266_200, {5: 1.6, 2: 2.4}),
    *_shares(_lenet_300_100, "Sparse momentum", _MOMENTUM, 266_200, {8: 1.45, 5: 1.53, 2: 1.99, 1.5: 2.05, 1: 2.36}),
    _lenet_300_100(method="Deep Compression", source=_DEEP_COMPRESSION, error=1.58, bytes=27_000, ratio=40),
    _lenet_300_100(method="Entropy-penalised reparametrisation", source=_ENTROPY, error=1.9, bytes=8_560, ratio=124),
    _lenet_5(method=HAN, source=_HAN, error=0.77, dense_error=0.80, kept=36_000),
    _lenet_5(method="Dynamic network surgery", source=_SURGERY, error=0.91, dense_error=0.91, kept=430_500 / 108),
    _lenet_5(
        method="Soft weight sharing", source=_SHARING, error=0.97, dense_error=0.88, kept=430_500 * 0.005, bytes=10_600
    ),
    _lenet_5(
        method="Sparse variational dropout", source=_VARIATIONAL, error=0.75, dense_error=0.80, kept=430_500 / 280
    ),
    _lenet_5(method="ADMM", source=_ADMM, error=0.8, kept=6_050),
    *_shares(_lenet_5, "SNIP", _SNIP, 430_500, {2: 0.8, 1: 1.1}),
    *_shares(_lenet_5, "Sparse momentum", _MOMENTUM, 430_500, {5: 0.69, 2: 0.76, 1: 0.83, 0.5: 1.14, 0.4: 1.40}),
    _lenet_5(method="Deep Compression", source=_DEEP_COMPRESSION, error=0.74, bytes=44_000, ratio=39),
    _lenet_5(method="Bayesian compression, GNJ", source=_BAYESIAN, error=1.0, bytes=4_800),
    _lenet_5(method="Bayesian compression, GHS", source=_BAYESIAN, error=1.0, bytes=4_100),
    _lenet_5(method="Entropy-penalised reparametrisation", source=_ENTROPY, error=0.9, bytes=2_840),
    _lenet_5(method="MIRACLE", setting="3 kB", source=f"{_MIRACLE}, {_FIGURE}", error=0.69, bytes=3_000),
    _lenet_5(
        method="MIRACLE",
        setting="1.5 kB",
        source=f"{_MIRACLE}, {_FIGURE}",
        error=0.96,
        bytes=1_520,
        ratio=1110,
        remark="The text gives the ratio, and an error of about 1 %.",
    ),
    _resnet_20(method="Dynamic network surgery", source=_DISTILLER, error=8.57, kept=268_336 * 0.31),
    *_shares(_resnet_32, "Learning-compression", _LC, 461_872, {15: 7.32, 10: 7.88, 5: 9.26, 3: 10.74}),
    *_shares(_resnet_56, "Learning-compression", _LC, 848_944, {15: 6.92, 10: 6.67, 5: 7.51, 3: 8.21}),
    *_shares(_vgg_16, "SNIP", _SNIP, 14_715_584, {5: 7.1}),
    _vgg_16(method="Bayesian compression, GNJ", source=_BAYESIAN, error=8.6, ratio=56),
    _vgg_16(method="Bayesian compression, GHS", source=_BAYESIAN, error=9.0, ratio=59),
    _vgg_16(method="Entropy-penalised reparametrisation", source=_ENTROPY, error=10.0, bytes=101_000, ratio=590),
    _vgg_16(method="MIRACLE", setting="384 kB", source=_MIRACLE, error=6.57, bytes=384_000, ratio=159),
    _vgg_16(method="MIRACLE", setting="135 kB", source=_MIRACLE, error=10.0, bytes=135_000, ratio=452),
    _vgg_16(method="LilNetX", setting="129 kB", source=_LILNETX, error=7.4, bytes=129_000, ratio=465),
    _vgg_16(method="LilNetX", setting="76 kB", source=_LILNETX, error=10.0, bytes=76_000, ratio=800),
    _alexnet(method=HAN, source=_HAN, error=42.77, kept=6_700_000),
    _alexnet(method="Dynamic network surgery", source=_SURGERY, error=43.09, kept=3_450_000),
    _alexnet(method="Training sparse networks", source=_SRINIVAS, error=43.04, kept=5_900_000),
    _alexnet(method="Deep Compression", source=_DEEP_COMPRESSION, error=42.78, bytes=6_900_000),
)

RESULTS: tuple[Published, ...] = (*_THE_PAPER, *_QUOTED, *_OTHERS)

LAYERS: tuple[PublishedLayers, ...] = (
    PublishedLayers(
        network="lenet-300-100",
        data="mnist",
        pruned={"fc1.weight": 94.7, "fc2.weight": 83.8, "fc3.weight": 11.9},
        total=94.7,
        source=_TABLE2,
        remark="The layers add up to 93.2 %, not 94.7 %.",
    ),
    PublishedLayers(
        network="lenet-5",
        data="mnist",
        pruned={"conv1.weight": 31.1, "conv2.weight": 82.2, "fc3.weight": 96.6, "fc4.weight": 41.7},
        total=93.3,
        source=_TABLE2,
        remark="The layers add up to 95.1 %, not 93.3 %.",
    ),
    PublishedLayers(
        network="alexnet",
        data="imagenet",
        pruned={
            "conv1.weight": 3.8,
            "conv2.weight": 34.9,
            "conv3.weight": 24.3,
            "conv4.weight": 36.7,
            "conv5.weight": 33.5,
            "fc6.weight": 96.8,
            "fc7.weight": 91.5,
            "fc8.weight": 78.5,
        },
        total=91.5,
        source=_TABLE2,
    ),
)

_CLASSES, _FINE = "Image classification", "Fine grained recognition"
_ATTRIBUTES, _INSTANCES = "Attribute detection", "Visual instance retrieval"

# task, data set, title, measure, dense, pruned
TRANSFER: tuple[PublishedTransfer, ...] = tuple(
    PublishedTransfer(task=task, data=data, title=title, measure=measure, dense=dense, pruned=pruned)
    for task, data, title, measure, dense, pruned in (
        (_CLASSES, "voc2007", "Pascal VOC 2007", "mAP", 0.6235, 0.6132),
        (_CLASSES, "mit67", "MIT-67 indoor scenes", "accuracy", 0.5440, 0.5425),
        (_FINE, "cub200", "Birds (CUB) 200-2011", "accuracy", 0.5043, 0.5173),
        (_FINE, "flowers102", "Oxford 102 flowers", "accuracy", 0.8477, 0.8542),
        (_ATTRIBUTES, "uiuc-attributes", "UIUC 64 object attributes", "mAUC", 0.7999, 0.7953),
        (_ATTRIBUTES, "h3d-attributes", "H3D person attributes", "mAP", 0.5664, 0.5646),
        (_INSTANCES, "oxford5k", "Oxford5k buildings", "mAP", 0.3471, 0.3901),
        (_INSTANCES, "paris6k", "Paris6k buildings", "mAP", 0.5958, 0.6007),
        (_INSTANCES, "sculptures6k", "Sculptures6k", "mAP", 0.3093, 0.2982),
        (_INSTANCES, "holidays", "Holidays", "mAP", 0.7302, 0.7187),
        (_INSTANCES, "ukbench", "UKbench", "Recall@4", 0.8770, 0.8904),
    )
)

ERRATA: tuple[Erratum, ...] = (
    Erratum(place="table 2, LeNet-300-100, weights in total", printed="431K", correct="266K; 431K is LeNet-5's total"),
    Erratum(place="table 2, LeNet-5, weights of fc4", printed="1K", correct="5K"),
    Erratum(
        place="section on the LeNets, ratios of LeNet-300-100 and LeNet-5",
        printed="15× and 19×",
        correct="19× and 15×, as in table 1",
    ),
    Erratum(
        place="section on the LeNets, weights that LeNet-5 has fewer than Deep Compression",
        printed="14 % (14K)",
        correct="14 % (5K)",
    ),
    Erratum(place="table 3, what Sculptures and Holidays lose", printed="0.1 points", correct="1.1 points"),
    Erratum(place="description of UKbench, items in four views", printed="2,250", correct="2,550, for 10,200 images"),
)


def the_paper(network: str, data: str) -> Published | None:
    """Return the paper's own result (table 1); None if it has none for this network and data."""
    return _only(_THE_PAPER, network, data)


def han_as_quoted(network: str, data: str) -> Published | None:
    """Return what the paper's table 1 says of Han et al. 2015, which differs from that publication."""
    return _only(_QUOTED, network, data)


def published(network: str, data: str) -> tuple[Published, ...]:
    """Return the results of other publications that have an error and a size, as published."""
    return tuple(each for each in _OTHERS if (each.network, each.data) == (network, data))


def published_files(network: str, data: str) -> tuple[Published, ...]:
    """Return the results that are given in bytes, the largest file first."""
    files = [each for each in published(network, data) if math.isfinite(each.bytes)]
    return tuple(sorted(files, key=lambda each: -each.bytes))


def paper_layers(network: str, data: str) -> PublishedLayers | None:
    """Return the shares pruned that the paper's table 2 prints; None if it has none for this network and data."""
    return next((each for each in LAYERS if (each.network, each.data) == (network, data)), None)


def networks_with_layers() -> tuple[str, ...]:
    """Name the networks whose layers table 2 of the paper lists."""
    return tuple(each.network for each in LAYERS)


def paper_data(network: str) -> str | None:
    """Return the data set that the paper trains a network on; None if the paper does not have it."""
    return next((each.data for each in LAYERS if each.network == network), None)


def _only(results: tuple[Published, ...], network: str, data: str) -> Published | None:
    return next((each for each in results if (each.network, each.data) == (network, data)), None)
