"""How much faster are compiled networks than the fastest dense engine? Networks that people run on CPUs.

The networks of where_time_goes.py, ResNet-50, VGG-16 and AlexNet, with batches of 1 and 8, on one thread and on two.
The compiled network, eager torch, torch.compile, ONNX Runtime and OpenVINO take turns in one process; a ratio is the
median over the turns, and the smallest one over all dense engines counts. An engine that is not installed is left out,
and the end of the table says why. Nothing else may run on the machine if there are two threads. Memory is that of all
weights as the compiled network reads them and, in brackets, with the plain form that it keeps to be copied, saved and
exported.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from feature_extraction import pruned_alexnet
from sparse_rivals import CLOCKS, Table, check, keep_signal_, parser
from torch import nn
from where_time_goes import CASES as SMALL
from where_time_goes import IMAGES

import secateur
from secateur import networks
from secateur.experiments.subject import random_zeros_
from secateur.measure import dense_bytes
from secateur.measure.engines import prepare
from secateur.run import timing
from secateur.run.bench.chains import read_bytes, stored_bytes
from secateur.run.sparse_chain import SparseChain


def pruned(network: str) -> nn.Module:
    """Return one of our networks, with 90 % zeros in all of its convolutions and linear layers."""
    model = random_zeros_(networks.build(network, seed=0).eval(), 0.1)
    return keep_signal_(model, torch.randn(IMAGES))


def alexnet() -> nn.Module:
    """Return AlexNet with as many zeros in each layer as in the paper."""
    return keep_signal_(pruned_alexnet(), torch.randn(1, 3, 227, 227))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = SMALL | {
    "ResNet-50, 90% zeros": (partial(pruned, "resnet-50"), IMAGES),
    "VGG-16, 90% zeros": (partial(pruned, "vgg-16"), IMAGES),
    "AlexNet, the paper's zeros": (alexnet, (1, 3, 227, 227)),
}
BATCHES, THREADS = (1, 8), (1, 2)
ENGINES = ("onnxruntime", "openvino", "compile")  # besides eager torch
NEVER_BELOW = 0.98  # of the fastest dense engine, where no more is required
TARGETS = {  # over the fastest dense engine, by the beginning of the name, with 80 % and with 90 % zeros
    "EfficientNet-Lite0": (1.0, 1.2),
    "MobileNet-V2": (NEVER_BELOW, 1.1),
    "encoder": (1.1, 1.3),
    "BERT-base": (NEVER_BELOW, 1.4),
    "ResNet-50": (NEVER_BELOW, NEVER_BELOW),
    "VGG-16": (NEVER_BELOW, NEVER_BELOW),
    "AlexNet": (NEVER_BELOW, NEVER_BELOW),
}
MOST_MEMORY = 0.5  # of the dense weights, with 80 % zeros


def target(case: str) -> float:
    """Return how many times as fast as the fastest dense engine a network should be."""
    few, many = next(each for name, each in TARGETS.items() if case.startswith(name))
    return many if "90%" in case else few


def memory(fast: nn.Module, model: nn.Module) -> dict[str, float]:
    """Return the bytes of all weights ÷ those of the dense ones: as they are read, and as they are held."""
    chains = [module for module in fast.modules() if isinstance(module, SparseChain)]
    read, stored = sum(map(read_bytes, chains)), sum(map(stored_bytes, chains))
    rest, whole = dense_bytes(fast) - stored, dense_bytes(model)
    return {"read_memory": (rest + read) / whole, "held_memory": (rest + read + stored) / whole}


def rows() -> Iterator[tuple[str, str, int, int]]:
    """Yield the name of each row, its network, batch and threads."""
    for case in CASES:
        for batch in BATCHES:
            for threads in THREADS:
                yield f"{case}, batch {batch}, {threads} thread{'s'[: threads - 1]}", case, batch, threads


def measure(table: Table, name: str, case: str, batch: int, threads: int) -> None:
    """Compile a network, time it in turns with all dense engines, and add the row."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    make, (_, *sample) = CASES[case]
    model, x = make().eval(), torch.randn(batch, *sample)
    clock = table.options.clock if threads == 1 else "wall"  # CPU time is that of one thread
    timing.clock = CLOCKS[clock]
    start = time.perf_counter()
    fast = secateur.compile_sparse(model, x)
    plan_s = time.perf_counter() - start
    eager, sparse = prepare("eager", model, x), prepare("eager", fast, x)
    check(name, sparse.run(x), eager.run(x))
    runs = {"eager": eager.run, "sparse": sparse.run}
    runs |= {rival: engine.run for rival, engine in table.engines(model, x).items()}
    row = table.compare(name, runs, x, "sparse", repeats=table.options.repeats, threads=threads, clock=clock)
    fastest = min(row["over"].values(), key=lambda over: over["ratio"])
    row |= {"speedup": fastest["ratio"], "interval": fastest["interval"], "at_least": target(case), "plan_s": plan_s}
    row |= memory(fast, model)
    row["reached"] = row["speedup"] >= row["at_least"] and ("80%" not in case or row["read_memory"] <= MOST_MEMORY)
    table.add(name, row)


def main() -> None:
    flags = parser(__doc__, repeats=15, engines=ENGINES)
    table = Table(flags.parse_args(), [name for name, *_ in rows()])
    torch.set_flush_denormal(True)
    for _ in range(table.options.passes):
        for name, case, batch, threads in rows():
            if table.wants(name):
                measure(table, name, case, batch, threads)
    table.finish()


if __name__ == "__main__":
    main()
