"""What all pretrained weights in the table have to do; their files are made up, with the names of the real ones."""

import gzip
import hashlib
import pickle
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch

from secateur import networks
from secateur.data.files import DataFile
from secateur.networks import NETWORKS
from secateur.pretrained import PRETRAINED

every = pytest.mark.parametrize("name", PRETRAINED)


@every
def test_an_entry_is_of_a_network_and_says_where_it_is_from(name):
    entry = PRETRAINED[name]
    assert entry.name == name
    assert name in NETWORKS
    assert entry.source
    assert entry.homes
    assert all(len(file.md5) == 32 for file in entry.files)


@every
def test_its_inputs_have_the_networks_usual_shape(name):
    assert NETWORKS[name].input_shape == (3, PRETRAINED[name].preprocessing.size, PRETRAINED[name].preprocessing.size)


@every
def test_what_is_left_out_is_the_classifier_of_the_network(name):
    with torch.device("meta"):
        tensors = list(networks.build(name).state_dict())
    missing = [tensor for tensor in tensors if tensor.startswith(PRETRAINED[name].left_out)]
    assert not PRETRAINED[name].left_out or tensors[-len(missing) :] == missing


def test_a_compressed_file_in_its_place_is_read(tmp_path):
    file = DataFile("weights", 5, hashlib.md5(b"hello").hexdigest())
    entry = replace(PRETRAINED["vgg-16"], files=(file,), homes=(), read=lambda contents: contents)
    folder = tmp_path / "pretrained" / entry.name
    folder.mkdir(parents=True)
    (folder / "weights.gz").write_bytes(gzip.compress(b"hello"))
    assert entry.load(tmp_path) == {"weights": b"hello"}


def test_layers_of_keras_are_all_convolutions_of_resnet_50():
    from secateur.pretrained.resnet import layer_names

    with torch.device("meta"):
        model = networks.build("resnet-50-v1")
    names = layer_names()
    assert len(names) == 53
    weights = {conv for conv, _ in names.values()}
    assert weights == {name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Conv2d)}
    assert names["2a_branch1"] == ("layer1.0.downsample.0", "layer1.0.downsample.1")
    assert names["4f_branch2b"] == ("layer3.5.conv2", "layer3.5.bn2")
    for conv, norm in names.values():
        assert model.get_submodule(conv).out_channels == model.get_submodule(norm).num_features


def keras_weights(generator):
    """Return weights with Keras's names and shapes, as wide as ResNet-50's but with one value for all but a few."""
    from secateur.pretrained.resnet import layer_names

    with torch.device("meta"):
        model = networks.build("resnet-50-v1")
    weights = {"fc1000/kernel": torch.empty(2048, 1000, device="meta"), "fc1000/bias": torch.zeros(1000)}
    for keras, (conv, _) in layer_names().items():
        convolution, batch_norm = ("conv1", "bn_conv1") if keras == "conv1" else (f"res{keras}", f"bn{keras}")
        filters, channels, height, width = model.get_submodule(conv).weight.shape
        weights[f"{convolution}/kernel"] = torch.empty(height, width, channels, filters, device="meta")
        weights[f"{convolution}/bias"] = torch.rand(filters, generator=generator)
        for kind in ("gamma", "beta", "moving_mean", "moving_variance"):
            weights[f"{batch_norm}/{kind}"] = torch.rand(filters, generator=generator)
    weights["conv1/kernel"] = torch.randn(7, 7, 3, 64, generator=generator)
    return weights


def test_keras_weights_fill_every_tensor_of_resnet_50():
    from secateur.pretrained.resnet import from_keras

    state = from_keras(keras_weights(torch.Generator().manual_seed(0)))
    with torch.device("meta"):
        wanted = networks.build("resnet-50-v1").state_dict()
    assert {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in wanted.items()}


def test_a_converted_layer_computes_what_keras_does():
    from secateur.pretrained.resnet import from_keras

    weights = keras_weights(torch.Generator().manual_seed(1))
    state = from_keras(weights)
    rgb = torch.randn(2, 3, 12, 12)
    # As TensorFlow would: channels last, blue first, a bias in the convolution, 1e-3 added to the variance.
    patches = torch.nn.functional.unfold(rgb.flip(1), 7, stride=2, padding=3)
    kernel = weights["conv1/kernel"].permute(2, 0, 1, 3).reshape(-1, 64)
    out = patches.transpose(1, 2) @ kernel + weights["conv1/bias"]
    gamma, beta, mean, variance = (
        weights[f"bn_conv1/{kind}"] for kind in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    expected = (gamma * (out - mean) / (variance + 1e-3).sqrt() + beta).transpose(1, 2).view(2, 64, 6, 6)
    model = networks.build("resnet-50-v1", seed=0, input_shape=(3, 12, 12)).eval()
    model.conv1.weight.data = state["conv1.weight"]
    model.bn1.load_state_dict({key[4:]: value for key, value in state.items() if key.startswith("bn1.")})
    torch.testing.assert_close(model.bn1(model.conv1(rgb)), expected, rtol=1e-4, atol=1e-4)


def test_tensors_of_tensorflow_js_follow_each_other_as_the_manifest_says():
    from secateur.pretrained.resnet import read_tensorflow_js

    manifest = b'{"weightsManifest": [{"weights": [{"name": "a", "shape": [2, 1]}, {"name": "b", "shape": []}]}]}'
    read = read_tensorflow_js(manifest, np.array([1, 2, 3], "<f4").tobytes())
    assert {name: tensor.tolist() for name, tensor in read.items()} == {"a": [[1], [2]], "b": 3}


def test_names_of_the_port_are_all_tensors_of_efficientnet_lite0():
    from secateur.pretrained.efficientnet_lite import _INSIDE, _OUTSIDE, our_name

    with torch.device("meta"):
        wanted = list(networks.build("efficientnet-lite0").state_dict())
    inside = {ours: theirs for theirs, ours in _INSIDE.items()}
    outside = {ours: theirs for theirs, ours in _OUTSIDE.items()}
    for name in wanted:
        layer, _, kind = name.rpartition(".")
        if layer.startswith("blocks."):
            _, block, inner = layer.split(".", 2)
            assert our_name(f"_blocks.{block}.{inside[inner]}.{kind}") == name
        else:
            assert our_name(f"{outside[layer]}.{kind}") == name


@pytest.mark.parametrize(("name", "key"), [("alexnet-torchvision", "AlexNet_0"), ("vgg-16", "VGG16_0")])
def test_kernels_of_jax_become_all_convolutions_of_features(name, key):
    with torch.device("meta"):
        model = networks.build(name)
    wanted = {tensor: value for tensor, value in model.state_dict().items() if tensor.startswith("features.")}
    layers = {}
    for number, weight in enumerate([value for tensor, value in wanted.items() if tensor.endswith("weight")]):
        filters, channels, height, width = weight.shape
        kernel = np.zeros((height, width, channels, filters), np.float16)
        kernel[0, 1, 2, 3] = number + 1
        layers[f"Conv_{number}"] = {"kernel": kernel, "bias": np.zeros((1, 1, 1, filters), np.float16)}
    entry = PRETRAINED[name]
    state = entry.read({entry.files[0].name: pickle.dumps({key: layers, "NetLinLayer_0": {}})})
    assert {tensor: value.shape for tensor, value in state.items()} == {
        tensor: value.shape for tensor, value in wanted.items()
    }
    weights = [value for tensor, value in state.items() if tensor.endswith("weight")]
    assert [weight[3, 2, 0, 1].item() for weight in weights] == list(range(1, len(layers) + 1))


def test_a_pickle_that_names_a_function_is_refused_and_not_run(tmp_path):
    from secateur.pretrained.pickles import read_arrays

    class Harmful:
        def __reduce__(self):
            return (type(tmp_path).touch, (tmp_path / "run",))

    for content in (Harmful(), {"a": [Harmful()]}, OrderedDict(a=1)):
        with pytest.raises(ValueError, match=r"the pickle is refused: it names .* only arrays are read"):
            read_arrays(pickle.dumps(content))
    assert not (tmp_path / "run").exists()


def test_a_pickle_of_arrays_and_containers_is_read():
    from secateur.pretrained.pickles import read_arrays

    content = {"a": np.arange(6.0).reshape(2, 3), "b": [1, ("x", None)]}
    read = read_arrays(pickle.dumps(content))
    assert np.array_equal(read.pop("a"), content.pop("a"))
    assert read == content


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps({"a": np.arange(3)})[:-9]])
def test_bytes_that_are_no_pickle_are_refused(content):
    from secateur.pretrained.pickles import read_arrays

    with pytest.raises(ValueError, match="the pickle is refused"):
        read_arrays(content)


def test_an_array_of_objects_is_refused():
    from secateur.pretrained.pickles import read_arrays

    with pytest.raises(ValueError, match="array of objects"):
        read_arrays(pickle.dumps([np.array([{}, None], dtype=object)]))
