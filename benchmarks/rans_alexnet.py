"""How fast is the codec `rans` on a network of AlexNet's size, and how much memory does it take? (two cores).

AlexNet's own shapes, 61 million weights, the per-layer sparsities of the paper's table 2, 32 values per layer; which
weights are kept and their values are drawn at random. The timed calls are those of a user: `secateur.save(…,
codec="rans")` writes the file, and `secateur.load_state` reads it. Given are the median of some calls, and the first
call of a fresh process with its peak memory, interpreter, torch and weights included. Rivals: torch's own file, which
is not compressed, and zlib at its fastest setting.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import secateur

LAYERS = {  # shape of the weight, and 1 − the pruned share of the paper's table 2
    "conv1": ((96, 3, 11, 11), 0.962),
    "conv2": ((256, 48, 5, 5), 0.651),
    "conv3": ((384, 256, 3, 3), 0.757),
    "conv4": ((384, 192, 3, 3), 0.633),
    "conv5": ((256, 192, 3, 3), 0.665),
    "fc6": ((4096, 9216), 0.032),
    "fc7": ((4096, 4096), 0.085),
    "fc8": ((1000, 4096), 0.215),
}
VALUES = 32
LIMITS = {"encode": 2.0, "decode": 1.0, "peak": 2.2}


def alexnet() -> nn.ModuleDict:
    """Return AlexNet's tensors, weights pruned and quantised, built in pieces to take no further memory."""
    layers, random = nn.ModuleDict(), np.random.default_rng(0)
    for name, (shape, density) in LAYERS.items():
        layer = layers[name] = nn.Module()
        layer.weight, layer.bias = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.zeros(shape[0]))
        codebook = np.sort(random.normal(0, 0.02, VALUES)).astype(np.float32)
        weights = layer.weight.detach().numpy().reshape(-1)
        for start in range(0, weights.size, 1 << 18):
            piece = weights[start : start + (1 << 18)]
            piece[:] = 0
            kept = random.random(piece.size, np.float32) < density
            piece[kept] = codebook[random.integers(0, VALUES, np.count_nonzero(kept), np.uint8)]
    return layers


def resident_bytes(field: str) -> int:
    """Return VmHWM, the peak, or VmRSS, the present use. Not getrusage: its maximum is inherited from the parent."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0]) * 1024


def print_peak(kind: str, path: Path) -> None:
    before = resident_bytes("VmRSS")
    model = alexnet() if kind == "encode" else None
    start = time.perf_counter()
    kept = secateur.load_state(path) if model is None else secateur.save(model, path, codec="rans")
    first, peak = time.perf_counter() - start, resident_bytes("VmHWM")
    assert kept
    print(json.dumps({"before_mb": before / 1e6, "peak_mb": peak / 1e6, "first_s": first}))


def peak_mb(kind: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--peak", kind, str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", nargs=2, metavar=("KIND", "PATH"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    if options.peak:
        print_peak(options.peak[0], Path(options.peak[1]))
        return
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        path, rival = Path(folder) / "alexnet.cut", Path(folder) / "alexnet.pt"
        model = alexnet()
        state = model.state_dict()
        dense = sum(tensor.nbytes for tensor in state.values())
        secateur.save(model, path, codec="rans")
        back = secateur.load_state(path)
        assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
        del back
        rows = {
            "rans": {
                "bytes": path.stat().st_size,
                "encode_s": seconds(lambda: secateur.save(model, path, codec="rans"), options.repeats),
                "decode_s": seconds(lambda: secateur.load_state(path), options.repeats),
            }
        }
        torch.save(state, rival)
        rows["torch.save"] = {
            "bytes": rival.stat().st_size,
            "encode_s": seconds(lambda: torch.save(state, rival), options.repeats),
            "decode_s": seconds(lambda: torch.load(rival), options.repeats),
        }
        packed = [zlib.compress(tensor.numpy(), 1) for tensor in state.values()]
        rows["zlib, level 1"] = {
            "bytes": sum(map(len, packed)),
            "encode_s": seconds(lambda: [zlib.compress(tensor.numpy(), 1) for tensor in state.values()], 1),
            "decode_s": seconds(lambda: [zlib.decompress(each) for each in packed], 1),
        }
        peaks = {kind: peak_mb(kind, path) for kind in ("encode", "decode")}
    print(f"{'':16}{'bytes':>14}{'encode s':>10}{'decode s':>10}")
    for name, row in rows.items():
        print(f"{name:16}{row['bytes']:14,}{row['encode_s']:10.2f}{row['decode_s']:10.2f}")
    print(f"{'limit':16}{'':14}{LIMITS['encode']:10.2f}{LIMITS['decode']:10.2f}")
    for kind, found in peaks.items():
        found["peak_over_fp32"] = found["peak_mb"] * 1e6 / dense
        found["own_over_fp32"] = (found["peak_mb"] - found["before_mb"]) * 1e6 / dense
        peak, own = f"{found['peak_over_fp32']:.2f}", f"{found['own_over_fp32']:.2f}"
        print(f"fresh process, {kind}: {found['first_s']:.2f} s, peak memory {found['peak_mb']:.0f} MB, {peak} × the "
              f"fp32 weights ({own} × without interpreter and torch; limit {LIMITS['peak']})")  # fmt: skip
    if options.save:
        facts = {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "fp32_bytes": dense,
            "limits": LIMITS,
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(
            json.dumps({"rows": rows, "memory": peaks, **facts}, indent=1, ensure_ascii=False) + "\n"
        )


if __name__ == "__main__":
    main()
