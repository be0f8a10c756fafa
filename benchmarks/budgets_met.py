"""Is a budget met? One set of constants, four kinds of network, three optimizers, ratios and bytes (one thread).

Every network is trained for a few hundred steps in a loop of its own and cut; the table has the ratio that was asked
for and the one that was reached. The trainings are short on purpose: that the budget is met must not depend on how well
the network has learned. A two-layer transformer sorts sequences; the others classify images.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import secateur
from secateur import data, networks
from secateur.experiments.versions import versions
from secateur.measure import count

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
}
RATIOS = {
    "lenet-300-100": (10, 60, 110),
    "lenet-5": (20, 280),
    "resnet-20": (10,),
    "transformer": (5,),
}
SYMBOLS, LENGTH = 16, 12  # of the sequences that the transformer sorts


class Sorter(nn.Module):
    """A transformer of two layers that writes the symbols of a sequence in order."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, 64)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """Return logits: (sequences, symbols, places)."""
        return self.head(self.layers(self.symbols(symbols) + self.places)).transpose(1, 2)


def batches(network: str, steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels."""
    if network == "transformer":
        for _ in range(steps):
            symbols = torch.randint(SYMBOLS, (size, LENGTH))
            yield symbols, symbols.sort(dim=1).values
        return
    images = data.load("cifar10" if network == "resnet-20" else "mnist", "train")
    for _ in range(steps):
        rows = torch.randint(len(images.labels), (size,))
        chosen = images.images[rows]
        yield (chosen.reshape(size, -1, *chosen.shape[-2:]).float() / 255), images.labels[rows].long()


def reached(network: str, optimizer: str, ratio: float, steps: int, size: int) -> dict[str, float]:
    """Train and cut a network; return what was reached, the last loss, and the seconds."""
    torch.manual_seed(0)
    model = Sorter() if network == "transformer" else networks.build(network, seed=0)
    pruner = secateur.Pruner(model, secateur.Budget(ratio=ratio), steps=steps)
    own = OPTIMIZERS[optimizer](model)
    started = time.perf_counter()
    for inputs, labels in batches(network, steps, size):
        loss = functional.cross_entropy(model(inputs), labels)
        own.zero_grad()
        loss.backward()
        own.step()
        pruner.step()
    totals = count(secateur.prune(model)).prunable
    return {"ratio": totals.ratio, "kept": totals.kept, "loss": loss.item(), "seconds": time.perf_counter() - started}


def main() -> None:
    """Train every network with every optimizer, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(RATIOS), choices=list(RATIOS))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'network':16}{'optimizer':>10}{'wanted':>8}{'reached':>10}{'off by':>8}{'loss':>8}")
    for network in options.networks:
        for ratio in RATIOS[network]:
            for optimizer in OPTIMIZERS:
                found = reached(network, optimizer, ratio, options.steps, options.batch)
                off = abs(found["ratio"] / ratio - 1)
                rows.append({"network": network, "optimizer": optimizer, "wanted": ratio, "off_by": off, **found})
                print(f"{network:16}{optimizer:>10}{ratio:8}{found['ratio']:10.3f}{off:8.2%}{found['loss']:8.3f}")
    if options.save:
        content = {"rows": rows, "steps": options.steps, "batch": options.batch, "threads": 1, "versions": versions()}
        options.save.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
