"""Does `secateur.compress` take longer than the same training by hand? A small CNN on a DataLoader (one thread).

Both prune to a budget, cut, and fine-tune with zeros kept, with the validation error after every epoch. What the call
adds are checkpoints, logs and the file; it writes no page and does not quantise. Times are CPU times, in turns in one
process; the ratio is that of the medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import secateur
from secateur import Budget, Recipe
from secateur.experiments.versions import versions
from secateur.measure import error_of_batches

EPOCHS, FINE_TUNE, LIMIT = 10, 3, 1.05  # as many as the call takes if it is not told otherwise
BUDGET = Budget(ratio=10)
RECIPE = Recipe(epochs=EPOCHS, optimizer="adam", lr=1e-3, schedule="cosine")
SETTINGS = {"budget": BUDGET, "recipe": RECIPE, "quantize": False, "progress": False, "page": False}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def images(number: int, seed: int) -> TensorDataset:
    """Return images whose class is their brightest colour and half, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (number,), generator=generator)
    pixels = torch.rand(number, 3, 32, 32, generator=generator)
    for place, label in enumerate(labels.tolist()):
        pixels[place, label % 3, 16 * (label // 3) : 16 * (label // 3) + 16] += 0.2
    return TensorDataset(pixels, labels)


def by_hand(train: DataLoader, validation: DataLoader) -> nn.Module:
    """Prune, cut and fine-tune in a loop of one's own."""
    model = network()
    pruner = secateur.Pruner(model, BUDGET, steps=(EPOCHS - FINE_TUNE) * len(train), fixed=1.0)
    _train(model, EPOCHS - FINE_TUNE, train, validation, pruner.step)
    pruned = secateur.keep_zeros(secateur.prune(model))
    _train(pruned, FINE_TUNE, train, validation, lambda: None)
    return secateur.prune(pruned)


def _train(model: nn.Module, epochs: int, train: DataLoader, validation: DataLoader, after: Callable[[], None]) -> None:
    optimizer = torch.optim.Adam(secateur.parameter_groups(model, lr=1e-3, lambda_wd=1e-4), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(train))
    error_of_batches(model, validation)
    for _ in range(epochs):
        model.train()
        for inputs, labels in train:
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            after()
            optimizer.zero_grad()
            schedule.step()
        error_of_batches(model, validation)


def by_call(train: DataLoader, validation: DataLoader) -> None:
    """Do the same in one call."""
    with tempfile.TemporaryDirectory() as folder:
        secateur.compress(network(), train, validation, **SETTINGS, directory=Path(folder) / "run")


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train = DataLoader(images(arguments.images, 0), 64, shuffle=True)
    validation = DataLoader(images(arguments.images // 8, 1), 256)
    hand, call = [], []
    for _ in range(arguments.turns):
        hand.append(cpu_seconds(lambda: by_hand(train, validation)))
        call.append(cpu_seconds(lambda: by_call(train, validation)))
    row = {"hand_s": statistics.median(hand), "call_s": statistics.median(call)}
    row["ratio"] = row["call_s"] / row["hand_s"]
    print(f"by hand {row['hand_s']:.2f} s, in one call {row['call_s']:.2f} s: {row['ratio']:.3f} of at most {LIMIT}")
    if arguments.save:
        content = {"rows": {"small CNN, batch 64": row}, "turns": arguments.turns, "versions": versions()}
        arguments.save.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
