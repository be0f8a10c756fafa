"""Do pretrained networks score on photographs what they should? Top-1 and top-5 with 95 % intervals (one thread).

    python benchmarks/pretrained_scores.py FOLDER --network efficientnet-lite0 --save results/benchmarks/NAME.json

FOLDER holds a folder per class, named by its index from 0 to 999 in the order of ILSVRC-2012, with validation pictures.
Networks whose linear layers are not among the pretrained tensors cannot be scored. Published numbers are for all
50,000 validation images; fewer or recompressed images score differently. A saved file is extended: its other rows stay.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from secateur import networks
from secateur.data import find_pictures
from secateur.experiments.versions import versions
from secateur.networks.preprocessing import Preprocessing
from secateur.pretrained import PRETRAINED

# Top-1 and top-5 in percent on all validation images, one crop: Keras's documentation, the model card of
# EfficientNet-Lite, and the README of Han's repository.
PUBLISHED = {
    "resnet-50-v1": (74.9, 92.1),
    "efficientnet-lite0": (75.1, None),
    "squeezenet": (57.5, 80.3),
}
BATCH = 20


def scored() -> list[str]:
    """Return the pretrained networks that are complete."""
    return [name for name, entry in PRETRAINED.items() if not entry.left_out]


def pictures(folder: Path) -> list[tuple[Path, int]]:
    """Return the pictures of a folder with their labels."""
    classes = sorted((int(path.name), path) for path in folder.iterdir() if path.name.isdigit())
    return [(path, label) for label, inside in classes for path in find_pictures(inside)]


def batches(found: list[tuple[Path, int]], preprocessing: Preprocessing) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels; every picture is resized from its own size."""
    for start in range(0, len(found), BATCH):
        inputs, labels = [], []
        for path, label in found[start : start + BATCH]:
            with Image.open(path) as picture:
                pixels = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
            inputs.append(preprocessing(pixels[None]))
            labels.append(label)
        yield torch.cat(inputs), torch.tensor(labels)


def half_width(share: float, count: int) -> float:
    """Return half of the 95 % interval of a share, both in percent."""
    return 100 * 1.96 * math.sqrt(share / 100 * (1 - share / 100) / count)


def score(name: str, folder: Path, preprocessing: Preprocessing, root: Path | None) -> dict[str, object]:
    """Return what a pretrained network scores on the pictures of a folder."""
    model = networks.build(name, seed=0).eval()
    model.load_state_dict(PRETRAINED[name].load(root))
    model = model.to(memory_format=torch.channels_last)
    found = pictures(folder)
    right = torch.zeros(2, dtype=torch.int64)
    started = time.process_time()
    with torch.inference_mode():
        for inputs, labels in batches(found, preprocessing):
            best = model(inputs.contiguous(memory_format=torch.channels_last)).topk(5).indices
            hits = best == labels[:, None]
            right += torch.stack([hits[:, 0].sum(), hits.any(1).sum()])
    top1, top5 = (100 * hits / len(found) for hits in right.tolist())
    return {
        "network": name,
        "images": len(found),
        "top1": top1,
        "top5": top5,
        "interval": [half_width(top1, len(found)), half_width(top5, len(found))],
        "published": PUBLISHED.get(name),
        "preprocessing": asdict(preprocessing),
        "cpu_s": time.process_time() - started,
        "versions": versions(),
    }


def main() -> None:
    """Score the networks that were asked for, print a table and extend the saved one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="a folder of pictures per class, named by its index")
    parser.add_argument("--network", choices=scored(), action="append", help="several times for several; default: all")
    parser.add_argument("--short-side", type=int, help="resize pictures to this instead of the network's own")
    parser.add_argument("--data-root", type=Path, help="where weights are kept, instead of the user's cache")
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    if options.folder is None:
        print("pretrained_scores: skipped, no folder of validation pictures was given")
        return
    torch.set_num_threads(1)
    rows = json.loads(options.save.read_text())["rows"] if options.save and options.save.exists() else {}
    print(f"{'network':20}{'short side':>11}{'images':>8}{'top-1 %':>15}{'top-5 %':>15}{'published':>15}{'CPU s':>8}")
    for name in options.network or scored():
        preprocessing = PRETRAINED[name].preprocessing
        if options.short_side:
            preprocessing = replace(preprocessing, short_side=options.short_side)
        row = score(name, options.folder, preprocessing, options.data_root)
        rows[f"{name}, short side {preprocessing.short_side}"] = row
        published = " / ".join("–" if number is None else str(number) for number in PUBLISHED.get(name, ()))
        print(
            f"{name:20}{preprocessing.short_side:11}{row['images']:8,}"
            f"{row['top1']:8.2f} ± {row['interval'][0]:.2f}{row['top5']:8.2f} ± {row['interval'][1]:.2f}"
            f"{published:>15}{row['cpu_s']:8.0f}",
            flush=True,
        )
        if options.save:
            content = {"rows": rows, "threads": 1}
            options.save.parent.mkdir(parents=True, exist_ok=True)
            options.save.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
