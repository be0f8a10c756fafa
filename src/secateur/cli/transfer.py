"""The command that compares the features of two networks on other tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import usage
from secateur.cli.flags import Command, DataRoot, Json, Trust, allow_imports, named, optional
from secateur.experiments.feature_network import feature_network, require_source
from secateur.networks import is_import_path, modules_of
from secateur.plain_data import to_plain
from secateur.report.tables.transfer import comparison_grid, similarity_grid
from secateur.report.terminal import Watcher, say
from secateur.results import TransferResult, write


@dataclass(frozen=True, kw_only=True)
class Transfer(Command):
    """Compare the features of a dense and a pruned network on other tasks."""

    interrupted: ClassVar[str] = "interrupted; features are kept: the same command continues from there"

    dense: Annotated[
        tyro.conf.Positional[str],
        named("DENSE"),
        Doc(
            "the directory of a run, a .cut file, a pretrained network by name, or package.module:callable; where no "
            "scaling of inputs is recorded, that of the pretrained weights of the same network is used, or else the "
            "mean and standard deviation of ImageNet"
        ),
    ]
    pruned: Annotated[tyro.conf.Positional[str], named("PRUNED"), Doc("the same, of the network to compare")]
    tasks: Annotated[tuple[str, ...], optional("NAME|FOLDER ..."), Doc("data sets by name, or folders of classes")]
    data_root: DataRoot = None
    layer: Annotated[
        str | None,
        optional("NAME"),
        Doc("the module whose output is used, of both networks; none: what the last linear layer reads"),
    ] = None
    sparse: Annotated[bool, Doc("extract features with kernels that skip zeros, where these are faster")] = False
    half: Annotated[bool, Doc("keep features as 16-bit floats, in half the space")] = False
    save: Annotated[Path | None, optional("PATH"), Doc("a JSON file to write the result to as well")] = None
    trust: Trust = ()
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.data.downloads import cache_directory
        from secateur.transfer.evaluate import compare
        from secateur.transfer.sets import find

        with usage():
            for source in (self.dense, self.pruned):
                require_source(source, self.layer)
            if not self.tasks:
                raise ValueError("--tasks needs a value: names of data sets, or folders of classes")
            entries = [find(task) for task in self.tasks]
        root = cache_directory() if self.data_root is None else self.data_root
        given = [
            module for source in (self.dense, self.pruned) if is_import_path(source) for module in modules_of(source)
        ]
        trust = allow_imports((*self.trust, *given))
        with usage():  # a layer that does not exist is known once the network is built
            dense, pruned = (
                feature_network(source, layer=self.layer, is_sparse=self.sparse, trust=trust, root=self.data_root)
                for source in (self.dense, self.pruned)
            )
        console, found = Console(stderr=self.json), []
        for entry in entries:
            task = entry.load(root)
            with Watcher(console) as watcher:
                found.append(
                    compare(
                        dense,
                        pruned,
                        task,
                        name=entry.name,
                        cache=root / "features",
                        dtype="float16" if self.half else "float32",
                        progress=partial(watcher.step, entry.name),
                    )
                )
        result = TransferResult(dense=self.dense, pruned=self.pruned, comparisons=tuple(found))
        if self.json:
            print(json.dumps(to_plain(result)))
        else:
            console.print(comparison_grid(result).as_rich(), similarity_grid(result).as_rich())
            for each in found:
                say(console, f"{each.task}: {each.sentence}")
        if self.save is not None:
            say(console, f"wrote {write(self.save, result)}")
        return 0
