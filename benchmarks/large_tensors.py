"""How many CPU seconds do θ⁻¹ of 22 million weights and k-means of 12 million take, compared with θ and with sorting?

θ⁻¹ is what `init="inverse"` starts from, k-means with 255 levels what `quantize` starts from. One thread. Weights are
normal, or have the heavy tails of Student's t with 3 degrees of freedom, where a linear start leaves clusters empty.

    python benchmarks/large_tensors.py [results.json]
"""  # noqa: D400 - it asks a question

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.testing import assert_close

from secateur import theta, theta_inverse
from secateur.kmeans import assign, cluster

INVERTED, CLUSTERED, LEVELS = 22_000_000, 12_000_000, 255


def cpu_seconds(call: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.process_time()
    answer = call()
    return time.process_time() - start, answer


def measure_inverse(alpha: float, quantile: float) -> dict[str, float | str]:
    weight = torch.randn(INVERTED) * 0.05
    threshold = weight.abs().kthvalue(int(quantile * INVERTED) + 1).values
    own, x = cpu_seconds(lambda: theta_inverse(weight, threshold, alpha))
    other, mapped = cpu_seconds(lambda: theta(x, threshold, alpha))
    # An error of one unit in the last place of x is one of α·x units in that of θ.
    assert_close(mapped, weight, rtol=1e-6 * max(1.0, alpha * threshold.item()), atol=1e-7)
    return {"what": f"θ⁻¹, α = {alpha:g}, p = {quantile}", "seconds": own, "rival": "θ", "rival_seconds": other}


def measure_clusters(name: str, values: Tensor) -> dict[str, float | str]:
    own, centroids = cpu_seconds(lambda: cluster(values, LEVELS))
    other, _ = cpu_seconds(lambda: values.sort().values)
    assert len(assign(values, centroids).unique()) == LEVELS
    return {"what": f"k-means, {name}", "seconds": own, "rival": "sort", "rival_seconds": other}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    print(f"CPU seconds, one thread; {machine}")
    rows = [measure_inverse(alpha, quantile) for alpha in (100.0, 1000.0) for quantile in (0.1, 0.5)]
    rows.append(measure_clusters("normal", torch.randn(CLUSTERED) * 0.05))
    rows.append(measure_clusters("Student's t", torch.distributions.StudentT(3.0).sample((CLUSTERED,)) * 0.05))
    for row in rows:
        print(f"{row['what']:24} {row['seconds']:8.2f}   {row['rival']:5} {row['rival_seconds']:8.2f}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
