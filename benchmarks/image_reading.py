"""How fast are photographs read and varied for training? Two processes against Pillow's decode and resize in one.

Every turn reads the same JPEG files at 227×227 pixels, in this order: Pillow (open, convert to RGB, resize), then each
kind of crop by two processes, their start included. The ceiling is twice the ratio of CPU times in one process: what
two idle cores would give if nothing else were to be done. At least 1.7 is wanted.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from secateur.data import PictureStream
from secateur.data.streams import Place
from secateur.experiments.versions import versions

SHAPE = (3, 227, 227)
CROPS = ("alexnet", "resized", "centre")
AT_LEAST, PROCESSES, BATCH = 1.7, 2, 64


def photographs(folder: Path, count: int) -> list[Path]:
    """Write JPEG files of ImageNet's usual size, 500×375, with coarse and fine structure."""
    draw = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        fine = draw.normal(0, 8, (375, 500, 1))
        Image.fromarray((np.asarray(coarse) + fine).clip(0, 255).astype(np.uint8)).save(
            folder / f"{number}.jpg", quality=90
        )
    return sorted(folder.iterdir())


def pillow(files: list[Path]) -> None:
    for path in files:
        with Image.open(path) as picture:
            np.asarray(picture.convert("RGB").resize(SHAPE[:0:-1], Image.BILINEAR))


def stream(files: list[Path], crop: str, processes: int) -> PictureStream:
    places, labels = [Place(str(path)) for path in files], torch.zeros(len(files), dtype=torch.int64)
    return PictureStream(places, labels, ("photograph",), SHAPE, crop, processes=processes)


def reader(files: list[Path], crop: str, processes: int) -> Callable[[], None]:
    """Return a function that reads all files once, as an epoch of training does."""
    images, batches = stream(files, crop, processes), torch.arange(len(files)).split(BATCH)

    def read() -> None:
        for pixels, _ in images.read(batches, None if crop == "centre" else 0):
            assert pixels.shape[1:] == SHAPE

    return read


def check(files: list[Path]) -> None:
    """Compare the centre of a picture with what Pillow makes of it."""
    found = stream(files[:1], "centre", 0).batch(torch.tensor([0]))[0][0].permute(1, 2, 0).numpy().astype(int)
    with Image.open(io.BytesIO(files[0].read_bytes())) as picture:
        wide, high = picture.size
        side = min(wide, high)
        box = ((wide - side) / 2, (high - side) / 2, (wide + side) / 2, (high + side) / 2)
        expected = np.asarray(picture.convert("RGB").resize(SHAPE[:0:-1], Image.BILINEAR, box)).astype(int)
    assert np.abs(found - expected).max() <= 1


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="read the JPEG files below this folder instead of made ones")
    parser.add_argument("--images", type=int, default=4000, help="in an epoch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--save", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        if options.folder is None:
            files = photographs(Path(temporary), options.images)
        else:
            found = sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
            files = found[:: max(1, len(found) // options.images)][: options.images]
        check(files)
        rivals = {"pillow": lambda: pillow(files)} | {crop: reader(files, crop, PROCESSES) for crop in CROPS}
        alone = {"pillow": rivals["pillow"]} | {crop: reader(files, crop, 0) for crop in CROPS}
        pillow(files)  # the files are now in memory
        seconds = {name: [] for name in rivals}
        cpu = {name: [] for name in rivals}
        for _ in range(options.turns):
            for name, work in rivals.items():
                seconds[name].append(timed(work, time.perf_counter))
            for name, work in alone.items():
                cpu[name].append(timed(work, time.process_time))
    rows = {}
    print(f"{len(files)} files, {options.turns} turns\n{'':10}{'images/s':>10}{'÷ Pillow':>10}{'ceiling':>10}")
    for name, own in seconds.items():
        speed = len(files) / statistics.median(own)
        ratio = statistics.median(theirs / mine for mine, theirs in zip(own, seconds["pillow"], strict=True))
        ceiling = statistics.median(theirs / mine for mine, theirs in zip(cpu[name], cpu["pillow"], strict=True)) * (
            1 if name == "pillow" else PROCESSES
        )
        rows[name] = {"images_per_s": speed, "ratio": ratio, "ceiling": ceiling}
        print(f"{name:10}{speed:10.0f}{ratio:10.2f}{ceiling:10.2f}")
    if options.save:
        content = {
            "files": len(files),
            "folder": None if options.folder is None else options.folder.name,
            "turns": options.turns,
            "processes": PROCESSES,
            "at_least": AT_LEAST,
            "reached": rows["alexnet"]["ratio"] >= AT_LEAST,
            "rows": rows,
            "versions": versions(),
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
