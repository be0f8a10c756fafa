"""Commands that write, read and measure .cut files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import usage
from secateur.cli.flags import (
    Command,
    DataRoot,
    FileOrRun,
    Json,
    NewestOf,
    Trust,
    allow_imports,
    file_of,
    model_of,
    named,
    optional,
)

MaxGb = Annotated[float, Doc("refuse a file whose tensors take more memory than this")]


@dataclass(frozen=True, kw_only=True)
class Pack(Command):
    """Write the tensors of a safetensors file to a .cut file, lossless."""

    source: Annotated[
        tyro.conf.Positional[Path], named("MODEL.safetensors"), Doc("a plain model, pruned or not, or a run")
    ]
    target: Annotated[tyro.conf.Positional[Path], named("OUT.cut"), Doc("the file to write")]
    codec: Annotated[str, Doc("raw, huffman, rans, context, or the smallest for each tensor")] = "smallest"

    @override
    def __call__(self) -> int:
        from secateur import networks
        from secateur.encode.codecs import choose
        from secateur.encode.convert import pack
        from secateur.report.terminal.files import print_packed

        with usage():
            choose(self.codec)
        source = model_of(self.source)
        pack(source, self.target, codec=self.codec, networks=networks.NETWORKS)
        print_packed(Console(), source, self.target)
        return 0


@dataclass(frozen=True, kw_only=True)
class Unpack(Command):
    """Write the tensors of a .cut file to a safetensors file."""

    source: Annotated[tyro.conf.Positional[Path], named("IN.cut"), Doc("the file to read, or a run")]
    target: Annotated[tyro.conf.Positional[Path], named("OUT.safetensors"), Doc("the file to write")]
    max_gb: MaxGb = 4.0

    @override
    def __call__(self) -> int:
        from secateur.encode.convert import unpack
        from secateur.report.terminal.files import print_packed

        source = file_of(self.source, Path("runs"))
        unpack(source, self.target, max_bytes=_bytes(self.max_gb))
        print_packed(Console(), source, self.target)
        return 0


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a .cut file as ONNX, safetensors or a state dict, or a run for the Hugging Face Hub."""

    source: Annotated[tyro.conf.Positional[Path], named("IN.cut"), Doc("the file to read, or a run")]
    target: Annotated[
        tyro.conf.Positional[Path],
        named("OUT"),
        Doc("the file to write, which ends in .onnx, .safetensors or .pt; with --hub a new folder"),
    ]
    hub: Annotated[bool, Doc("write a folder for the Hugging Face Hub, with a model card of the run's numbers")] = False
    trust: Trust = ()
    max_gb: MaxGb = 4.0

    @override
    def __call__(self) -> int:
        from secateur.integrations.export import export, require_format
        from secateur.report.terminal.files import print_exported

        if self.hub:
            from secateur.experiments.directory import RunDirectory
            from secateur.integrations.hub import write_hub_folder

            print(write_hub_folder(RunDirectory(self.source), self.target))
            return 0
        with usage():
            require_format(self.target)
        source = file_of(self.source, Path("runs"))
        difference = export(source, self.target, max_bytes=_bytes(self.max_gb), trust=allow_imports(self.trust))
        print_exported(Console(), source, self.target, difference)
        return 0


@dataclass(frozen=True, kw_only=True)
class Inspect(Command):
    """Show what a .cut file spends on each tensor."""

    file: FileOrRun = None
    runs: NewestOf = Path("runs")
    max_gb: MaxGb = 4.0
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.encode.inspection import inspect
        from secateur.report.terminal.files import file_grid

        report = inspect(file_of(self.file, self.runs), max_bytes=_bytes(self.max_gb))
        if self.json:
            print(json.dumps(asdict(report)))
        else:
            Console().print(file_grid(report).as_rich())
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify(Command):
    """Decode a .cut file and check every bit of it."""

    file: FileOrRun = None
    runs: NewestOf = Path("runs")
    against: Annotated[Path | None, optional("PATH"), Doc("the safetensors file it was made from, or a run")] = None
    data: Annotated[str | None, optional("STR"), Doc("count errors on the test images of this data set or folder")] = (
        None
    )
    data_root: DataRoot = None
    trust: Trust = ()
    max_gb: MaxGb = 4.0
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur import data
        from secateur.experiments.verification import verify
        from secateur.report.terminal.files import print_verification

        with usage():
            if self.data is not None:
                data.require_known(self.data)
        found = verify(
            file_of(self.file, self.runs),
            against=None if self.against is None else model_of(self.against),
            data_set=self.data,
            data_root=self.data_root,
            max_bytes=_bytes(self.max_gb),
            trust=allow_imports(self.trust),
        )
        if self.json:
            print(json.dumps(asdict(found)))
        else:
            print_verification(Console(), found)
        return 0 if found.is_equal else 1


@dataclass(frozen=True, kw_only=True)
class Sizes(Command):
    """Compare the size of the same weights in every format, from dense to entropy."""

    source: Annotated[
        tyro.conf.Positional[Path], named("MODEL.safetensors"), Doc("a plain model, pruned or not, or a run")
    ]
    nncodec: Annotated[Path | None, optional("PATH"), Doc("a Python interpreter with NNCodec, to weigh it as well")] = (
        None
    )
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.encode.convert import read_safetensors
        from secateur.encode.inspection import sizes
        from secateur.report.terminal.files import sizes_grid

        source = model_of(self.source)
        found = sizes(read_safetensors(source)[0], nncodec=self.nncodec)
        if self.json:
            print(json.dumps(found))
        else:
            Console().print(sizes_grid(source, found).as_rich())
        return 0


def _bytes(gigabytes: float) -> int:
    with usage():
        if not 0 < gigabytes < 1 << 20:
            raise ValueError(f"max-gb must be above 0 and below a million, got {gigabytes:g}")
    return int(gigabytes * (1 << 30))
