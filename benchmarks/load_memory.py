"""How much memory does it take to read the weights of a network of AlexNet's size from a file? (one thread).

The network is that of `rans_alexnet.py`: AlexNet's own shapes, the per-layer sparsities of the paper's table 2. Each
way of reading runs in a fresh process; its peak does not include the interpreter, torch and secateur. The ways:
`secateur.load` into a model, whose own memory counts, `secateur.load_state`, and `Archive.read_sparse`, which returns
positions and values and never builds a dense tensor. Then from the file to an answer for one picture, activations
included: with a dense network, and with `load_sparse`. The sparse ways must stay below the size of the dense weights.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rans_alexnet import LAYERS, alexnet, resident_bytes
from torch import nn

import secateur
from secateur import networks
from secateur.encode import open_archive
from secateur.experiments.subject import random_zeros_

LIMIT = 1.0  # peak of the sparse way ÷ bytes of the dense weights


def empty_alexnet() -> nn.ModuleDict:
    """Return AlexNet's tensors without values: memory that was never written is not resident."""
    layers = nn.ModuleDict()
    for name, (shape, _) in LAYERS.items():
        layer = layers[name] = nn.Module()
        layer.weight, layer.bias = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape[0]))
    return layers


def load(path: Path) -> nn.Module:
    return secateur.load(path, model=empty_alexnet())


def load_state(path: Path) -> dict[str, torch.Tensor]:
    return secateur.load_state(path)


def read_sparse(path: Path) -> dict[str, object]:
    with open_archive(path) as archive:
        return {record.name: archive.read_sparse(record) for record in archive.records}


def answer_dense(path: Path) -> object:
    return answer(secateur.load(path).eval())


def answer_sparse(path: Path) -> object:
    return answer(secateur.load_sparse(path))


def answer(network: nn.Module) -> object:
    with torch.inference_mode():
        return network, network(torch.zeros(1, *networks.NETWORKS["alexnet"].input_shape))


WAYS = {
    "secateur.load": load,
    "secateur.load_state": load_state,
    "Archive.read_sparse": read_sparse,
    "load, and answer": answer_dense,
    "load_sparse, and answer": answer_sparse,
}
SPARSE = ("Archive.read_sparse", "load_sparse, and answer")


def print_peak(way: str, path: Path) -> None:
    """Print the memory of one way of reading in this process: at its peak, and at the end."""
    torch.set_num_threads(1)
    warm = Path(f"{path}.warm")
    with open_archive(warm) as archive:  # first use imports modules, which should not be counted
        for record in archive.records:
            archive.read(record), archive.read_sparse(record)
    with torch.inference_mode():
        for network in (secateur.load(warm), secateur.load_sparse(warm)):
            network(torch.zeros(1, 1, 28, 28))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident_bytes("VmRSS")
    start = time.perf_counter()
    kept = WAYS[way](path)
    seconds, peak, after = time.perf_counter() - start, resident_bytes("VmHWM"), resident_bytes("VmRSS")
    assert kept
    found = {"peak_mb": (peak - before) / 1e6, "kept_mb": (after - before) / 1e6, "first_s": seconds}
    print(json.dumps(found | {"before_mb": before / 1e6}))


def measure(way: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--peak", way, str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


def assert_same(model: nn.Module, path: Path) -> None:
    """Check that the sparse way returns the weights, before it is measured."""
    for name, sparse in read_sparse(path).items():
        tensor = model.state_dict()[name]
        places = torch.from_numpy(sparse.places).long()
        assert torch.equal(tensor.view(-1)[places], torch.from_numpy(sparse.values))
        assert torch.count_nonzero(tensor) == len(places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", nargs=2, metavar=("WAY", "PATH"))
    parser.add_argument("--codec", default="rans")
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    if options.peak:
        print_peak(options.peak[0], Path(options.peak[1]))
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "alexnet.cut", alexnet()
        dense = sum(tensor.nbytes for tensor in model.state_dict().values())
        nonzero = sum(int(torch.count_nonzero(tensor)) for tensor in model.state_dict().values())
        size = secateur.save(model, path, codec=options.codec, architecture="alexnet")
        small = random_zeros_(networks.build("lenet-5", seed=0), 0.1)
        secateur.save(small, f"{path}.warm", codec=options.codec)
        assert_same(model, path)
        del model
        rows = {way: measure(way, path) for way in WAYS}
    share = f"{nonzero:,} of them not zero ({4 * nonzero / dense:.1%})"
    print(f"dense weights {dense / 1e6:.0f} MB, {share}, file {size / 1e6:.1f} MB")
    print(f"{'':24}{'peak MB':>10}{'÷ dense':>10}{'kept MB':>10}{'seconds':>10}")
    for way, row in rows.items():
        row["peak_over_dense"] = row["peak_mb"] * 1e6 / dense
        print(
            f"{way:24}{row['peak_mb']:10.0f}{row['peak_over_dense']:10.2f}{row['kept_mb']:10.0f}{row['first_s']:10.2f}"
        )
    sparse = max(rows[way]["peak_over_dense"] for way in SPARSE)
    print(f"the sparse ways peak at {sparse:.2f} × the dense weights, limit {LIMIT}")
    if options.save:
        facts = {
            "codec": options.codec,
            "file_bytes": size,
            "dense_bytes": dense,
            "nonzero": nonzero,
            "limit": LIMIT,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps({"rows": rows, **facts}, indent=1, ensure_ascii=False) + "\n")
    if sparse >= LIMIT:
        raise SystemExit("a sparse way takes as much memory as the dense weights")


if __name__ == "__main__":
    main()
