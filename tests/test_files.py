import errno
import os
import warnings

import pytest
import torch
import toy_networks
from torch import nn
from torch.nn.utils import prune as torch_prune
from torch.utils._python_dispatch import TorchDispatchMode

import secateur
from secateur import networks


def sparse(model, density=0.2):
    """Prune a model by chance, and quantise what is left."""
    with torch.no_grad():
        for parameter in model.parameters():
            kept = torch.rand(parameter.shape) < density
            parameter.copy_((parameter * 20).round().where(kept, 0.0) / 20 + 0.0)
    return model


def assert_same(state, expected):
    assert list(state) == list(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], tensor), name


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.cut"


# There and back


@pytest.mark.parametrize("name", ["lenet-300-100", "lenet-5"])
def test_a_network_of_ours_is_built_and_filled(name, path):
    model = sparse(networks.build(name, seed=1), 0.02)
    size = secateur.save(model, path)
    before = torch.get_rng_state()
    again = secateur.load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert type(again) is type(model)
    assert_same(again.state_dict(), model.state_dict())
    assert size == path.stat().st_size < 25_000


class Largest(TorchDispatchMode):
    """Remember the largest tensor that is made and has memory."""

    elements = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        answer = operator(*args, **kwargs or {})
        if isinstance(answer, torch.Tensor) and not answer.is_meta:
            self.elements = max(self.elements, answer.numel())
        return answer


def test_a_large_network_takes_no_memory_before_the_file_is_known_to_hold_it(path):
    secateur.save(nn.Linear(3, 2), path, architecture="vgg-16")
    with Largest() as largest, pytest.raises(ValueError, match=r'does not hold "features.0.weight", which VGG16 has'):
        secateur.load(path)
    assert largest.elements < 1000


@pytest.mark.parametrize(
    "build",
    [
        toy_networks.mlp,
        toy_networks.Tied,
        toy_networks.Custom,
        toy_networks.Attention,
        lambda: toy_networks.Recurrent(nn.LSTM),
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)),
        lambda: nn.Linear(4, 3).half(),
        lambda: nn.Linear(4, 3).bfloat16(),
    ],
)
@pytest.mark.parametrize("change", [sparse, lambda model: model], ids=["sparse", "dense"])
def test_a_model_of_any_class_comes_back_into_another(build, change, path):
    model, other = change(build()), build()
    secateur.save(model, path)
    assert secateur.load(path, other) is other
    assert_same(other.state_dict(), model.state_dict())
    assert_same(secateur.load_state(path), model.state_dict())


def test_buffers_come_back(path):
    model, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    model(torch.randn(5, 3))
    secateur.save(model, path)
    assert secateur.load(path, other).num_batches_tracked == 1
    assert torch.equal(other.running_var, model.running_var)


def test_a_pruned_sibling_is_saved(path):
    sibling = secateur.build_sibling(
        networks.build("lenet-300-100", seed=0), secateur.SiblingConfig(init_quantile=0.9, alpha=1e5)
    )
    model = secateur.prune(sibling)
    secateur.save(model, path)
    assert_same(secateur.load(path).state_dict(), model.state_dict())
    assert path.stat().st_size < 0.2 * 1_066_440


def test_ties_cost_once_and_stay(path):
    model = toy_networks.Tied()
    secateur.save(model, path)
    state = secateur.load_state(path)
    assert state["head.weight"] is state["embed.weight"]
    other = secateur.load(path, toy_networks.Tied())
    assert other.head.weight is other.embed.weight


def test_what_a_parameter_is_stays_and_only_its_values_change(path):
    model = toy_networks.mlp()
    secateur.save(model, path)
    other = toy_networks.mlp()
    other[0].weight.requires_grad_(False)
    kept = list(other.parameters())
    secateur.load(path, other)
    assert all(a is b for a, b in zip(kept, other.parameters(), strict=True))
    assert not other[0].weight.requires_grad


@pytest.mark.parametrize("codec", ["raw", "huffman"])
def test_a_codec_can_be_chosen(codec, path):
    secateur.save(sparse(networks.build("lenet-300-100", seed=0)), path, codec=codec)
    with secateur.encode.open_archive(path) as archive:
        assert {record.codec for record in archive.records} <= {codec, "raw"}
        assert archive.record("fc1.weight").codec == codec


def test_the_smallest_codec_is_the_default(path):
    model = sparse(networks.build("lenet-300-100", seed=0))
    sizes = [secateur.save(model, path, codec=c.name) for c in secateur.encode.codecs.CODECS]
    assert secateur.save(model, path) <= min(sizes)


def test_metadata_goes_with_the_file(path):
    secateur.save(nn.Linear(2, 2), path, metadata={"error": "1.62 %", "θ": "learned"})
    with secateur.encode.open_archive(path) as archive:
        assert archive.metadata == {"error": "1.62 %", "θ": "learned"}


# The architecture


def test_a_class_that_is_not_ours_is_not_imported_unasked(path):
    secateur.save(nn.Linear(3, 2), path, architecture=("torch.nn:Linear", {"in_features": 3, "out_features": 2}))
    with pytest.raises(ValueError, match=r"names torch.nn:Linear, which is not one of our networks, and nothing was"):
        secateur.load(path)
    assert isinstance(secateur.load(path, trust=["torch.nn"]), nn.Linear)


def test_a_function_that_a_trusted_module_only_imports_is_not_called(path):
    secateur.save(nn.Linear(3, 2), path, architecture=("os:system", {"command": "false"}))
    with pytest.raises(ValueError, match=r"os:system is defined in (posix|nt), which is not trusted"):
        secateur.load(path, trust=["os"])


def test_without_an_architecture_a_model_is_asked_for(path):
    secateur.save(nn.Linear(3, 2), path)
    with pytest.raises(ValueError, match="does not say which network it holds: pass it as model=, or use load_state"):
        secateur.load(path)


@pytest.mark.parametrize(
    ("architecture", "complaint"),
    [("lenet5", 'there is no network "lenet5": did you mean "lenet-5"'), (("Linear", {}), "package.module:Class")],
)
def test_an_architecture_that_cannot_be_is_refused(architecture, complaint, path):
    with pytest.raises(ValueError, match=complaint):
        secateur.save(nn.Linear(3, 2), path, architecture=architecture)
    assert not path.exists()


@pytest.mark.parametrize("change", [lambda model: model.bfloat16(), lambda model: model.double()])
def test_a_network_of_ours_comes_back_in_its_dtype(change, path):
    model = change(networks.build("lenet-300-100", seed=1))
    secateur.save(model, path)
    assert_same(secateur.load(path).state_dict(), model.state_dict())


def test_a_network_in_several_dtypes_comes_back_so(path):
    model = networks.build("lenet-300-100", seed=1)
    model.fc2.half()
    secateur.save(model, path)
    assert_same(secateur.load(path).state_dict(), model.state_dict())


# A network of ours of another size


def test_a_network_of_ours_with_other_classes_comes_back_without_importing_anything(path):
    model = sparse(networks.build("lenet-300-100", 1, classes=7, input_shape=(1, 28, 28)))
    secateur.save(model, path)
    with secateur.encode.open_archive(path) as archive:
        assert archive.architecture.name == "secateur.networks:build"
        assert archive.architecture.arguments == {"name": "lenet-300-100", "classes": 7, "input_shape": [1, 28, 28]}
    again = secateur.load(path)
    assert (type(again), again.classes, again.input_shape) == (type(model), 7, (1, 28, 28))
    assert_same(again.state_dict(), model.state_dict())
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(secateur.load_sparse(path, batch=2)(x), model(x))


def test_a_network_of_its_published_size_is_known_by_its_name(path):
    secateur.save(networks.build("lenet-300-100", 1, classes=10, input_shape=(1, 28, 28)), path)
    with secateur.encode.open_archive(path) as archive:
        assert (archive.architecture.name, archive.architecture.arguments) == ("lenet-300-100", None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 3},
        {"name": "os:system"},
        {"classes": 0},
        {"classes": 1 << 40},
        {"classes": True},
        {"input_shape": [1, 28]},
        {"input_shape": [1, 28, -28]},
        {"input_shape": "28"},
        {"seed": 1},
    ],
)
def test_a_size_that_cannot_be_is_refused(wrong, path):
    arguments = {"name": "lenet-300-100", "classes": 7, "input_shape": [1, 28, 28]} | wrong
    secateur.save(nn.Linear(3, 2), path, architecture=("secateur.networks:build", arguments))
    with pytest.raises(ValueError, match="names one of our networks with a size that cannot be"):
        secateur.load(path)


# All or nothing


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)), '"2.weight" is torch.float32 of shape'),
        (nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)).half(), "torch.float16 of shape"),
        (nn.Sequential(nn.Linear(12, 16), nn.ReLU()), 'holds "2.weight", which Sequential does not have'),
        (nn.Sequential(*toy_networks.mlp(), nn.Linear(4, 4)), 'does not hold "3.weight", which Sequential has'),
    ],
)
def test_a_model_of_another_kind_is_refused_and_left_alone(other, complaint, path):
    secateur.save(toy_networks.mlp(), path)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(ValueError, match=complaint):
        secateur.load(path, other)
    assert_same(other.state_dict(), before)


class Pair(nn.Module):
    """Two parameters, or two views of one memory."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)


SIX = torch.arange(6.0)


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        (torch.zeros(6, device="meta"), '"second" lies on the meta device'),
        (nn.UninitializedParameter(), '"second" has no shape yet: call the model once'),
        (torch.zeros(1).expand(6), 'elements of "second" share memory'),
        (torch.zeros(4).as_strided((3, 2), (1, 1)), 'elements of "second" share memory'),
    ],
)
def test_a_tensor_that_cannot_be_filled_is_refused_before_another_changes(second, complaint, path):
    secateur.save(Pair(SIX, SIX + 1), path)
    other = Pair(torch.zeros(6), torch.zeros(6))
    other.second = second if isinstance(second, nn.Parameter) else nn.Parameter(second)
    with pytest.raises(ValueError, match=complaint):
        secateur.load(path, other)
    assert torch.equal(other.first, torch.zeros(6))


@pytest.mark.parametrize("share", [lambda memory: memory, torch.zeros_like])
def test_a_file_of_equal_values_goes_into_a_model_with_or_without_ties(share, path):
    secateur.save(Pair(SIX, SIX.clone()), path)
    memory = torch.zeros(6)
    other = secateur.load(path, Pair(memory, share(memory)))
    assert torch.equal(other.first, SIX)
    assert torch.equal(other.second, SIX)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda memory: memory[:6], lambda memory: memory[:6]),
        (lambda memory: memory[:6], lambda memory: memory[3:9]),
        (lambda memory: memory[:6], lambda memory: memory[::2][:6]),
    ],
)
def test_a_file_of_other_values_does_not_go_into_a_model_that_shares_memory(first, second, path):
    secateur.save(Pair(SIX, SIX + 1), path)
    memory = torch.zeros(12)
    with pytest.raises(ValueError, match=r'"first" shares memory .* of Pair, .* other values in .*: untie'):
        secateur.load(path, Pair(first(memory), second(memory)))
    assert not memory.any()


def test_parts_of_one_memory_that_do_not_overlap_are_filled(path):
    secateur.save(Pair(SIX, SIX + 1), path)
    memory = torch.zeros(12)
    secateur.load(path, Pair(memory[::2], memory[1::2]))
    assert torch.equal(memory.view(6, 2), torch.stack([SIX, SIX + 1], 1))


def test_a_file_with_one_bad_stream_changes_nothing(path):
    secateur.save(toy_networks.mlp(), path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    other = toy_networks.mlp()
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(secateur.FormatError, match=r'model.cut: tensor "2.bias", byte \d+: .* checksum'):
        secateur.load(path, other)
    assert_same(other.state_dict(), before)


def test_a_caller_limits_the_memory(path):
    secateur.save(nn.Linear(100, 100), path)
    with pytest.raises(secateur.FormatError, match="more memory than max_bytes = 40,000 allows"):
        secateur.load_state(path, max_bytes=40_000)
    assert len(secateur.load_state(path, max_bytes=40_400)) == 2


def test_a_full_disk_leaves_no_file(path, monkeypatch):
    def no_room(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match=r"No space left on device: '.*/model\.cut'"):
        secateur.save(toy_networks.mlp(), path)
    assert list(path.parent.iterdir()) == []


# What is not plain


def test_a_sibling_is_refused_with_the_remedy(path):
    with pytest.raises(ValueError, match=r'"0.weight" is read through LearnedThreshold: .*secateur\.prune'):
        secateur.save(secateur.build_sibling(toy_networks.mlp()), path)
    assert not path.exists()


def test_masks_of_torch_are_refused_with_the_remedy(path):
    model = toy_networks.mlp()
    torch_prune.l1_unstructured(model[2], "weight", amount=0.5)
    with pytest.raises(ValueError, match=r'"2.weight" is masked by torch.nn.utils.prune: .*remove'):
        secateur.save(model, path)
    torch_prune.remove(model[2], "weight")
    model[2].weight.data += 0.0
    secateur.save(model, path)


def test_negative_zeros_come_back_and_are_remarked_on(path):
    model, other = nn.Linear(10, 10), nn.Linear(10, 10)
    for each in (model, other):
        each.weight.data.fill_(-0.0)
    with pytest.warns(UserWarning, match='"weight" holds 100 negative zeros, .* add 0.0 to it to lose them'):
        secateur.save(model, path)
    assert secateur.load_state(path)["weight"].signbit().all()
    with pytest.warns(UserWarning, match='"0.weight" holds 100 .*, and 1 more tensor 100, .* add 0.0 to them') as said:
        secateur.save(nn.Sequential(model, nn.ReLU(), other), path)
    assert len(said) == 1
    model.weight.data += 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        secateur.save(model, path)
    assert not secateur.load_state(path)["weight"].signbit().any()


def test_a_state_that_is_not_a_tensor_is_refused_by_name(path):
    class Stateful(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    with pytest.raises(ValueError, match='"_extra_state" is not a tensor but dict'):
        secateur.save(Stateful(2, 2), path)
