"""Can a pretrained network be pruned without the images it was trained on? Top-1 against zeros and bytes (one thread).

    python benchmarks/pruned_without_data.py efficientnet-lite0 --sparsity 0.5 --bytes 2800000 \
        --photographs imagenette=FOLDER birds=FOLDER --test FOLDER --work DIRECTORY \
        --results results/benchmarks/pruned_without_data.json

The network learns from itself, as it was, while `secateur.Pruner` cuts its weights: the loss is the divergence of its
answers from those of the dense network, on photographs of any kind. They need no labels, and pictures that have a name
in --test are left out. Then weights get a few values per layer, trained in the same way, and batch norms get new
statistics. The .cut file is written to --work, read back and evaluated. Both thresholds and grids start where weights
of all layers cost the same, by the Fisher information of the network's own answers.

Settings are chosen with --validate, by the agreement with the dense network on photographs that are left out of the
training. --test holds a folder per class, named by its index, with validation pictures of ILSVRC-2012; a network is
evaluated on them once, and a row that is in the results is not repeated.
"""

import argparse
import copy
import hashlib
import io
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pretrained_scores import batches, half_width, pictures, scored
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

import secateur
from secateur import networks
from secateur.atomic import write_atomically
from secateur.data.pictures import picture_suffixes, read_picture
from secateur.experiments.versions import versions
from secateur.functions.solved_threshold import solved_thresholds
from secateur.measure import compare_latency, count, dense_bytes
from secateur.networks.preprocessing import Preprocessing
from secateur.pretrained import PRETRAINED
from secateur.train.norms import match_statistics
from secateur.weights.tensors import parameters

SIDE = 256  # of a photograph, in pixels; crops are cut out of it
HELD_OUT = 500  # photographs that settings are chosen by
FEWEST_LEVELS, MOST_LEVELS = 3, 255  # of a grid, on either side of zero
INFORMATION = 256  # photographs for the sensitivity of layers
STATISTICS = 256  # photographs for the statistics of batch norms
PART = 250  # test pictures that are evaluated before their ranks are kept
SETTINGS = (
    "bytes",
    "size",
    "batch",
    "steps",
    "lr",
    "quantize_steps",
    "quantize_lr",
    "temperature",
    "batch_norm",
    "statistics",
)


def source(text: str) -> tuple[str, Path]:
    """Return the name and the folder of photographs that are given as NAME=FOLDER, or as a folder."""
    name, _, folder = text.rpartition("=")
    return name or Path(folder).name, Path(folder)


def find_photographs(folders: Sequence[Path], number: int, leave_out: Sequence[Path]) -> list[Path]:
    """Return as many pictures of each folder as there are, up to an equal share, mixed; always the same ones."""
    unwanted, draw, shares = {path.stem for path in leave_out}, random.Random(0), []
    for folder in folders:
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in picture_suffixes())
        found = [path for path in found if path.stem not in unwanted]
        if not found:
            raise SystemExit(f"{folder} has no pictures: give --photographs folders that have")
        draw.shuffle(found)
        shares.append(found)
    mixed = [path for row in itertools.zip_longest(*shares) for path in row if path is not None]
    chosen = mixed[:number]
    draw.shuffle(chosen)
    return chosen


def digest(paths: Iterable[Path]) -> str:
    """Return a name for pictures."""
    return hashlib.sha256("\n".join(map(str, paths)).encode()).hexdigest()[:8]


def kept_array(path: Path, shape: tuple[int, ...], rows: Iterable[Tensor]) -> Tensor:
    """Return uint8 images of a shape, mapped from a file that is written the first time."""
    if not path.exists() or np.load(path, mmap_mode="r").shape != shape:
        partial = path.with_suffix(".partial")
        array = np.lib.format.open_memmap(partial, "w+", np.uint8, shape)
        for place, row in zip(array, rows, strict=True):
            place[:] = row.numpy()
        array.flush()
        partial.replace(path)
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def photographs(paths: Sequence[Path]) -> Iterator[Tensor]:
    """Yield the centres of pictures, 256 × 256."""
    for path in paths:
        with path.open("rb") as file:
            yield read_picture(file, str(path), (3, SIDE, SIDE), crop="centre")


def centres(tested: Sequence[tuple[Path, int]], preprocessing: Preprocessing) -> Iterator[Tensor]:
    """Yield what a network sees of pictures, before levels are scaled."""
    levels = replace(preprocessing, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    return (picture.round().byte() for x, _ in batches(list(tested), levels) for picture in x)


def crops(images: Tensor, preprocessing: Preprocessing, size: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of inputs without an end: parts of the images at random places, half of them mirrored."""
    generator = torch.Generator().manual_seed(seed)
    scale = replace(preprocessing, size=size, short_side=size)
    while True:
        for rows in torch.randperm(len(images), generator=generator).split(batch):
            if len(rows) == batch:
                places = torch.randint(SIDE - size + 1, (batch, 2), generator=generator).tolist()
                mirrored = torch.rand(batch, generator=generator) < 0.5
                parts = [
                    images[row, :, top : top + size, left : left + size]
                    for row, (top, left) in zip(rows.tolist(), places, strict=True)
                ]
                parts = [part.flip(2) if flip else part for part, flip in zip(parts, mirrored, strict=True)]
                yield scale(torch.stack(parts)).contiguous(memory_format=torch.channels_last)


def divergence(output: Tensor, target: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the mean Kullback-Leibler divergence from the target's softened answers, in units of the squared logit."""
    log_probability, log_target = ((logits.float() / temperature).log_softmax(1) for logits in (output, target))
    return temperature**2 * functional.kl_div(log_probability, log_target, reduction="batchmean", log_target=True)


def distil(
    teacher: nn.Module,
    student: nn.Module,
    inputs: Iterator[Tensor],
    *,
    steps: int,
    lr: float,
    temperature: float,
    bf16: bool,
    batch_norm: str,
    after_step: Callable[[], None] | None = None,
) -> None:
    """Train the student to answer like the teacher; learning rates fall to zero."""
    student.eval()
    for module in student.modules():
        if isinstance(module, _BatchNorm):
            module.train(batch_norm == "training")
    optimizer = torch.optim.Adam(secateur.parameter_groups(student, lr=lr), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    for _ in range(steps):
        x = next(inputs)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            with torch.no_grad():
                target = teacher(x)
            output = student(x)
        optimizer.zero_grad()
        divergence(output, target, temperature).backward()
        optimizer.step()
        if after_step is not None:
            after_step()
        schedule.step()


def sensitivities(model: nn.Module, inputs: Iterator[Tensor], batches: int, seed: int, bf16: bool) -> dict[str, float]:
    """Return the mean Fisher information of a weight in each layer, from the network's own answers.

    F = E[(∂ log p(y|x) / ∂w)²] for labels y that are drawn from p, which makes half of F·d² the divergence that a small
    change d of the weight causes. Gradients for such labels have mean 0, so squared sums over a batch estimate sums of
    squares.
    """
    student = copy.deepcopy(model).requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    weights = {tensor.name: tensor.stored for tensor in parameters(student) if tensor.is_weight}
    found, images = dict.fromkeys(weights, 0.0), 0
    for x in itertools.islice(inputs, batches):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            log_probability = student(x).float().log_softmax(1)
        labels = log_probability.detach().exp().multinomial(1, generator=generator).squeeze(1)
        loss = functional.nll_loss(log_probability, labels, reduction="sum")
        for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
            found[name] += float(gradient.square().mean())
        images += len(x)
    return {name: total / images for name, total in found.items()}


def prune(
    teacher: nn.Module,
    inputs: Iterator[Tensor],
    information: dict[str, float],
    sparsity: float,
    steps: int,
    **settings: object,
) -> nn.Module:
    """Return a plain copy of the teacher with the given share of its weights at zero.

    A weight at the threshold costs F·t²/2. Layers start where that is the same in all of them, and learn from there.
    """
    student = copy.deepcopy(teacher).requires_grad_(True)
    pruner = secateur.Pruner(student, secateur.Budget(sparsity=sparsity), steps=steps)
    thresholds = solved_thresholds(student)
    start = {name: -math.log(float(each.unit) * math.sqrt(information[name])) for name, each in thresholds.items()}
    centre = sum(start.values()) / len(start)
    for name, each in thresholds.items():
        each.relative.fill_(start[name] - centre)
    distil(teacher, student, inputs, steps=steps, after_step=pruner.step, **settings)
    return secateur.prune(student)


def with_grids(pruned: nn.Module, information: dict[str, float], size_bytes: float) -> nn.Module:
    """Return a copy whose layers read grids, as fine as an estimated size of the file allows.

    A grid of step Δ costs F·Δ²/24 a weight: steps are such that this is the same in all layers.
    """
    largest = {name: float(tensor.abs().max()) for name, tensor in pruned.state_dict().items() if name in information}

    def grids(scale: float) -> nn.Module:
        student = copy.deepcopy(pruned).requires_grad_(True)
        levels = {name: scale * largest[name] * math.sqrt(value) for name, value in information.items()}
        rules = {name: min(max(round(number), FEWEST_LEVELS), MOST_LEVELS) for name, number in levels.items()}
        return secateur.quantize(student, secateur.QuantizeConfig(method="uniform"), layers=rules)

    def size(scale: float) -> float:
        with torch.no_grad():
            return float(secateur.coded_bits(grids(scale))) / 8

    usual = sum(largest[name] * math.sqrt(value) for name, value in information.items()) / len(information)
    low, high = 1 / usual, 1e4 / usual  # so that a layer has about 1 … 10,000 levels
    if size(low) > size_bytes:
        raise SystemExit(f"--bytes {size_bytes:,}: the coarsest grids take {size(low):,.0f} bytes: prune more weights")
    for _ in range(10):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if size(middle) <= size_bytes else (low, middle)
    return grids(low)


def quantise(
    teacher: nn.Module,
    pruned: nn.Module,
    inputs: Iterator[Tensor],
    information: dict[str, float],
    size_bytes: float,
    steps: int,
    **settings: object,
) -> nn.Module:
    """Return a plain copy of a pruned network with a grid of few values per layer."""
    student = with_grids(pruned, information, size_bytes)
    distil(teacher, student, inputs, steps=steps, **settings)
    return secateur.freeze(student, half_codebook=True)


@torch.no_grad()
def answers(model: nn.Module, inputs: Iterator[Tensor], bf16: bool) -> Tensor:
    """Return the logits of all inputs."""
    found = []
    for x in inputs:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            found.append(model(x.contiguous(memory_format=torch.channels_last)).float())
    return torch.cat(found)


def ranks_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the place of the right class in every row, 0 for the first; of equal logits the first counts as larger.

    In bfloat16 many logits are equal, and would all be right otherwise.
    """
    own, is_before = logits.gather(1, labels[:, None]), torch.arange(logits.shape[1]) < labels[:, None]
    return ((logits > own) | ((logits == own) & is_before)).sum(1)


def paired(hits: Tensor, reference: Tensor) -> tuple[float, float]:
    """Return by how many points more often the first is right on the same pictures, and half of the 95 % interval."""
    difference = 100 * (hits.double() - reference.double())
    return float(difference.mean()), 1.96 * float(difference.std()) / math.sqrt(len(difference))


class Study:
    """A pretrained network, the photographs it learns from, and its answers to pictures it is tested on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, entry = options, PRETRAINED[options.network]
        self.preprocessing = entry.preprocessing
        self.teacher = networks.build(options.network, seed=0).eval().requires_grad_(False)
        self.teacher.load_state_dict(entry.load(options.data_root))
        self.teacher = self.teacher.to(memory_format=torch.channels_last)
        self.tested = pictures(options.test)
        leave_out = [path for path, _ in self.tested]
        folders = dict(options.photographs)
        paths = find_photographs([*folders.values()], options.number + HELD_OUT, leave_out)
        learned = paths[HELD_OUT:]
        self.sources = {name: sum(path.is_relative_to(folder) for path in learned) for name, folder in folders.items()}
        self.work = options.work / digest([*paths, *leave_out])  # what is kept belongs to these pictures
        self.work.mkdir(parents=True, exist_ok=True)
        images = kept_array(self.work / "photographs.npy", (len(paths), 3, SIDE, SIDE), photographs(paths))
        self.held_out, self.training = images[:HELD_OUT], images[HELD_OUT:]
        self.held_out_answers = self.answers(self.teacher, self.held_out)

    def answers(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return the logits for the centres of images."""
        scale = replace(self.preprocessing, short_side=images.shape[2])
        return answers(model, map(scale, images.split(50)), self.options.bf16)

    def agreement(self, model: nn.Module) -> dict[str, float]:
        """Compare answers on photographs outside the training with the dense network's."""
        found = self.answers(model, self.held_out)
        same = (found.argmax(1) == self.held_out_answers.argmax(1)).double().mean()
        return {"divergence": float(divergence(found, self.held_out_answers)), "agreement": 100 * float(same)}

    def match(self, model: nn.Module) -> None:
        """Give batch norms the statistics that belong to the pruned weights."""
        images = self.training[:STATISTICS].split(64)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
            match_statistics(model, self.teacher, [self.preprocessing(part) for part in images])

    def ranks(self, model: nn.Module, name: str) -> Tensor:
        """Return how many classes the network prefers to the right one, of every test picture.

        They are kept in a file that grows while pictures are evaluated: an interrupted evaluation is continued.
        """
        path, size = self.work / f"{name}.ranks.npy", self.preprocessing.size
        array = self.work / f"{self.options.network}-pictures.npy"
        images = kept_array(array, (len(self.tested), 3, size, size), centres(self.tested, self.preprocessing))
        ranks = torch.from_numpy(np.load(path)) if path.exists() else torch.zeros(0, dtype=torch.int64)
        while len(ranks) < len(images):
            part = slice(len(ranks), len(ranks) + PART)
            found, labels = self.answers(model, images[part]), torch.tensor([label for _, label in self.tested[part]])
            ranks = torch.cat([ranks, ranks_of(found, labels)])
            content = io.BytesIO()
            np.save(content, ranks.numpy())
            write_atomically(path, content.getvalue())
        return ranks

    def scores(self, model: nn.Module, name: str) -> dict[str, object]:
        """Return top-1 and top-5 of a network on the test pictures, and what it gains on the dense network."""
        dense = self.ranks(self.teacher, f"{self.options.network}-dense")
        ranks, found = self.ranks(model, name), {}
        for label, places in (("top1", 1), ("top5", 5)):
            share, reference = (100 * float((each < places).double().mean()) for each in (ranks, dense))
            found[label], found[f"{label}_dense"] = share, reference
            found[f"{label}_interval"] = half_width(share, len(ranks))
            found[f"{label}_difference"] = paired(ranks < places, dense < places)
        return {"images": len(ranks), **found}

    def latency(self, model: nn.Module) -> dict[str, object]:
        """Time one picture dense and compiled, in turns; CPU time, because other programs may run."""
        x = torch.randn(1, 3, self.preprocessing.size, self.preprocessing.size)
        plain = model.to(memory_format=torch.contiguous_format)
        fast = secateur.compile_sparse(plain, x)
        with torch.inference_mode():
            rivals = {"dense": lambda: plain(x), "sparse": lambda: fast(x)}
            found = compare_latency(rivals, repeats=20, warmup=2, clock=time.thread_time)
        low, high = found["sparse"].interval
        return {
            "dense_ms": found["dense"].latency.median_ms,
            "sparse_ms": found["sparse"].latency.median_ms,
            "speedup": 1 / found["sparse"].time_ratio,
            "speedup_interval": [1 / high, 1 / low],
        }

    def train(self, sparsity: float, seed: int, path: Path) -> dict[str, object]:
        """Write the file of one run, and return what may be looked at while settings are chosen."""
        given, start = self.options, (time.perf_counter(), time.process_time())
        settings = {name: getattr(given, name) for name in ("temperature", "bf16", "batch_norm")}
        inputs = crops(self.training, self.preprocessing, given.size or self.preprocessing.size, given.batch, seed)
        row: dict[str, object] = {}
        information = sensitivities(self.teacher, inputs, -(-INFORMATION // given.batch), seed, given.bf16)
        has_norms = any(isinstance(module, _BatchNorm) for module in self.teacher.modules())
        is_matched = has_norms and given.statistics != "kept"
        model = prune(self.teacher, inputs, information, sparsity, given.steps, lr=given.lr, **settings)
        row["pruned"] = self.agreement(model)
        if is_matched and given.statistics == "matched-twice":  # what follows learns with what it will answer with
            self.match(model)
            row["pruned_matched"] = self.agreement(model)
        steps, lr = given.quantize_steps, given.quantize_lr
        model = quantise(self.teacher, model, inputs, information, given.bytes, steps, lr=lr, **settings)
        if is_matched:
            row["before_statistics"] = self.agreement(model)
            self.match(model)
        row |= self.agreement(model)
        row["cpu_s"], row["seconds"] = time.process_time() - start[1], time.perf_counter() - start[0]
        row["bytes"], row["dense_bytes"] = secateur.save(model, path), dense_bytes(model)
        tally = count(model).prunable
        row["weights"], row["kept"] = tally.weights, tally.kept
        row["kept_by_layer"] = {each.name: each.kept for each in tally.tensors}
        return row

    def run(self, sparsity: float, seed: int) -> dict[str, object]:
        """Return the row of one run; its training is not repeated if the file with these settings exists."""
        given = self.options
        config = {name: getattr(given, name) for name in SETTINGS}
        config |= {"photographs": len(self.training), "precision": "bf16" if given.bf16 else "float32"}
        path = self.work / f"{given.network}-{100 * sparsity:g}-seed{seed}.cut"
        notes = path.with_suffix(".json")
        row = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() and path.exists() else {}
        if row.get("config") != config:
            path.with_suffix(".ranks.npy").unlink(missing_ok=True)
            row = {"network": given.network, "sparsity": sparsity, "seed": seed}
            row |= self.train(sparsity, seed, path)
            row |= {"config": config, "sources": self.sources, "versions": versions()}
            write_atomically(notes, (json.dumps(row, indent=1) + "\n").encode())
        if not given.validate:
            model = secateur.load(path).eval().to(memory_format=torch.channels_last)
            row |= self.scores(model, path.stem)
            row["latency"] = self.latency(model)
        return row


def _extent(settings: dict[str, object]) -> tuple[object, ...]:
    """Return the settings that tell rows of one network apart."""
    return tuple(settings[name] for name in ("bytes", "steps", "quantize_steps"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=scored())
    parser.add_argument(
        "--photographs", type=source, nargs="+", required=True, help="folders of pictures of any kind, or NAME=FOLDER"
    )
    parser.add_argument("--test", type=Path, required=True, help="a folder of pictures per class, named by its index")
    parser.add_argument("--work", type=Path, required=True, help="where arrays and files are kept")
    parser.add_argument("--sparsity", type=float, nargs="+", default=(0.5, 0.7))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--number", type=int, default=10_000, help="photographs to learn from, evenly from all folders")
    parser.add_argument("--size", type=int, help="pixels of a crop that it learns from; default: the network's input")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300, help="while weights are pruned")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--bytes", type=int, required=True, help="size of the file that grids are made for, estimated")
    parser.add_argument("--quantize-steps", type=int, default=100, help="with few values per layer")
    parser.add_argument("--quantize-lr", type=float, default=3e-5)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--batch-norm", choices=("frozen", "training"), default="frozen", help="statistics in training")
    parser.add_argument(
        "--statistics",
        choices=("matched", "matched-twice", "kept"),
        default="matched",
        help="of batch norms: matched to the weights at the end, after pruning too, or never",
    )
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast, also where networks are evaluated")
    parser.add_argument("--data-root", type=Path, help="where weights are kept, instead of the user's cache")
    parser.add_argument("--validate", action="store_true", help="leave out the test pictures")
    parser.add_argument("--results", type=Path, help="write, or extend, this JSON file")
    options = parser.parse_args()
    if options.validate and options.results:
        parser.error("--validate runs are not complete: leave out --results")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    study = Study(options)
    content: dict[str, list[dict[str, object]]] = {"rows": []}
    if options.results and options.results.exists():
        content = json.loads(options.results.read_text(encoding="utf-8"))
    done = {(row["network"], row["sparsity"], row["seed"], *_extent(row["config"])) for row in content["rows"]}
    for seed, sparsity in itertools.product(range(options.seeds), options.sparsity):
        if (options.network, sparsity, seed, *_extent(vars(options))) in done:
            continue
        row = study.run(sparsity, seed)
        content["rows"].append(row)
        shown = {name: value for name, value in row.items() if name not in ("kept_by_layer", "config", "versions")}
        print(json.dumps(shown, ensure_ascii=False), flush=True)
        if options.results:
            write_atomically(options.results, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
