"""What does extracting features cost? Images per second of the extraction and of a plain loop over the same network.

AlexNet, pruned at the paper's rates, batch 32. The loop computes what the network answers to tensors that are decoded
and scaled already, and keeps nothing. The extraction of the same tensors scales them, reads a layer through a hook,
checks the features and writes them to a file; at least 0.95 of the loop's speed is wanted, and with `compile_sparse` at
least that of the extraction without. "from files" decodes JPEG files as well, in other processes. All take turns, and
ratios are medians over the turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from secateur import networks
from secateur.data import ImageSet, Inputs, Scaling
from secateur.data import features as kept
from secateur.experiments.versions import versions
from secateur.literature import paper_layers
from secateur.transfer import features as extraction
from secateur.transfer.features import FeatureNetwork, extract, reading
from secateur.transfer.task import Picture

SHAPE, BATCH = (3, 227, 227), 32
LIMITS = {"decoded ÷ loop": 0.95, "sparse ÷ decoded": 1.0}
TOLERANCE = 1e-3  # of the largest feature: sparse kernels add in another order


def pruned_alexnet() -> torch.nn.Module:
    """Return AlexNet without its smallest weights, as many in each layer as in the paper."""
    model, paper = networks.build("alexnet", seed=0), paper_layers("alexnet", "imagenet")
    assert paper is not None
    with torch.no_grad():
        for name, percent in paper.pruned.items():
            weight = model.get_parameter(name)
            threshold = weight.abs().flatten().kthvalue(round(percent / 100 * weight.numel())).values
            weight[weight.abs() <= threshold] = 0
    return model.eval()


def photographs(folder: Path, count: int) -> list[Picture]:
    """Write JPEG files of the network's input size."""
    draw, found = np.random.default_rng(0), []
    for number in range(count):
        coarse = Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize(SHAPE[1:], Image.BICUBIC)
        coarse.save(folder / f"{number:05}.jpg", quality=90)
        found.append(Picture(folder / f"{number:05}.jpg"))
    return found


def rivals(folder: Path, pictures: list[Picture], stack: ExitStack) -> dict[str, Callable[[int], None]]:
    """Return what takes turns; each is given the number of the turn, because a file is written once."""
    scaling = Scaling((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    model = pruned_alexnet()
    plain = FeatureNetwork("dense", model, SHAPE, scaling)
    sparse = FeatureNetwork("sparse", model, SHAPE, scaling, is_sparse=True)
    pixels, labels = plain.stream(pictures).batch(torch.arange(len(pictures)))
    inputs = Inputs(ImageSet(pixels, labels, ("picture",)), scaling)
    scaled = scaling(pixels).split(BATCH)
    functions = {each.name: stack.enter_context(reading(each, folder / "plan.json")) for each in (plain, sparse)}
    first, second = (functions[name](scaled[0]) for name in functions)
    assert float((first - second).abs().max()) <= TOLERANCE * float(first.abs().max())

    def loop(turn: int) -> None:
        with torch.no_grad():
            for batch in scaled:
                model(batch)

    def decoded(name: str) -> Callable[[int], None]:
        def run(turn: int) -> None:
            shape, path = (plain.features, 1, 1), folder / f"{name}-{turn}.features"
            kept.cached_features(functions[name], shape, inputs, path, dtype="float32")
            path.unlink()

        return run

    def from_files(turn: int) -> None:
        extract(plain, pictures, folder / f"files-{turn}")

    return {"loop": loop, "decoded": decoded("dense"), "sparse": decoded("sparse"), "from files": from_files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kept.PICTURES_AT_A_TIME = extraction.PICTURES_AT_A_TIME = BATCH
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        chosen = rivals(folder, photographs(folder, options.images), stack)
        for turn in range(options.turns + 1):
            for name, work in chosen.items():
                started = time.perf_counter()
                work(turn)
                if turn > 0:  # the first turn warms up
                    seconds.setdefault(name, []).append(time.perf_counter() - started)

    speeds = {name: options.images / statistics.median(times) for name, times in seconds.items()}
    ratios = {
        f"{name} ÷ {rival}": statistics.median(b / a for a, b in zip(seconds[name], seconds[rival], strict=True))
        for name, rival in (("decoded", "loop"), ("sparse", "decoded"), ("from files", "loop"))
    }
    print(f"{options.images} images, batch {BATCH}, {options.turns} turns, threads: {options.threads}")
    for name, speed in speeds.items():
        print(f"{name:20}{speed:10.1f} images/s")
    for name, ratio in ratios.items():
        print(f"{name:20}{ratio:10.3f}" + (f"  (at least {LIMITS[name]})" if name in LIMITS else ""))
    if options.save:
        content = {
            "images": options.images,
            "batch": BATCH,
            "turns": options.turns,
            "threads": options.threads,
            "at_least": LIMITS,
            "reached": {name: ratios[name] >= limit for name, limit in LIMITS.items()},
            "rows": {name: {"images_per_s": speed} for name, speed in speeds.items()},
            "ratios": ratios,
            "versions": versions(),
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
