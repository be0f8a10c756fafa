"""How do thresholds move under the paper's AlexNet recipe? Its first steps on Imagenette, and what they should be.

With p = 0 every threshold starts at 0, where the penalty alone moves it: by lr·ρ·λ_t·Σ(1 − tanh(α|w|/2)) a step before
momentum, derived in docs/paper.md. The last column says where a threshold would be after the whole run on ImageNet if
that sum stayed as it begins, with 1,000 classes: an upper bound, because the sum falls as weights come to lie below t.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur import data, learned_thresholds, networks
from secateur.data import Inputs, Scaling, Subset
from secateur.experiments.presets import settings
from secateur.methods import Manessi2018
from secateur.train.journal import Journal
from secateur.train.loop import fit
from secateur.train.recipe import Recipe

IMAGENET = 1_281_167 - 5_000  # training images, without those for validation
MOMENTUM = 0.9


def speeds(method: Manessi2018, model: nn.Module) -> dict[str, Tensor]:
    """Return λ_t·Σ(1 − tanh(α|w|/2)) for every threshold of a plain network, all of them at 0."""
    found = {}
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue
        each = 1 - torch.tanh(method.sibling.alpha * weight.detach().double().abs() / 2)
        found[name] = method.lambda_t * (each.flatten(1).sum(1) if weight.dim() == 4 else each.sum().view(1))
    return found


def travelled(recipe: Recipe, rho: float, steps: int, steps_per_epoch: int) -> float:
    """Return how far a threshold has moved after a number of steps ÷ its constant gradient."""
    velocity = place = 0.0
    for step in range(steps):
        velocity = MOMENTUM * velocity + 1
        place += rho * recipe.lr * recipe.rate_factor(step / (recipe.epochs * steps_per_epoch)) * velocity
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--data-root", type=Path, help="where Imagenette is")
    parser.add_argument("--save", type=Path, help="write the thresholds of every step as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    preset = settings("paper", "alexnet")
    method, recipe = preset.method, replace(preset.recipe, precision=options.precision)
    assert isinstance(method, Manessi2018)
    try:
        images = data.load("imagenette", "train", options.data_root, (3, 227, 227), crop=preset.inputs.crop)
    except data.DataError as error:
        print(f"not measured: {error}")
        return
    seen = Subset(images, torch.arange(options.steps * recipe.batch_size))
    inputs = Inputs(seen, Scaling.fit(Subset(images, torch.arange(500)), preset.inputs.scaling))

    model = networks.build("alexnet", seed=0, classes=len(images.classes)).to(memory_format=torch.channels_last)
    predicted = speeds(method, model)
    stage = next(method.stages(model, replace(recipe, epochs=1)))
    steps: list[dict[str, float]] = []

    def record(done: int, total: int) -> None:
        found = learned_thresholds(stage.model)
        steps.append({name: function.threshold.detach().mean().item() for name, function in found.items()})

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(checkpoint=Path(folder, "checkpoint"), log=Path(folder, "log"))
        fit(replace(stage, between=record), inputs, seed=0, measure=lambda model: {}, journal=journal)

    now = travelled(recipe, method.rho, options.steps, IMAGENET // recipe.batch_size)
    whole = travelled(recipe, method.rho, recipe.steps(IMAGENET), IMAGENET // recipe.batch_size)
    # fc8 has a hundred times as many weights with a thousand classes.
    classes = {"fc8.weight": 1000 / len(images.classes)}
    rows = {
        name: {
            "thresholds": speed.numel(),
            "weights": model.get_submodule(name.removesuffix(".weight")).weight.numel(),
            "measured": steps[-1][name],
            "predicted": speed.mean().item() * now,
            "whole_run": speed.mean().item() * whole * classes.get(name, 1.0),
        }
        for name, speed in predicted.items()
    }
    print(f"after {options.steps} steps of {recipe.batch_size} images (mean over the thresholds of a layer)")
    print(
        f"{'layer':8}{'thresholds':>11}{'weights':>12}{'measured t':>13}{'predicted t':>13}{'after the whole run':>21}"
    )
    for name, row in rows.items():
        print(
            f"{name.removesuffix('.weight'):8}{row['thresholds']:>11,}{row['weights']:>12,}{row['measured']:13.4g}"
            f"{row['predicted']:13.4g}{row['whole_run']:21.4g}"
        )
    if options.save:
        facts = {
            "steps": options.steps,
            "batch_size": recipe.batch_size,
            "precision": options.precision,
            "whole_run_steps": recipe.steps(IMAGENET),
            "torch": torch.__version__,
            "threads": 1,
            "machine": platform.machine(),
        }
        content = {"rows": rows, "thresholds_by_step": steps, **facts}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
