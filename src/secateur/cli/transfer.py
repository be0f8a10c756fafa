"""The command that compares the features of networks on other tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.atomic import require_file
from secateur.cli.complaints import UsageError, usage
from secateur.cli.flags import Command, DataRoot, Json, Trust, allow_imports, named, optional
from secateur.data.features import FeatureType
from secateur.experiments.feature_network import Source, feature_network, parse_sources, require_source
from secateur.experiments.versions import versions
from secateur.networks import is_import_path, modules_of
from secateur.plain_data import to_plain
from secateur.report.tables.transfer import study_grids
from secateur.report.terminal import Watcher, say
from secateur.results import write
from secateur.transfer.features import FeatureNetwork
from secateur.transfer.fine_tuning import FineTuneConfig
from secateur.transfer.outcome import TransferStudy
from secateur.transfer.task import TransferTask


@dataclass(frozen=True, kw_only=True)
class Transfer(Command):
    """Compare the features of pruned networks with those of a dense one on other tasks."""

    interrupted: ClassVar[str] = "interrupted; what is done is kept: the same command continues from there"

    dense: Annotated[
        tyro.conf.Positional[str],
        named("DENSE"),
        Doc(
            "the directory of a run, a .cut file, a pretrained network by name, or package.module:callable; where no "
            "scaling of inputs is recorded, that of the pretrained weights of the same network is used, or else the "
            "mean and standard deviation of ImageNet; NAME=SOURCE chooses its name in tables"
        ),
    ]
    pruned: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        optional("PRUNED ..."),
        Doc("the same, of the networks to compare with it; table 3 shows the first one"),
    ] = ()
    tasks: Annotated[
        tuple[str, ...],
        optional("NAME|FOLDER ..."),
        Doc(
            "data sets by name, or folders of classes; with :mAP or :Recall@4 at the end, the test pictures are "
            "searched by class"
        ),
    ] = ()
    pair: Annotated[
        tyro.conf.UseAppendAction[tuple[tuple[str, str], ...]],
        optional("NAME NAME"),
        Doc("compare the first of these networks with the second as well; may be given several times"),
    ] = ()
    data_root: DataRoot = None
    layer: Annotated[
        str | None,
        optional("NAME"),
        Doc("the module whose output is used, of all networks; none: what the last linear layer reads"),
    ] = None
    sparse: Annotated[bool, Doc("extract features with kernels that skip zeros, where these are faster")] = False
    half: Annotated[bool, Doc("keep features as 16-bit floats, in half the space")] = False
    fine_tune: Annotated[
        bool, Doc("fine-tune the whole networks on classes and attributes too, with their zeros kept")
    ] = False
    fine_tune_epochs: Annotated[int, Doc("passes over the training pictures of a task")] = FineTuneConfig().epochs
    fine_tune_lr: Annotated[
        tuple[float, ...], Doc("learning rates; one training picture in five, held out, chooses one of several")
    ] = FineTuneConfig().lr
    save: Annotated[
        Path | None, optional("PATH"), Doc("a JSON file to write the result to as well, after each task")
    ] = None
    page: Annotated[
        Path | None,
        optional("PATH"),
        Doc("an HTML file to write as well: scores, curves, and pictures on which the first two networks disagree"),
    ] = None
    trust: Trust = ()
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.data.downloads import cache_directory
        from secateur.transfer.sets import find
        from secateur.transfer.study import pairs_of, study

        if not self.pruned:
            raise UsageError("PRUNED is missing: name one network or more to compare with DENSE")
        with usage():
            sources = parse_sources((self.dense, *self.pruned))
            for source in sources:
                require_source(source.text, self.layer)
            pairs_of([source.name for source in sources], self.pair)
            if not self.tasks:
                raise ValueError("--tasks needs a value: names of data sets, or folders of classes")
            entries = [find(task) for task in self.tasks]
            fine_tuning = self._fine_tuning()
            for path in (self.save, self.page):
                if path is not None:
                    require_file(path).parent.mkdir(parents=True, exist_ok=True)  # before hours of work
        if self.page is not None:
            from secateur.report.page.render import require_bokeh

            require_bokeh()
        root = cache_directory() if self.data_root is None else self.data_root
        tasks = {entry.name: entry.load(root) for entry in entries}
        console, found = Console(stderr=self.json), None
        dtype: FeatureType = "float16" if self.half else "float32"
        networks = self._networks(sources)
        with Watcher(console) as watcher:
            for found in study(
                networks,
                tasks,
                cache=root / "features",
                pairs=self.pair,
                dtype=dtype,
                fine_tune=fine_tuning,
                progress=watcher.step,
            ):
                found = replace(found, versions=versions())
                _say_task(console, found)
                if self.save is not None:
                    write(self.save, found)
        assert found is not None  # there is a task
        if self.json:
            print(json.dumps(to_plain(found)))
        else:
            console.print(*(grid.as_rich() for grid in study_grids(found)))
        if self.save is not None:
            say(console, f"wrote {self.save}")
        if self.page is not None:
            _write_page(self.page, found, networks, tasks, root / "features", dtype)
            say(console, f"wrote {self.page}")
        return 0

    def _fine_tuning(self) -> FineTuneConfig | None:
        config = FineTuneConfig(epochs=self.fine_tune_epochs, lr=self.fine_tune_lr)
        if config != FineTuneConfig() and not self.fine_tune:
            raise ValueError("--fine-tune-epochs and --fine-tune-lr need --fine-tune")
        return config if self.fine_tune else None

    def _networks(self, sources: Sequence[Source]) -> list[FeatureNetwork]:
        imported = [source.text for source in sources if is_import_path(source.text)]
        trust = allow_imports((*self.trust, *(module for text in imported for module in modules_of(text))))
        with usage():  # a layer that does not exist is known once the network is built
            return [
                feature_network(source, layer=self.layer, is_sparse=self.sparse, trust=trust, root=self.data_root)
                for source in sources
            ]


def _write_page(
    path: Path,
    found: TransferStudy,
    networks: Sequence[FeatureNetwork],
    tasks: Mapping[str, TransferTask],
    cache: Path,
    dtype: FeatureType,
) -> None:
    from secateur.report.page.transfer import MOST_EXAMPLES, write_transfer_page
    from secateur.transfer.neighbours import disagreement

    examples = min(4, MOST_EXAMPLES // len(tasks))
    compared = [
        disagreement((networks[0], networks[1]), name, task, cache, examples=examples, dtype=dtype)
        for name, task in tasks.items()
    ]
    write_transfer_page(found, compared, path)


def _say_task(console: Console, found: TransferStudy) -> None:
    """Say what the last task has found, at once: the others may take hours."""
    task = found.tasks[-1]
    for each in task.main.differences:
        say(console, f"{task.task} ({task.measure}), {each.network} against {each.against}: {each.sentence}")
