"""How much faster are compiled networks than the fastest dense engine? Networks that people run on CPUs.

The networks of where_time_goes.py, with batches of 1 and 8, on one thread and on two. The compiled network, eager torch
and the engines take turns in one process; a ratio is the median over the turns, and the smallest one over all dense
engines counts. Nothing else may run on the machine if there are two threads. Memory is that of all weights as the
compiled network reads them and, in brackets, with the plain form that it keeps to be copied, saved and exported.
"""

import time
from collections.abc import Iterator

import torch
from sparse_rivals import CLOCKS, Table, check, parser
from torch import nn
from where_time_goes import CASES

import secateur
from secateur.measure import dense_bytes
from secateur.measure.engines import prepare
from secateur.run import timing
from secateur.run.bench.chains import read_bytes, stored_bytes
from secateur.run.sparse_chain import SparseChain

BATCHES, THREADS = (1, 8), (1, 2)
NEVER_BELOW = 0.98  # of the fastest dense engine, where no more is required
TARGETS = {  # over the fastest dense engine, by the beginning of the name, with 80 % and with 90 % zeros
    "EfficientNet-Lite0": (1.0, 1.2),
    "MobileNet-V2": (NEVER_BELOW, 1.1),
    "encoder": (1.1, 1.3),
    "BERT-base": (NEVER_BELOW, 1.4),
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
    row["reached"] = row["speedup"] >= row["at_least"] and ("90%" in case or row["read_memory"] <= MOST_MEMORY)
    table.add(name, row)


def main() -> None:
    table = Table(parser(__doc__, repeats=15).parse_args())
    torch.set_flush_denormal(True)
    for _ in range(table.options.passes):
        for name, case, batch, threads in rows():
            if table.wants(name):
                measure(table, name, case, batch, threads)
    table.finish()


if __name__ == "__main__":
    main()
