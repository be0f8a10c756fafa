"""How much does `import secateur` add to `import torch`? Fresh processes, taking turns.

The limit is 1.15 times the import of torch alone.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from secateur.measure import compare_latency


def importer(name: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--save", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    rivals = {name: importer(name) for name in ("torch", "secateur")}
    found = compare_latency(rivals, repeats=options.repeats, warmup=2)
    low, high = found["secateur"].interval
    rows = {name: comparison.latency.median_ms for name, comparison in found.items()}
    print(f"import torch {rows['torch']:.0f} ms, import secateur {rows['secateur']:.0f} ms: "
          f"{found['secateur'].time_ratio:.3f} ({low:.3f} … {high:.3f}), limit 1.15")  # fmt: skip
    if options.save:
        content = {
            "ms": rows,
            "ratio": found["secateur"].time_ratio,
            "interval": [low, high],
            "torch": torch.__version__,
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
