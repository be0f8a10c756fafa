"""Published results to hold a run against, each with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a paper reports: test error in percent, weights kept, bytes of the file; NaN where it does not say."""

    method: str
    source: str
    error: float = math.nan
    kept: float = math.nan
    bytes: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The row of the paper's Table 1: weights kept, times fewer, and what it costs in points of error."""

    kept: int
    ratio: float
    change: float


# Manessi et al. 2018, table 1. The paper gives neither bytes nor milliseconds.
PAPER: Mapping[str, Reference] = {
    "lenet-300-100": Reference(kept=14_000, ratio=19, change=0.1),
    "lenet-5": Reference(kept=29_000, ratio=15, change=0.0),
    "alexnet": Reference(kept=5_000_000, ratio=12, change=1.1),
}

_HAN = "Han et al. 2015, arXiv 1506.02626"
_DEEP_COMPRESSION = "Han et al. 2016, arXiv 1510.00149"
_SURGERY = "Guo et al. 2016, arXiv 1608.04493"
_SHARING = "Ullrich et al. 2017, arXiv 1702.04008"
_VARIATIONAL = "Molchanov et al. 2017, arXiv 1701.05369"
_SNIP = "Lee et al. 2019, arXiv 1810.02340"
_MOMENTUM = "Dettmers & Zettlemoyer 2019, arXiv 1907.04840"
_OBS = "Dong et al. 2017, arXiv 1705.07565"
_BAYESIAN = "Louizos et al. 2017, arXiv 1705.08665"
_ENTROPY = "Oktay et al. 2019, arXiv 1906.06624"
_MIRACLE = "Havasi et al. 2018, arXiv 1810.00440"
_SRINIVAS = "Srinivas et al. 2017, arXiv 1611.06694"


def _shares(method: str, source: str, weights: int, errors: Mapping[float, float]) -> tuple[Published, ...]:
    """Spell out results that are published as percent kept → percent error."""
    return tuple(
        Published(method=method, source=source, error=error, kept=weights * percent / 100)
        for percent, error in errors.items()
    )


# By network and data set. Ratios that come with "no loss" instead of an error have no place in a chart.
PUBLISHED: Mapping[tuple[str, str], tuple[Published, ...]] = {
    ("lenet-300-100", "mnist"): (
        Published(method="Han et al. 2015", source=_HAN, error=1.59, kept=22_000),
        Published(method="Dynamic network surgery", source=_SURGERY, error=1.99, kept=266_200 / 56),
        Published(method="Soft weight sharing", source=_SHARING, error=1.94, kept=266_200 * 0.043, bytes=16_700),
        Published(method="Sparse variational dropout", source=_VARIATIONAL, error=1.92, kept=266_200 / 68),
        Published(method="Layer-wise OBS", source=_OBS, error=2.0, kept=266_200 * 0.015),
        *_shares("SNIP", _SNIP, 266_200, {5: 1.6, 2: 2.4}),
        *_shares("Sparse momentum", _MOMENTUM, 266_200, {8: 1.45, 5: 1.53, 2: 1.99, 1.5: 2.05, 1: 2.36}),
        Published(method="Deep Compression", source=_DEEP_COMPRESSION, error=1.58, bytes=27_000),
        Published(method="Entropy-penalised reparametrisation", source=_ENTROPY, error=1.9, bytes=8_560),
    ),
    ("lenet-5", "mnist"): (
        Published(method="Han et al. 2015", source=_HAN, error=0.77, kept=36_000),
        Published(method="Dynamic network surgery", source=_SURGERY, error=0.91, kept=430_500 / 108),
        Published(method="Soft weight sharing", source=_SHARING, error=0.97, kept=430_500 * 0.005, bytes=10_600),
        Published(method="Sparse variational dropout", source=_VARIATIONAL, error=0.75, kept=430_500 / 280),
        *_shares("SNIP", _SNIP, 430_500, {2: 0.8, 1: 1.1}),
        *_shares("Sparse momentum", _MOMENTUM, 430_500, {5: 0.69, 2: 0.76, 1: 0.83, 0.5: 1.14, 0.4: 1.40}),
        Published(method="Deep Compression", source=_DEEP_COMPRESSION, error=0.74, bytes=44_000),
        Published(method="Bayesian compression, GNJ", source=_BAYESIAN, error=1.0, bytes=4_800),
        Published(method="Bayesian compression, GHS", source=_BAYESIAN, error=1.0, bytes=4_100),
        Published(method="Entropy-penalised reparametrisation", source=_ENTROPY, error=0.9, bytes=2_840),
        Published(method="MIRACLE", source=f"{_MIRACLE}, read off the figure", error=0.69, bytes=3_000),
        Published(method="MIRACLE", source=f"{_MIRACLE}, read off the figure", error=0.96, bytes=1_520),
    ),
    ("alexnet", "imagenet"): (
        Published(method="Han et al. 2015", source=_HAN, error=42.77, kept=6_700_000),
        Published(method="Dynamic network surgery", source=_SURGERY, error=43.09, kept=3_450_000),
        Published(method="Training sparse networks", source=_SRINIVAS, error=43.04, kept=5_900_000),
        Published(method="Deep Compression", source=_DEEP_COMPRESSION, error=42.78, bytes=6_900_000),
    ),
}


def reference(network: str, data: str) -> Reference | None:
    """Return the paper's figures for a network, if it is on the paper's data."""
    return PAPER.get(network) if data == ("imagenet" if network == "alexnet" else "mnist") else None


def published(network: str, data: str) -> tuple[Published, ...]:
    """Return what is known of a network on a data set."""
    return PUBLISHED.get((network, data), ())
