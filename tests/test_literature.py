"""Published numbers: each once, with a source, and as the papers print them."""

import math
import re
from collections import Counter

import pytest

from secateur import literature
from secateur.literature import ERRATA, LAYERS, QUOTED, RESULTS, han_as_quoted, paper_layers, published, the_paper

METRICS = ("error", "change", "change_top5", "kept", "bytes", "ratio")
WEIGHTS = {
    "lenet-300-100": {"fc1.weight": 235_200, "fc2.weight": 30_000, "fc3.weight": 1_000},
    "lenet-5": {"conv1.weight": 500, "conv2.weight": 25_000, "fc3.weight": 400_000, "fc4.weight": 5_000},
    "alexnet": {
        "conv1.weight": 34_848,
        "conv2.weight": 307_200,
        "conv3.weight": 884_736,
        "conv4.weight": 663_552,
        "conv5.weight": 442_368,
        "fc6.weight": 37_748_736,
        "fc7.weight": 16_777_216,
        "fc8.weight": 4_096_000,
    },
}


def test_every_number_is_published_once():
    keys = [
        (each.network, each.data, each.method, each.setting, metric)
        for each in RESULTS
        for metric in METRICS
        if math.isfinite(getattr(each, metric))
    ]
    assert [key for key, times in Counter(keys).items() if times > 1] == []


def test_every_result_has_a_dated_source_and_a_number():
    for each in RESULTS:
        assert re.search(r"\b20\d\d\b", each.source)
        assert any(math.isfinite(getattr(each, metric)) for metric in METRICS)


@pytest.mark.parametrize("network", ["lenet-300-100", "lenet-5", "alexnet"])
def test_what_a_chart_shows_has_an_error_and_a_size(network):
    found = published(network, "imagenet" if network == "alexnet" else "mnist")
    assert len(found) > 3
    for each in found:
        assert 0 < each.error < 100
        assert each.kept > 0 or each.bytes > 0


def test_table_1_of_the_paper():
    rows = [the_paper(network, data) for network, data in (("lenet-300-100", "mnist"), ("lenet-5", "mnist"))]
    assert [(row.change, row.kept, row.ratio) for row in rows] == [(0.1, 14_000, 19), (0.0, 29_000, 15)]
    alexnet = the_paper("alexnet", "imagenet")
    assert (alexnet.change, alexnet.kept, alexnet.ratio) == (1.1, 5_000_000, 12)


def test_han_2015_as_quoted_differs_from_han_2015_as_published_and_says_so():
    for network, quoted, own in (("lenet-300-100", 21_000, 22_000), ("lenet-5", 34_000, 36_000)):
        row = han_as_quoted(network, "mnist")
        assert (row.kept, row.ratio, row.setting) == (quoted, 12, QUOTED)
        assert f"{own // 1000}K in Han et al. 2015" in row.remark
        [original] = [each for each in published(network, "mnist") if each.method == literature.HAN]
        assert (original.kept, original.setting) == (own, "")


def test_table_2_of_the_paper():
    assert paper_layers("lenet-300-100", "mnist").pruned == {
        "fc1.weight": 94.7,
        "fc2.weight": 83.8,
        "fc3.weight": 11.9,
    }
    assert paper_layers("lenet-5", "mnist").total == 93.3
    assert paper_layers("alexnet", "imagenet").pruned["fc7.weight"] == 91.5


@pytest.mark.parametrize(
    ("network", "kept", "total"),
    [("lenet-300-100", 18_200, 93.2), ("lenet-5", 21_300, 95.1), ("alexnet", 5.13e6, 91.6)],
)
def test_the_remarks_say_what_the_layers_of_table_2_add_up_to(network, kept, total):
    [layers] = [each for each in LAYERS if each.network == network]
    weights = WEIGHTS[network]
    assert layers.pruned.keys() == weights.keys()
    left = sum(weights[name] * (1 - share / 100) for name, share in layers.pruned.items())
    assert left == pytest.approx(kept, rel=0.003)
    assert 100 * (1 - left / sum(weights.values())) == pytest.approx(total, abs=0.05)
    if layers.remark:
        assert f"{total} %, not {layers.total} %" in layers.remark


def test_deep_compression_and_the_smallest_files():
    files = literature.published_files("lenet-300-100", "mnist")
    assert (files[0].method, files[0].bytes, files[0].ratio) == ("Deep Compression", 27_000, 40)
    assert (files[-1].bytes, files[-1].ratio) == (8_560, 124)
    smallest = literature.published_files("lenet-5", "mnist")[-1]
    assert (smallest.method, smallest.bytes, smallest.ratio) == ("MIRACLE", 1_520, 1110)


def test_other_data_and_unknown_networks_have_nothing_published():
    assert the_paper("lenet-300-100", "digits") is None
    assert han_as_quoted("resnet-20", "cifar10") is None
    assert paper_layers("lenet-5", "imagenet") is None
    assert published("lenet-5", "digits") == ()


def test_errata_name_the_place_and_differ_from_what_is_printed():
    assert len({erratum.place for erratum in ERRATA}) == len(ERRATA) == 6
    assert all(erratum.printed != erratum.correct for erratum in ERRATA)
