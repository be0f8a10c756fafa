"""Han's format: 256 values per layer, an index for each entry, and the weights that are skipped before it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur import networks
from secateur.pretrained.deep_compression import read_compressed, read_squeezenet

SHAPES = {"a.weight": torch.Size([5, 4, 2, 1]), "a.bias": torch.Size([5]), "b.weight": torch.Size([3, 1, 1, 1])}
SHAPES["b.bias"] = torch.Size([3])


def compressed(layers):
    """Write layers, each a weight of a few values and a bias, as Han's file has them."""
    counts, body = [], b""
    for weight, bias in layers:
        values = np.zeros(256, np.float32)
        known = np.unique(weight[weight != 0])
        values[1 : 1 + len(known)] = known
        codes, skipped, gap = [], [], 0
        for number in weight.flatten():
            if number == 0 and gap < 15:
                gap += 1
                continue
            codes.append(0 if number == 0 else 1 + int(np.searchsorted(known, number)))
            skipped.append(gap)
            gap = 0
        counts.append(len(codes))
        padded = np.array([*skipped, *[0] * (len(skipped) % 2)], np.uint8).reshape(-1, 2)
        body += values.tobytes() + bias.astype("<f4").tobytes() + np.array(codes, np.uint8).tobytes()
        body += (padded[:, 0] | padded[:, 1] << 4).astype(np.uint8).tobytes()
    return np.array(counts, "<u4").tobytes() + body


def layers_of(numbers):
    """Return the weights and biases of the two layers."""
    first, second = np.array(numbers[:40], np.float32).reshape(5, 4, 2, 1), np.array(numbers[40:], np.float32)
    return [(first, np.arange(5.0)), (second.reshape(3, 1, 1, 1), np.ones(3))]


@given(st.lists(st.sampled_from([0, 0, 0, 0, 0.5, -1, 2]), min_size=43, max_size=43))
def test_what_is_written_is_read(numbers):
    layers = layers_of(numbers)
    state = read_compressed(compressed(layers), SHAPES)
    assert list(state) == list(SHAPES)
    for name, (weight, bias) in zip("ab", layers, strict=True):
        assert np.array_equal(state[f"{name}.weight"].numpy(), weight)
        assert np.array_equal(state[f"{name}.bias"].numpy(), bias.astype(np.float32))


CONTENT = compressed(layers_of([0] * 30 + [1] * 13))


@pytest.mark.parametrize("length", [0, 7, 500, len(CONTENT) - 1])
def test_a_file_that_is_cut_short_is_refused(length):
    with pytest.raises(ValueError, match=r"it ends after .* bytes, within a layer"):
        read_compressed(CONTENT[:length], SHAPES)


def test_a_file_with_more_than_its_layers_is_refused():
    with pytest.raises(ValueError, match="it has 1 bytes after the last layer"):
        read_compressed(CONTENT + b"x", SHAPES)


def test_entries_behind_the_last_weight_are_refused():
    with pytest.raises(ValueError, match=r'"a\.weight" has 8 weights, and the file places one behind them'):
        read_compressed(CONTENT, SHAPES | {"a.weight": torch.Size([4, 2, 1, 1])})


def test_the_file_of_squeezenet_fills_all_of_it_and_takes_red_first():
    with torch.device("meta"):
        wanted = networks.build("squeezenet").state_dict()
    layers = []
    for name in wanted:
        if name.endswith(".weight"):
            weight = np.zeros(wanted[name].shape, np.float32)
            weight[0, 0, 0, 0] = 1
            layers.append((weight, np.zeros(len(weight))))
    state = read_squeezenet(compressed_sparse(layers))
    assert {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in wanted.items()}
    assert state["conv1.weight"].nonzero().tolist() == [[0, 2, 0, 0]]
    assert state["fire2.squeeze.weight"].nonzero().tolist() == [[0, 0, 0, 0]]


def compressed_sparse(layers):
    """Write layers whose first weight alone is not zero; the zeros after it need no entries."""
    body = b""
    for _, bias in layers:
        values = np.zeros(256, np.float32)
        values[1] = 1
        body += values.tobytes() + bias.astype("<f4").tobytes() + b"\x01" + b"\x00"
    return np.ones(len(layers), "<u4").tobytes() + body
