"""How much faster is one sparse layer? AlexNet's linear layers and the convolutions of VGG and ResNet (one thread).

Weights are zero in random places, at the densities of the paper's table 2 (fc6, fc7) or at 5, 10, 20 and 35 %. Sparse,
dense eager torch and ONNX Runtime take turns in one process; a ratio is the median over the turns. The limit is that of
bytes at batch 1: 4 for a dense weight over 6 for a kept one and its column. The last rows compare two threads with one,
by the wall clock, both sparse.
"""

from collections.abc import Iterator

import torch
from sparse_rivals import Table, check, parser
from torch import Tensor, nn

import secateur
from secateur.experiments.subject import random_zeros_
from secateur.measure.engines import Run, prepare

LINEAR = {  # inputs, outputs, density, and the target at each batch size
    "AlexNet fc6": (9216, 4096, 0.032, {1: 12, 8: 22, 64: 16}),
    "AlexNet fc7": (4096, 4096, 0.085, {1: 6, 8: 10, 64: 8}),
}
CONVOLUTIONS = {  # channels, filters, kernel, stride, pixels
    "VGG conv1_2": (64, 64, 3, 1, 224),
    "VGG conv2_2": (128, 128, 3, 1, 112),
    "VGG conv3_2": (256, 256, 3, 1, 56),
    "VGG conv4_2": (512, 512, 3, 1, 28),
    "VGG conv5_1": (512, 512, 3, 1, 14),
    "ResNet 3×3 64": (64, 64, 3, 1, 56),
    "ResNet 3×3 128": (128, 128, 3, 1, 28),
    "ResNet 3×3 256": (256, 256, 3, 1, 14),
    "ResNet 3×3 512": (512, 512, 3, 1, 7),
    "ResNet 3×3 128, stride 2": (128, 128, 3, 2, 56),
    "ResNet 3×3 256, stride 2": (256, 256, 3, 2, 28),
    "ResNet 3×3 512, stride 2": (512, 512, 3, 2, 14),
    "ResNet 1×1 256→64": (256, 64, 1, 1, 56),
    "ResNet 1×1 64→256": (64, 256, 1, 1, 56),
    "ResNet 1×1 512→128": (512, 128, 1, 1, 28),
    "ResNet 1×1 128→512": (128, 512, 1, 1, 28),
    "ResNet 1×1 1024→256": (1024, 256, 1, 1, 14),
    "ResNet 1×1 256→1024": (256, 1024, 1, 1, 14),
    "ResNet 1×1 2048→512": (2048, 512, 1, 1, 7),
    "ResNet 1×1 512→2048": (512, 2048, 1, 1, 7),
    "ResNet 1×1 256→512, stride 2": (256, 512, 1, 2, 56),
    "ResNet 1×1 512→1024, stride 2": (512, 1024, 1, 2, 28),
    "ResNet 1×1 1024→2048, stride 2": (1024, 2048, 1, 2, 14),
}
CONVOLUTION_AT_LEAST = {0.05: 7, 0.10: 3.5, 0.20: 2, 0.35: 1.4}
TWO_THREADS_AT_LEAST, TWO_THREADS_LIMIT = 1.6, 2.0


def convolution(name: str) -> tuple[nn.Conv2d, Tensor]:
    """Return a dense convolution, with a bias where its network has one, and an image for it."""
    channels, filters, kernel, stride, pixels = CONVOLUTIONS[name]
    layer = nn.Conv2d(channels, filters, kernel, stride, padding=kernel // 2, bias=name.startswith("VGG"))
    return layer.eval(), torch.randn(1, channels, pixels, pixels)


def measure_linear(table: Table) -> None:
    for layer_name, (inputs, outputs, density, at_least) in LINEAR.items():
        rows = {f"{layer_name} {density:.1%}, batch {batch}": batch for batch in at_least}
        if not any(map(table.wants, rows)):
            continue
        layer = random_zeros_(nn.Linear(inputs, outputs).eval(), density)
        for name, batch in rows.items():
            if table.wants(name):
                x = torch.randn(batch, inputs)
                limit = 4 / (6 * density) if batch == 1 else None
                engines = table.engines(layer, x)
                table.measure(name, layer, x, at_least=at_least[batch], engines=engines, limit=limit)


def measure_convolutions(table: Table) -> None:
    for layer_name in CONVOLUTIONS:
        rows = {f"{layer_name}, {density:.0%}": density for density in CONVOLUTION_AT_LEAST}
        if not any(map(table.wants, rows)):
            continue
        layer, x = convolution(layer_name)
        engines = table.engines(layer, x)  # once: dense engines do not depend on zeros
        for name, density in sorted(rows.items(), key=lambda row: -row[1]):  # zeros are only added
            if table.wants(name):
                random_zeros_(layer, density)
                at_least = CONVOLUTION_AT_LEAST[density]
                table.measure(name, layer, x, at_least=at_least, engines=engines)


def threaded_cases() -> Iterator[tuple[str, nn.Module, Tensor]]:
    inputs, outputs, density, _ = LINEAR["AlexNet fc6"]
    fc6 = random_zeros_(nn.Linear(inputs, outputs).eval(), density)
    yield f"AlexNet fc6 {density:.1%}, batch 64", fc6, torch.randn(64, inputs)
    for name in CONVOLUTIONS:
        if name.startswith("VGG"):
            layer, x = convolution(name)
            yield f"{name}, 10%", random_zeros_(layer, 0.10), x


def measure_threads(table: Table) -> None:
    """Plan each layer for one thread and for two, and let the two take turns."""
    for case, layer, x in threaded_cases():
        name = f"{case}: 2 threads over 1"
        if not table.wants(name):
            continue
        runs = {}
        for threads in (1, 2):
            torch.set_num_threads(threads)
            run = prepare("eager", secateur.compile_sparse(layer, x), x).run
            check(name, run(x), prepare("eager", layer, x).run(x))
            runs[f"threads {threads}"] = on_threads(threads, run)
        # Wall clock, because the CPU time of the calling thread does not include the other thread.
        row = table.compare(name, runs, x, "threads 2", repeats=table.options.repeats, threads=2, clock="wall")
        reached = row["speedup"] >= TWO_THREADS_AT_LEAST
        row |= {"at_least": TWO_THREADS_AT_LEAST, "limit": TWO_THREADS_LIMIT, "reached": reached}
        table.add(name, row)
    torch.set_num_threads(1)


def on_threads(threads: int, run: Run) -> Run:
    def call(x: Tensor) -> Tensor:
        torch.set_num_threads(threads)
        return run(x)

    return call


def main() -> None:
    options = parser(__doc__, repeats=40).parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    table = Table(options)
    for _ in range(options.passes):
        measure_linear(table)
        measure_convolutions(table)
        measure_threads(table)
    table.finish()


if __name__ == "__main__":
    main()
