"""The command that shows what would be pruned in a network, before training."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Annotated

import torch
import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur import networks
from secateur.cli.complaints import require_at_least, usage
from secateur.cli.flags import Classes, Command, InputShape, Json, allow_imports, named
from secateur.report.terminal import summary_table
from secateur.sibling import SiblingConfig, left_out, targets

Network = Annotated[
    tyro.conf.Positional[str],
    named("NETWORK"),
    Doc(f"{', '.join(networks.names())}, or package.module:callable, which is imported and called"),
]


@dataclass(frozen=True, kw_only=True)
class Summary(Command):
    """Show what would be pruned in a network, before training."""

    network: Network
    classes: Classes = None
    input_shape: InputShape = None
    json: Json = False
    sibling: SiblingConfig = field(default_factory=SiblingConfig)

    @override
    def __call__(self) -> int:
        with usage():
            networks.require_known(self.network)
            require_at_least(1, classes=self.classes)
            trust = allow_imports(networks.modules_of(self.network))
            with without_memory(self.network):  # only shapes are needed
                model = networks.build(self.network, classes=self.classes, input_shape=self.input_shape, trust=trust)
                found, others = targets(model, self.sibling), left_out(model, self.sibling)
        if self.json:
            tensors = [asdict(target) | {"weights": target.weights} for target in found]
            totals = {key: sum(tensor[key] for tensor in tensors) for key in ("weights", "thresholds")}
            print(json.dumps({**totals, "tensors": tensors, "left_out": [asdict(each) for each in others]}))
        else:
            Console().print(summary_table(found, others))
        return 0


def without_memory(network: str) -> AbstractContextManager[object]:
    """Build a network of ours on the meta device inside; others may compute something when they are built."""
    return nullcontext() if networks.is_import_path(network) else torch.device("meta")
