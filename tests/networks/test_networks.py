import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from secateur.networks import LeNet5, LeNet300100, build
from secateur.networks.alexnet import _normalize
from secateur.networks.efficientnet_lite import InvertedResidual, SamePadding
from secateur.networks.resnet import Bottleneck

small = pytest.mark.parametrize("name", ["lenet-300-100", "lenet-5"])  # those that take no time to fill


def on_meta(name: str) -> nn.Module:
    """Build a network without memory: VGG-16 would take half a gigabyte."""
    with torch.device("meta"):
        return build(name)


@small
def test_weights_fill_glorots_interval_and_biases_are_zero(name):
    for layer in build(name, seed=0).children():
        fan_in, fan_out = layer.weight[0].numel(), layer.weight[:, 0].numel()
        limit = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.95 * limit < layer.weight.abs().max() <= limit
        assert not layer.bias.any()


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [
        ("lenet-300-100", 266_610, 266_200),
        ("lenet-5", 431_080, 24**2 * 500 + 8**2 * 25_000 + 405_000),
        (
            "alexnet",
            60_965_224,
            55**2 * 34_848 + 27**2 * 307_200 + 13**2 * (884_736 + 663_552 + 442_368) + 58_621_952,
        ),
        ("vgg-16", 138_357_544, 15_470_264_320),
        ("resnet-50", 25_557_032, 4_089_184_256),
        ("resnet-50-v1", 25_557_032, 3_857_973_248),
        ("resnet-20", 269_722, 40_551_040),
        ("resnet-32", 464_154, 68_862_592),
        ("resnet-56", 853_018, 125_485_696),
        ("vgg-16-cifar", 14_724_042, 313_201_664),
        ("vgg-16-cifar-half", 3_684_842, 78_744_064),
        ("vgg-16-cifar-quarter", 923_130, 19_907_840),
        ("alexnet-torchvision", 61_100_840, 714_188_480),
        ("efficientnet-lite0", 4_652_008, 385_187_552),
        ("squeezenet", 1_248_424, 861_339_936),
    ],
)
def test_parameters_and_multiplications_are_those_of_the_literature(name, parameters, macs):
    model = on_meta(name).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, *model.input_shape, device="meta"))
    assert counter.get_total_flops() == 2 * macs


def layer_weights(model: nn.Module) -> dict[str, int]:
    layers = {name: layer for name, layer in model.named_children() if not isinstance(layer, nn.Dropout)}
    return {name: layer.get_parameter("weight").numel() for name, layer in layers.items()}


def test_lenet_300_100_has_the_layers_of_table_2():
    assert layer_weights(LeNet300100()) == {"fc1": 235_200, "fc2": 30_000, "fc3": 1_000}


def test_lenet_5_has_the_layers_of_table_2():
    assert layer_weights(LeNet5()) == {"conv1": 500, "conv2": 25_000, "fc3": 400_000, "fc4": 5_000}


def test_alexnet_has_the_layers_of_table_2():
    assert layer_weights(on_meta("alexnet")) == {
        "conv1": 34_848,
        "conv2": 307_200,
        "conv3": 884_736,
        "conv4": 663_552,
        "conv5": 442_368,
        "fc6": 37_748_736,
        "fc7": 16_777_216,
        "fc8": 4_096_000,
    }


def test_alexnet_normalises_after_its_first_two_rectifiers_and_drops_nothing_in_evaluation():
    model = build("alexnet", seed=0).eval()
    x, norm, pool, relu = torch.randn(1, 3, 227, 227), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2), nn.ReLU()
    layers = [model.conv1, relu, norm, pool, model.conv2, relu, norm, pool, model.conv3, relu, model.conv4, relu]
    layers += [model.conv5, relu, pool, nn.Flatten(), model.fc6, relu, model.fc7, relu, model.fc8]
    with torch.no_grad():
        torch.testing.assert_close(model(x), nn.Sequential(*layers)(x))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_alexnet_is_normalised_in_training_as_torch_does_it(memory_format):
    x = (20 * torch.randn(2, 12, 5, 5)).relu().to(memory_format=memory_format)
    grad, found = torch.randn(x.shape), []
    for normalize in (_normalize, nn.LocalResponseNorm(5)):
        given = x.clone().requires_grad_()
        normalize(given).backward(grad)
        found.append((normalize(given).detach(), given.grad))
    torch.testing.assert_close(*found)


def test_alexnet_is_normalised_in_bfloat16_to_its_last_places():
    x, grad = (100 * torch.rand(1, 8, 4, 4)).bfloat16(), torch.randn(1, 8, 4, 4).bfloat16()
    given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = _normalize(given)
    found.backward(grad)
    expected = nn.LocalResponseNorm(5)(exact)
    expected.backward(grad.double())
    assert found.dtype is torch.bfloat16
    unit = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(found.double(), expected, rtol=2 * unit, atol=0)
    torch.testing.assert_close(given.grad.double(), exact.grad, rtol=2 * unit, atol=2 * unit)


def test_alexnets_normalisation_has_two_derivatives_through_torch_func():
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    derivative, functions = torch.func.grad, (_normalize, nn.LocalResponseNorm(5))
    found, expected = (derivative(lambda x, f=f: derivative(lambda x: f(x).sum())(x).sum())(x) for f in functions)
    torch.testing.assert_close(found, expected)


def test_alexnets_normalisation_says_that_it_has_no_second_derivative():
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="AlexNet's normalisation has no second derivative here: take it through"):
        torch.autograd.grad(_normalize(x).sum(), x, create_graph=True)


def test_vgg_16_has_the_names_of_torchvision():
    layers = [f"features.{index}" for index in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)]
    layers += [f"classifier.{index}" for index in (0, 3, 6)]
    assert list(on_meta("vgg-16").state_dict()) == [
        f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")
    ]


def test_resnet_50_has_the_names_of_torchvision():
    def unit(conv, norm):
        kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        return [f"{conv}.weight", *(f"{norm}.{kind}" for kind in kinds)]

    names = unit("conv1", "bn1")
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for block in (f"layer{stage}.{index}" for index in range(blocks)):
            for number in (1, 2, 3):
                names += unit(f"{block}.conv{number}", f"{block}.bn{number}")
            if block.endswith(".0"):
                names += unit(f"{block}.downsample.0", f"{block}.downsample.1")
    assert list(on_meta("resnet-50").state_dict()) == [*names, "fc.weight", "fc.bias"]


def test_resnet_50_strides_in_its_3x3_convolutions():
    strided = {name for name, layer in on_meta("resnet-50").named_modules() if getattr(layer, "stride", 1) == (2, 2)}
    halving = {f"layer{stage}.0.{layer}" for stage in (2, 3, 4) for layer in ("conv2", "downsample.0")}
    assert strided == {"conv1"} | halving


def test_a_block_of_resnet_50_adds_its_input():
    block = Bottleneck(16, 4).eval()
    nn.init.zeros_(block.bn3.weight)
    x = torch.randn(2, 16, 5, 5)
    assert block.downsample is None
    torch.testing.assert_close(block(x), x.relu())


def test_a_block_of_resnet_50_projects_an_input_of_another_shape():
    block = Bottleneck(8, 4, stride=2).eval()
    nn.init.zeros_(block.bn3.weight)
    x = torch.randn(2, 8, 6, 6)
    torch.testing.assert_close(block(x), block.downsample(x).relu())


def test_resnet_50_keeps_the_scale_of_its_activations():
    model = build("resnet-50", seed=0)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            std = (2 / layer.weight[:, 0].numel()) ** 0.5
            assert layer.weight.std().item() == pytest.approx(std, rel=0.05)
    with torch.no_grad():
        answers = model(torch.randn(2, 3, 32, 32))
    assert answers.isfinite().all()


def test_lenet_5_has_nothing_but_pooling_after_its_convolutions():
    model = build("lenet-5", seed=0)
    x = torch.randn(2, 1, 28, 28)
    pool = nn.MaxPool2d(2)
    layers = [model.conv1, pool, model.conv2, pool, nn.Flatten(), model.fc3, nn.ReLU(), model.fc4]
    torch.testing.assert_close(model(x), nn.Sequential(*layers)(x))


def test_resnet_50_v1_strides_in_its_first_convolutions():
    strided = {name for name, layer in on_meta("resnet-50-v1").named_modules() if getattr(layer, "stride", 1) == (2, 2)}
    halving = {f"layer{stage}.0.{layer}" for stage in (2, 3, 4) for layer in ("conv1", "downsample.0")}
    assert strided == {"conv1"} | halving


def test_alexnet_of_torchvision_has_its_names_and_shapes():
    weights = {key: tuple(value.shape) for key, value in on_meta("alexnet-torchvision").state_dict().items()}
    assert {key: shape for key, shape in weights.items() if key.endswith("weight")} == {
        "features.0.weight": (64, 3, 11, 11),
        "features.3.weight": (192, 64, 5, 5),
        "features.6.weight": (384, 192, 3, 3),
        "features.8.weight": (256, 384, 3, 3),
        "features.10.weight": (256, 256, 3, 3),
        "classifier.1.weight": (4096, 9216),
        "classifier.4.weight": (4096, 4096),
        "classifier.6.weight": (1000, 4096),
    }


@pytest.mark.parametrize(
    ("name", "divisor"), [("vgg-16-cifar", 1), ("vgg-16-cifar-half", 2), ("vgg-16-cifar-quarter", 4)]
)
def test_vgg_16_for_cifar_has_the_filters_of_vgg_16_divided_by_its_width(name, divisor):
    def filters(model):
        return [layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)]

    assert filters(on_meta(name)) == [number // divisor for number in filters(on_meta("vgg-16"))]


def test_vgg_16_for_cifar_normalises_after_every_convolution():
    kinds = [type(layer) for layer in on_meta("vgg-16-cifar").features if not isinstance(layer, nn.MaxPool2d)]
    assert kinds == 13 * [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]


def test_convolutions_of_vgg_16_for_cifar_begin_near_the_identity():
    first, same, wider, *_ = (m.weight for m in build("vgg-16-cifar-quarter", 0).features if isinstance(m, nn.Conv2d))
    for weight in (same, wider):
        noise = (2 / (9 * len(weight))) ** 0.5
        identity = nn.init.dirac_(torch.empty(16, 16, 3, 3))
        assert (weight[:16] - identity).std().item() == pytest.approx(0.25 * noise, rel=0.1)
        assert weight[16:].numel() == 0 or weight[16:].std().item() == pytest.approx(noise, rel=0.1)
    assert first.std().item() == pytest.approx((2 / (9 * 16)) ** 0.5, rel=0.1)


def test_squeezenet_has_as_many_weights_as_hans_compressed_one():
    layers = [layer for layer in on_meta("squeezenet").modules() if isinstance(layer, nn.Conv2d)]
    assert (len(layers), sum(layer.weight.numel() for layer in layers)) == (26, 1_244_448)


def test_squeezenet_has_the_widths_of_its_paper():
    model = on_meta("squeezenet")
    fires = [model.get_submodule(f"fire{number}") for number in range(2, 10)]
    assert [fire.squeeze.out_channels for fire in fires] == [16, 16, 32, 32, 48, 48, 64, 64]
    assert [fire.expand1x1.out_channels + fire.expand3x3.out_channels for fire in fires] == [
        *(128, 128, 256, 256, 384, 384, 512, 512)
    ]


def test_squeezenet_adds_the_last_biases_around_its_features():
    model = build("squeezenet", seed=0, classes=3, input_shape=(3, 64, 64)).eval()
    nn.init.zeros_(model.conv10.weight)
    model.conv10.bias.data = torch.tensor([1.0, -1.0, 0.5])
    with torch.no_grad():
        torch.testing.assert_close(model(torch.rand(1, 3, 64, 64)), torch.tensor([[1.0, 0.0, 0.5]]))
        features = model.fire9(torch.rand(1, 512, 3, 3))
        assert model.conv10(features).shape == (1, 3, 5, 5)


def test_efficientnet_lite0_has_the_channels_and_strides_of_its_paper():
    blocks = on_meta("efficientnet-lite0").blocks
    assert [block.project.out_channels for block in blocks] == [
        *(16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320)
    ]
    assert [number for number, block in enumerate(blocks) if block.depthwise.stride == (2, 2)] == [1, 3, 5, 11]
    assert {block.depthwise.kernel_size for block in blocks} == {(3, 3), (5, 5)}
    assert [block.adds_input for block in blocks].count(True) == 9


@given(size=st.integers(1, 40), kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]))
def test_same_padding_leaves_the_length_divided_by_the_stride(size, kernel, stride):
    padded = SamePadding((size, size + 1), kernel, stride)(torch.ones(1, 1, size, size + 1))
    left, right, top, bottom = SamePadding((size, size + 1), kernel, stride).frame
    assert right - left in (0, 1)
    assert bottom - top in (0, 1)
    out = nn.functional.max_pool2d(padded, kernel, stride)
    assert out.shape[-2:] == (-(-size // stride), -(-(size + 1) // stride))


def test_a_block_of_efficientnet_lite0_adds_its_input_where_it_fits():
    block = InvertedResidual(8, 8, (6, 6), expansion=6, kernel=5, stride=1).eval()
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 8, 6, 6)
    torch.testing.assert_close(block(x), x)
    other = InvertedResidual(8, 4, (6, 6), expansion=1, kernel=3, stride=2).eval()
    assert not other.adds_input
    assert other(x).shape == (2, 4, 3, 3)
