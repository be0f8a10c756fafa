"""Does a budget keep a pretrained sentence encoder closer to itself than one-shot magnitude? (one thread).

A pretrained encoder is distilled to itself while its linear layers lose a share of their weights. Both rivals start
from the same weights and take the same number of steps on the same batches with the same loss, optimizer and learning
rate. `budget` prunes while it trains (`secateur.Pruner`); `magnitude` cuts the smallest weights of all layers before
the first step and then trains the others; `magnitude by layer` cuts the same share of every layer instead.

Weights: a directory that `transformers` can read, such as that of all-MiniLM-L6-v2. Sentences: files in the format of
the STS benchmark, whose columns six and seven are sentences; `--similarity` is its test file, with scores in column
five. Pairs are split into training, validation and held-out ones, and no sentence is in two parts: a learning rate is
chosen by `validation_cosine`. A run that is in the results is not repeated.
"""

import argparse
import copy
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import secateur
from secateur.atomic import write_atomically
from secateur.experiments.versions import versions
from secateur.methods.magnitude import largest
from secateur.weights.tensors import parameters

METHODS = ("budget", "magnitude", "magnitude by layer")
HELD_OUT, VALIDATION, TRAINING = 500, 250, 2000  # pairs
POOL = 20  # batches whose sentences are sorted by length
LONGEST = 48  # tokens of a sentence; the rest is cut off


@dataclass(frozen=True)
class Sentences:
    """Tokenised sentences: ids and a mask of the tokens that are there, both (sentences, tokens)."""

    ids: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, rows: Tensor) -> "Sentences":
        """Return some of the sentences, without the columns that none of them needs."""
        mask = self.mask[rows]
        longest = int(mask.sum(1).max())
        return Sentences(self.ids[rows, :longest], mask[:, :longest])


def token_states(model: nn.Module, sentences: Sentences) -> Tensor:
    """Return the last state of every token: (sentences, tokens, channels)."""
    return model(input_ids=sentences.ids, attention_mask=sentences.mask).last_hidden_state


def pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of a sentence's tokens at length 1, which is the embedding of the sentence."""
    there = mask.unsqueeze(2).to(states.dtype)
    return functional.normalize((states * there).sum(1) / there.sum(1), dim=1)


@torch.no_grad()
def embed(model: nn.Module, sentences: Sentences, batch: int = 64) -> Tensor:
    """Return the embeddings of all sentences."""
    order = sentences.mask.sum(1).argsort()  # sentences of one length together need least padding
    found = []
    for rows in order.split(batch):
        part = sentences.rows(rows)
        found.append(pooled(token_states(model, part), part.mask))
    return torch.cat(found)[order.argsort()]


def distance(states: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return 1 − the cosine of the embeddings, plus the squared error of the token states relative to their size."""
    cosine = (pooled(states, mask) * pooled(target, mask)).sum(1).mean()
    there = mask.unsqueeze(2).to(states.dtype)
    return 1 - cosine + ((states - target).square() * there).sum() / (target.square() * there).sum()


def batches(sentences: Sentences, size: int, seed: int) -> Iterator[Tensor]:
    """Yield rows in a random order without an end, those of about the same length together, which saves padding."""
    generator, lengths = torch.Generator().manual_seed(seed), sentences.mask.sum(1)
    while True:
        found = []
        for pool in torch.randperm(len(sentences), generator=generator).split(POOL * size):
            found += pool[lengths[pool].argsort()].split(size)
        found = [rows for rows in found if len(rows) == size]
        for index in torch.randperm(len(found), generator=generator).tolist():
            yield found[index]


def distil(
    teacher: nn.Module,
    training: Sentences,
    method: str,
    *,
    sparsity: float,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
) -> nn.Module:
    """Return a plain copy of the teacher with the given share of its encoder's linear weights at zero."""
    student = copy.deepcopy(teacher)
    student.requires_grad_(True)
    student.embeddings.requires_grad_(False)  # not pruned, and most of the parameters
    if method == "budget":
        pruner = secateur.Pruner(student.encoder, secateur.Budget(sparsity=sparsity), steps=steps)
    else:
        pruner = None
        weights = [tensor.stored for tensor in parameters(student.encoder) if tensor.is_weight]
        scope = "layer" if method == "magnitude by layer" else "global"
        with torch.no_grad():
            for weight, kept in zip(weights, largest(weights, 1 / (1 - sparsity), scope), strict=True):
                weight[~kept] = 0
        secateur.keep_zeros(student.encoder)
    optimizer = torch.optim.Adam(secateur.parameter_groups(student, lr=lr), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    for _, rows in zip(range(steps), batches(training, batch, seed), strict=False):
        part = training.rows(rows)
        with torch.no_grad():
            target = token_states(teacher, part)
        optimizer.zero_grad()
        distance(token_states(student, part), target, part.mask).backward()
        optimizer.step()
        schedule.step()
        if pruner is not None:
            pruner.step()
    return secateur.prune(student)


def ranks(values: Tensor) -> Tensor:
    """Return the ranks of values, and their mean rank for equal ones."""
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[inverse]


def spearman(a: Tensor, b: Tensor) -> float:
    """Return Spearman's rank correlation."""
    return float(torch.corrcoef(torch.stack([ranks(a), ranks(b)]))[0, 1])


def read_pairs(path: Path) -> list[tuple[float, str, str]]:
    """Return score and sentences of every line of a file of the STS benchmark."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        columns = line.split("\t")
        if len(columns) < 7:
            raise SystemExit(f"{path}:{number}: expected seven columns or more with tabs between, got {len(columns)}")
        found.append((float(columns[4]), columns[5].strip(), columns[6].strip()))
    return found


def split(pairs: list[tuple[float, str, str]]) -> tuple[list[str], list[str], list[str]]:
    """Return training, validation and held-out sentences; the split is always the same."""
    pairs = sorted(set(pairs))
    random.Random(0).shuffle(pairs)
    sizes, parts, taken = (HELD_OUT, VALIDATION, TRAINING), [], set()
    for size in sizes:
        part, pairs = pairs[:size], pairs[size:]
        fresh = [text for _, *texts in part for text in texts if text not in taken]
        parts.append(list(dict.fromkeys(fresh)))
        taken.update(fresh)
    held_out, validation, training = parts
    return training, validation, held_out


class Study:
    """The data, the teacher and what it says about them; one row of results a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()  # the weights of the pooler, which is not used, are there
        self.options = options
        self.teacher = transformers.BertModel.from_pretrained(options.weights, add_pooling_layer=False).eval()
        self.teacher.requires_grad_(False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.weights)

        def tokenized(texts: list[str]) -> Sentences:
            found = tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
            return Sentences(found["input_ids"], found["attention_mask"])

        pairs = read_pairs(options.similarity)
        known = {text for _, *texts in pairs for text in texts}
        others = [pair for path in options.sentences for pair in read_pairs(path) if not known & set(pair[1:])]
        self.training, self.validation, self.held_out = map(tokenized, split(others))
        self.scores = torch.tensor([score for score, _, _ in pairs])
        self.pairs = [tokenized([pair[side] for pair in pairs]) for side in (1, 2)]
        self.embedded: dict[str, Tensor] = {}  # what the teacher says of validation and held-out sentences
        self.facts = {
            "sentences": {name: len(getattr(self, name)) for name in ("training", "validation", "held_out")},
            "pairs": len(pairs),
            **versions(),
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        }

    def similarity(self, model: nn.Module) -> float:
        """Return Spearman's correlation of cosines with the scores that people gave, on the STS benchmark's test."""
        a, b = (embed(model, side) for side in self.pairs)
        return spearman((a * b).sum(1), self.scores)

    def cosine(self, model: nn.Module, part: str) -> float:
        """Return the mean cosine of the model's embeddings and the teacher's, of one part of the sentences."""
        sentences = getattr(self, part)
        if part not in self.embedded:
            self.embedded[part] = embed(self.teacher, sentences)
        return float((embed(model, sentences) * self.embedded[part]).sum(1).mean())

    def dense(self) -> dict[str, object]:
        """Return the teacher's own row."""
        return {"method": "dense", "cosine": 1.0, "spearman": self.similarity(self.teacher)}

    def run(self, method: str, sparsity: float, lr: float, seed: int) -> dict[str, object]:
        """Return the row of one run; with `--validate` only what may be looked at while settings are chosen."""
        start = time.perf_counter()
        given = self.options
        settings = {"sparsity": sparsity, "lr": lr, "seed": seed}
        student = distil(self.teacher, self.training, method, steps=given.steps, batch=given.batch, **settings)
        seconds = time.perf_counter() - start
        weights = [(tensor.name, tensor.stored) for tensor in parameters(student.encoder) if tensor.is_weight]
        row = {"method": method, **settings, "seconds": seconds}
        row["validation_cosine"] = self.cosine(student, "validation")
        if not given.validate:
            row["cosine"] = self.cosine(student, "held_out")
            row["spearman"] = self.similarity(student)
        row["weights"] = sum(weight.numel() for _, weight in weights)
        row["kept"] = sum(int(weight.count_nonzero()) for _, weight in weights)
        row["kept_by_layer"] = {name: int(weight.count_nonzero()) for name, weight in weights}
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="directory of the pretrained encoder")
    parser.add_argument("--sentences", type=Path, nargs="+", required=True, help="files of the STS benchmark")
    parser.add_argument("--similarity", type=Path, required=True, help="test file of the STS benchmark")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS[:2])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, nargs="+", default=(4e-4, 1e-3))
    parser.add_argument("--sparsity", type=float, nargs="+", default=(0.5, 0.8))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--validate", action="store_true", help="leave out held-out sentences and similarity")
    parser.add_argument("--results", type=Path, help="write, or continue, this JSON file")
    options = parser.parse_args()
    if options.validate and options.results:
        parser.error("--validate runs are not complete: leave out --results")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    study = Study(options)
    config = {"steps": options.steps, "batch": options.batch, "longest": LONGEST}
    content = {"config": config, **study.facts, "rows": []}
    if options.results and options.results.exists():
        content = json.loads(options.results.read_text(encoding="utf-8"))
        if content["config"] != config:
            raise SystemExit(f"{options.results} has other settings ({content['config']}): name another file")

    def wanted(*run: object) -> bool:
        known = ("method", "sparsity", "lr", "seed")
        return all(tuple(row.get(name) for name in known) != run for row in content["rows"])

    def add(row: dict[str, object]) -> None:
        content["rows"].append(row)
        shown = ("cosine", "spearman", "validation_cosine", "seconds", "kept")
        numbers = "".join(f"  {name} {row[name]:.4f}" for name in shown if name in row)
        run = f"{row['method']:20}{row.get('sparsity', 0):5.0%}  lr {row.get('lr', 0):g}  seed {row.get('seed', '–')}"
        print(run + numbers, flush=True)
        if options.results:
            write_atomically(options.results, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    if wanted("dense", None, None, None) and not options.validate:
        add(study.dense())
    for seed, lr, sparsity in itertools.product(range(options.seeds), options.lr, options.sparsity):
        for method in options.methods:
            if wanted(method, sparsity, lr, seed):
                add(study.run(method, sparsity, lr, seed))


if __name__ == "__main__":
    main()
