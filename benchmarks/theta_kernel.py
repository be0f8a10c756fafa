"""What does θ cost per weight, natively and in plain torch, and how far is that from a copy of the weights?

Forward returns θ, Σ|θ| and its slope, backward both gradients, each into fresh memory. `copy` writes into
existing memory, `clone` into fresh memory. At αt = 5 every weight needs an exponential, at αt = 40 almost none does.

    python benchmarks/theta_kernel.py [results.json]
"""  # noqa: D400 - it asks a question

import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils.benchmark import Timer

from secateur import native
from secateur.theta import theta_and_norm, theta_gradients
from secateur.theta_autograd import native_backward, native_forward, usable_layout

ALPHA = 100.0
SHAPES = {"266 k": (300, 887), "37.7 M": (4096, 9216)}


def median_ns(statement: str, names: dict[str, object], count: int) -> float:
    timer = Timer(statement, globals={**globals(), **names}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=1).median / count * 1e9


def check(names: dict[str, Any]) -> None:
    weight, threshold, grad, shape = (names[name] for name in ("weight", "threshold", "grad", "shape"))
    ours = [
        *native_forward(weight, threshold, ALPHA, shape, want_norm=True),
        *native_backward(grad, 0.01, weight, threshold, ALPHA, shape, needs=(True, True)),
    ]
    in_torch = [
        *theta_and_norm(weight, threshold, ALPHA),
        *theta_gradients(grad, torch.tensor(0.01), weight, threshold, ALPHA),
    ]
    inner = weight.numel() // threshold.numel()
    for our, other in zip(map(torch.as_tensor, ours), in_torch, strict=True):
        # Settled weights differ by 4e-8, and torch adds the sums in float32.
        assert_close(our, other, rtol=1e-4, atol=1e-6 if our.shape == weight.shape else 1e-7 * inner)


def measure(weight: torch.Tensor, threshold: torch.Tensor) -> dict[str, float]:
    names: dict[str, Any] = {"weight": weight, "threshold": threshold, "grad": torch.randn_like(weight)}
    names |= {"kept": weight.clone(), "shape": usable_layout(weight, threshold)}
    check(names)
    statements = {
        "forward": "native_forward(weight, threshold, ALPHA, shape, want_norm=True)",
        "backward": "native_backward(grad, 0.01, weight, threshold, ALPHA, shape, needs=(True, True))",
        "torch forward": "theta_and_norm(weight, threshold, ALPHA)",
        "torch backward": "theta_gradients(grad, torch.tensor(0.01), weight, threshold, ALPHA)",
        "copy": "kept.copy_(weight)",
        "clone": "weight.clone()",
    }
    times = {name: median_ns(statement, names, weight.numel()) for name, statement in statements.items()}
    # Forward reads a weight and writes one; backward reads a gradient besides.
    return times | {"forward GB/s": 8 / times["forward"], "backward GB/s": 12 / times["backward"]}


def main() -> None:
    if not native.is_available():
        sys.exit("the native library is not built: pip install . with a C++ compiler at hand")
    torch.manual_seed(0)
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    print(f"ns per weight, median; {machine}")
    rows = []
    for size, shape in SHAPES.items():
        weight = torch.randn(shape) * 0.05
        for groups in ("layer", "row"):
            for sharpness in (5, 40):
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    threshold = torch.full((shape[0], 1) if groups == "row" else (), sharpness / ALPHA)
                    result = measure(weight, threshold)
                    if not rows:
                        print("weights  groups  αt  threads" + "".join(f"{name:>15}" for name in result))
                    print(
                        f"{size:>7}  {groups:6}  {sharpness:2}  {threads:7}"
                        + "".join(f"{value:15.2f}" for value in result.values()),
                        flush=True,
                    )
                    case = {"weights": weight.numel(), "groups": groups, "sharpness": sharpness, "threads": threads}
                    rows.append(case | result)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps({"machine": machine, "ns_per_weight": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
