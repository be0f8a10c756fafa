"""Where does the time of networks go that people run on CPUs, dense and compiled? (one thread, batch 1).

EfficientNet-Lite0 and a MobileNet-V2 with zeros in 1×1 convolutions and the head; a sentence encoder of six layers of
384 and one of BERT-base's shape, with zeros in their linear layers. Weights are random. Each node of the dense and of
the compiled graph is timed by itself, the shortest of all repeats counts, and the times are added by kind; `Python` is
what the whole takes beyond them, if that is more. Dense engines take turns with the compiled network.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from sparse_rivals import CLOCKS, keep_signal_, processor, take_turns
from torch import Tensor, fx, nn

import secateur
from secateur import networks
from secateur.atomic import write_atomically
from secateur.experiments.subject import random_zeros_
from secateur.experiments.versions import versions
from secateur.graph.trace import trace
from secateur.measure.engines import prepare_all
from secateur.networks.efficientnet_lite import InvertedResidual
from secateur.run import timing

# Of each group of MobileNet-V2's blocks: expansion, channels, blocks, stride of the first block.
GROUPS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class MobileNet(nn.Module):
    """MobileNet-V2 (Sandler et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        channels, size = 32, (112, 112)
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6())
        blocks = []
        for expansion, filters, count, first in GROUPS:
            for stride in (first, *[1] * (count - 1)):
                sizes = {"expansion": expansion, "kernel": 3, "stride": stride}
                blocks.append(InvertedResidual(channels, filters, size, **sizes))
                channels, size = filters, (-(-size[0] // stride), -(-size[1] // stride))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6())
        self.fc = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        return self.fc(F.adaptive_avg_pool2d(self.head(self.blocks(self.stem(x))), 1).flatten(1))


class Block(nn.Module):
    """A layer of BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, steps, features) to the same shape."""
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm_one(self.out(attended) + x)
        return self.norm_two(self.down(F.gelu(self.up(x))) + x)


def encoder(layers: int, width: int, heads: int) -> nn.Module:
    """Return the layers of an encoder, without its embeddings."""
    return nn.Sequential(*(Block(width, heads) for _ in range(layers)))


def pruned_convolutions(model: nn.Module, density: float) -> nn.Module:
    """Set weights of 1×1 convolutions and linear layers to zero."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)):
            random_zeros_(layer, density)
    return keep_signal_(model.eval(), torch.randn(IMAGES))


IMAGES, CASES = (1, 3, 224, 224), dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]()
for kept in (0.2, 0.1):
    zeros = f"{1 - kept:.0%} zeros"
    CASES |= {
        f"EfficientNet-Lite0, {zeros}": (
            lambda kept=kept: pruned_convolutions(networks.build("efficientnet-lite0", seed=0), kept),
            IMAGES,
        ),
        f"MobileNet-V2, {zeros}": (lambda kept=kept: pruned_convolutions(MobileNet(), kept), IMAGES),
        f"encoder of 6 × 384, 32 steps, {zeros}": (
            lambda kept=kept: random_zeros_(encoder(6, 384, 12), kept),
            (1, 32, 384),
        ),
        f"encoder of 6 × 384, 128 steps, {zeros}": (
            lambda kept=kept: random_zeros_(encoder(6, 384, 12), kept),
            (1, 128, 384),
        ),
        f"BERT-base, 128 steps, {zeros}": (lambda kept=kept: random_zeros_(encoder(12, 768, 12), kept), (1, 128, 768)),
    }


def kind_of(graph: fx.GraphModule, node: fx.Node) -> str:
    """Say what a node does, in a word."""
    if node.op == "call_method" and node.target == "forward":
        return "sparse calls"
    module = graph.get_submodule(str(node.target)) if node.op == "call_module" else None
    if isinstance(module, nn.Conv2d):
        return "depthwise convolutions" if module.groups > 1 else "convolutions"
    name = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
    for word, kind in (("norm", "norms"), ("linear", "linear layers"), ("attention", "attention"), ("pad", "padding")):
        if word in name.lower():
            return kind
    return "activations" if name.lower() in ("relu6", "gelu") else "the rest"


class Timed(fx.Interpreter):
    """Runs a graph and notes the shortest time of each node."""

    def __init__(self, graph: fx.GraphModule, clock: Callable[[], float]) -> None:
        super().__init__(graph)
        self.clock, self.ms = clock, dict[fx.Node, float]()

    def run_node(self, n: fx.Node) -> object:
        """Run a node under the clock."""
        start = self.clock()
        result = super().run_node(n)
        spent = (self.clock() - start) * 1e3
        self.ms[n] = min(self.ms.get(n, spent), spent)
        return result


def by_kind(graph: fx.GraphModule, x: Tensor, repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the milliseconds of each kind of node."""
    timed, found = Timed(graph, clock), defaultdict[str, float](float)
    for _ in range(repeats):
        timed.run(x)
    for node, ms in timed.ms.items():
        if node.op in ("call_module", "call_function", "call_method"):
            found[kind_of(graph, node)] += ms
    return dict(found)


def measure(name: str, options: argparse.Namespace) -> dict[str, object]:
    make, shape = CASES[name]
    torch.manual_seed(0)
    model, x, clock = make().eval(), torch.randn(shape), CLOCKS[options.clock]
    start = time.perf_counter()
    fast = secateur.compile_sparse(model, x)
    plan_s = time.perf_counter() - start
    engines, missing = prepare_all(model, x, options.engines)
    runs = {"eager": model, "sparse": fast, **{each: engine.run for each, engine in engines.items()}}
    times, _ = take_turns(runs, x, options.repeats, options.clock)
    ms = {each: min(found) for each, found in times.items()}
    with torch.inference_mode():
        parts = {"dense": by_kind(trace(model), x, options.repeats, clock)}
        if isinstance(fast, fx.GraphModule):
            parts["compiled"] = by_kind(fast, x, options.repeats, clock)
    for way, whole in (("dense", "eager"), ("compiled", "sparse")):
        if way in parts:
            parts[way]["Python"] = max(ms[whole] - sum(parts[way].values()), 0.0)
    return {"ms": ms, "parts": parts, "missing": missing, "plan_s": plan_s, "stays_dense": fast.plan.dense}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--engines", nargs="*", default=["onnxruntime", "openvino"])
    parser.add_argument("--clock", choices=CLOCKS, default="cpu", help="cpu: of this thread, on a machine that is busy")
    parser.add_argument("--save", type=Path, help="write, or continue, this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    timing.clock = CLOCKS[options.clock]  # plans, too
    content: dict[str, object] = {"rows": {}, "clock": options.clock, "machine": processor(), **versions()}
    if options.save and options.save.exists():
        content = json.loads(options.save.read_text(encoding="utf-8"))
    for name in options.cases:
        if name in content["rows"]:
            continue
        row = content["rows"][name] = measure(name, options)
        print(name, {each: round(ms, 2) for each, ms in row["ms"].items()}, flush=True)
        for way, parts in row["parts"].items():
            print(f"  {way:10}", ", ".join(f"{kind} {ms:.2f}" for kind, ms in parts.items()), flush=True)
        if options.save:
            write_atomically(options.save, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
