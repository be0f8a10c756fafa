"""Commands that write, read and weigh .cut files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import usage
from secateur.cli.flags import Command, DataRoot, Json, named, optional
from secateur.nearest import require_one_of

MaxGb = Annotated[float, Doc("refuse a file whose tensors take more memory than this")]


@dataclass(frozen=True, kw_only=True)
class Pack(Command):
    """Write the tensors of a safetensors file to a .cut file, every bit of them, as small as they get."""

    source: Annotated[tyro.conf.Positional[Path], named("MODEL.safetensors"), Doc("a plain model, pruned or not")]
    target: Annotated[tyro.conf.Positional[Path], named("OUT.cut"), Doc("the file to write")]
    codec: Annotated[str, Doc("raw, huffman, rans, context, or the smallest for each tensor")] = "smallest"

    @override
    def __call__(self) -> int:
        from secateur.encode.codecs import choose
        from secateur.encode.convert import pack
        from secateur.report.files import print_packed

        with usage():
            choose(self.codec)
        pack(self.source, self.target, codec=self.codec)
        print_packed(Console(), self.source, self.target)
        return 0


@dataclass(frozen=True, kw_only=True)
class Unpack(Command):
    """Write the tensors of a .cut file to a safetensors file."""

    source: Annotated[tyro.conf.Positional[Path], named("IN.cut"), Doc("the file to read")]
    target: Annotated[tyro.conf.Positional[Path], named("OUT.safetensors"), Doc("the file to write")]
    max_gb: MaxGb = 4.0

    @override
    def __call__(self) -> int:
        from secateur.encode.convert import unpack
        from secateur.report.files import print_packed

        unpack(self.source, self.target, max_bytes=_bytes(self.max_gb))
        print_packed(Console(), self.source, self.target)
        return 0


@dataclass(frozen=True, kw_only=True)
class Inspect(Command):
    """Show what a .cut file spends on each tensor."""

    file: Annotated[tyro.conf.Positional[Path], named("FILE.cut"), Doc("the file to read")]
    max_gb: MaxGb = 4.0
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.encode.inspection import inspect
        from secateur.report.files import file_grid

        report = inspect(self.file, max_bytes=_bytes(self.max_gb))
        if self.json:
            print(json.dumps(asdict(report), ensure_ascii=False))
        else:
            # Nine columns: a narrow terminal wraps lines, which is better than numbers broken in two.
            Console(width=max(Console().width, 100)).print(file_grid(report).as_rich())
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify(Command):
    """Decode a .cut file and check every bit, against the original and on test images if these are given."""

    file: Annotated[tyro.conf.Positional[Path], named("FILE.cut"), Doc("the file to read")]
    against: Annotated[Path | None, optional("PATH"), Doc("the safetensors file it was made from")] = None
    data: Annotated[
        str | None, optional("STR"), Doc("count errors on its test images: mnist, fashion-mnist, cifar10, digits")
    ] = None
    data_root: DataRoot = None
    max_gb: MaxGb = 4.0
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur import data
        from secateur.encode.convert import verify
        from secateur.report.files import print_verification

        with usage():
            if self.data is not None:
                require_one_of("data set", self.data, data.names())
        found = verify(
            self.file,
            against=self.against,
            data_set=self.data,
            data_root=self.data_root,
            max_bytes=_bytes(self.max_gb),
        )
        if self.json:
            print(json.dumps(asdict(found)))
        else:
            print_verification(Console(), found)
        return 0 if found.is_equal else 1


@dataclass(frozen=True, kw_only=True)
class Sizes(Command):
    """Weigh the same weights in every form: dense, compressed, sparse, by each codec, and their entropy."""

    source: Annotated[tyro.conf.Positional[Path], named("MODEL.safetensors"), Doc("a plain model, pruned or not")]
    nncodec: Annotated[Path | None, optional("PATH"), Doc("a Python interpreter with NNCodec, to weigh it as well")] = (
        None
    )
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.encode.convert import read_safetensors
        from secateur.encode.inspection import sizes
        from secateur.report.files import sizes_grid

        found = sizes(read_safetensors(self.source)[0], nncodec=self.nncodec)
        if self.json:
            print(json.dumps(found))
        else:
            Console().print(sizes_grid(self.source, found).as_rich())
        return 0


def _bytes(gigabytes: float) -> int:
    with usage():
        if not 0 < gigabytes < 1 << 20:
            raise ValueError(f"max-gb must be above 0 and below a million, got {gigabytes:g}")
    return int(gigabytes * (1 << 30))
