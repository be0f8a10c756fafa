"""How much faster is a whole sparse network, and is any ever slower? (one thread).

LeNet-300-100 and LeNet-5 as secateur prunes them: from a file (--lenet-300-100, --lenet-5: .cut, or the .safetensors of
a run), else from the run of the preset `quick` below --runs, which is trained first if it does not exist (minutes).
Other networks from files of finished runs (--pruned), which may not become slower either. ResNet-50 and VGG-16 with
random weights, of which 90 % of those of convolutions are zero, and dense linear layers; ResNet-50 must be planned
within 10 seconds. Then small networks at every density and batch size, none of which may
become slower: a row of that sweep reaches its target if the upper end of the 95 % interval of its median does. Sparse,
dense eager torch and ONNX Runtime (not in the sweep) take turns in one process; a ratio is the median over the turns.
The limit is Amdahl's: the time of the dense network over its time if layers with zeros were free. Operations
fused with such a layer can exceed it. An interrupted run keeps its rows, and --add measures the missing ones.
"""

import argparse
import copy
import math
from collections.abc import Callable
from pathlib import Path

import torch
from sparse_rivals import CLOCKS, Table, keep_signal_, parser
from torch import Tensor, nn

import secateur
from secateur import networks
from secateur.experiments.models import load_model
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.subject import random_zeros_
from secateur.measure import compare_latency, count
from secateur.measure.latency import Clock
from secateur.networks.resnet import Bottleneck
from secateur.run import timing

LENETS = {"lenet-300-100": {1: 6, 64: 12, 256: 10}, "lenet-5": {1: 4, 64: 4}}  # batch size: target
SHARE_OF_LIMIT = {"lenet-5": 0.8}  # or that much of the limit
LARGE = {"resnet-50": 2.5, "vgg-16": 2.5}
PLAN_S = {"resnet-50": 10.0}
PRUNED_BATCHES = (1, 8)
NEVER_BELOW = 0.98
DENSITIES = (0.0, 0.01, 0.02, 0.05, 0.10, 0.20, 0.35, 0.50, 0.75, 1.0)
BATCHES = (1, 4, 16, 64, 256)
LIMIT_REPEATS = 20  # turns of the measurements behind a limit


def separable() -> nn.Module:
    """Return two depthwise separable convolutions."""
    layers: list[nn.Module] = []
    for channels, filters, stride in ((16, 32, 1), (32, 64, 2)):
        layers += [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False), nn.BatchNorm2d(channels)]
        layers += [nn.ReLU(), nn.Conv2d(channels, filters, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def perceptron() -> nn.Module:
    """Return the linear layers of a small transformer's block."""
    return nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192))


SWEEP: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet-300-100": (lambda: networks.build("lenet-300-100", seed=0), (1, 28, 28)),
    "lenet-5": (lambda: networks.build("lenet-5", seed=0), (1, 28, 28)),
    "bottleneck": (lambda: Bottleneck(64, 16), (64, 14, 14)),
    "separable": (separable, (16, 14, 14)),
    "perceptron": (perceptron, (192,)),
}


def pruned_lenet(name: str, options: argparse.Namespace) -> nn.Module:
    """Return a LeNet that was pruned by training."""
    path = getattr(options, name.replace("-", "_"))
    if path is None:
        path = run(preset("quick", name, data=options.data), options.runs, resume=True).model
    model = secateur.load(path) if path.suffix == ".cut" else load_model(path)
    return model.eval()


class Recorded(nn.Module):
    """Return the recorded output of a layer, in no time."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Tensor:
        """Return the recorded output."""
        return self.answer


def amdahl_limit(model: nn.Module, x: Tensor, clock: Clock) -> float:
    """Return the dense network's time over its time if layers with zeros were free."""
    # What deepcopy uses as the copy of a layer: a recording, or the layer itself.
    copies: dict[int, object] = {}

    def record(layer: nn.Module, _: object, answer: Tensor) -> None:
        weight = layer.get_parameter("weight")
        copies[id(layer)] = Recorded(answer) if torch.count_nonzero(weight) < weight.numel() else layer

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    with torch.inference_mode():
        model(x)
        for hook in hooks:
            hook.remove()
        rest = copy.deepcopy(model, copies)
        found = compare_latency(
            {"rest": lambda: rest(x), "dense": lambda: model(x)}, repeats=LIMIT_REPEATS, clock=clock
        )
    return found["dense"].time_ratio


def measure_lenets(table: Table) -> None:
    for network, at_least in LENETS.items():
        rows = {f"{network} as pruned, batch {batch}": batch for batch in at_least}
        if not any(map(table.wants, rows)):
            continue
        model = pruned_lenet(network, table.options)
        kept = count(model).prunable
        print(f"{network}: {kept.kept:,} of {kept.weights:,} weights kept ({kept.ratio:.0f}×)")
        for name, batch in rows.items():
            if table.wants(name):
                x = torch.rand(batch, *model.input_shape)
                limit = amdahl_limit(model, x, CLOCKS[table.options.clock])
                table.measure(
                    name,
                    model,
                    x,
                    at_least=at_least[batch],
                    engines=table.engines(model, x),
                    limit=limit,
                    or_share_of_limit=SHARE_OF_LIMIT.get(network, math.inf),
                    limit_repeats=LIMIT_REPEATS,
                    kept=kept.kept,
                )


def measure_given(table: Table) -> None:
    """Measure pruned networks from files; none may become slower."""
    for path in table.options.pruned:
        model = secateur.load(path).eval()
        kept = count(model).prunable
        network, _ = networks.name_of(model) or (type(model).__name__, False)
        for batch in PRUNED_BATCHES:
            name = f"{network} as pruned to {kept.ratio:.0f}×, batch {batch}"
            if table.wants(name):
                x = torch.randn(batch, *model.input_shape)
                table.measure(
                    name,
                    model,
                    x,
                    at_least=NEVER_BELOW,
                    by_interval=True,
                    engines=table.engines(model, x),
                    limit=amdahl_limit(model, x, CLOCKS[table.options.clock]),
                    limit_repeats=LIMIT_REPEATS,
                    kept=kept.kept,
                )


def measure_large(table: Table) -> None:
    for network, at_least in LARGE.items():
        name = f"{network}, 90% zeros in convolutions, batch 1"
        if not table.wants(name):
            continue
        model = random_zeros_(networks.build(network, seed=0).eval(), 0.10, kinds=(nn.Conv2d,))
        x = torch.randn(1, *model.input_shape)
        keep_signal_(model, x)
        limit = amdahl_limit(model, x, CLOCKS[table.options.clock])
        engines = table.engines(model, x)
        plan_s = PLAN_S.get(network, math.inf)
        table.measure(
            name,
            model,
            x,
            at_least=at_least,
            engines=engines,
            limit=limit,
            limit_repeats=LIMIT_REPEATS,
            plan_s_at_most=plan_s,
        )


def measure_sweep(table: Table) -> None:
    """Search for a network that is slower after compiling."""
    for network, (make, shape) in SWEEP.items():
        for batch in BATCHES:
            for density in DENSITIES:
                name = f"never slower: {network}, {density:.0%}, batch {batch}"
                if not table.wants(name):
                    continue
                model, x = random_zeros_(make().eval(), density), torch.randn(batch, *shape)
                repeats = table.options.sweep_repeats
                table.measure(name, model, x, at_least=NEVER_BELOW, by_interval=True, engines={}, repeats=repeats)


def main() -> None:
    flags = parser(__doc__, repeats=40)
    flags.add_argument(
        "--sweep-repeats", type=int, default=200, help="turns of each rival in the sweep, where small losses count"
    )
    flags.add_argument("--lenet-300-100", type=Path, help="a pruned LeNet-300-100")
    flags.add_argument("--lenet-5", type=Path, help="a pruned LeNet-5")
    flags.add_argument("--pruned", type=Path, nargs="*", default=[], help=".cut files of other pruned networks")
    flags.add_argument("--runs", type=Path, default=Path("runs"), help="where the quick runs are, or will be")
    flags.add_argument("--data", default="mnist", help="what the quick runs are trained on")
    table = Table(flags.parse_args())
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    timing.clock = CLOCKS[table.options.clock]  # plans, too
    for _ in range(table.options.passes):
        measure_lenets(table)
        measure_given(table)
        measure_large(table)
        measure_sweep(table)
    table.finish()


if __name__ == "__main__":
    main()
