"""What the scripts in `benchmarks/` saved under `results/benchmarks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from secateur.results import RunError


def read_benchmark(results: Path, name: str) -> dict[str, Any]:
    """Return what a benchmark saved; no rows if it did not run."""
    path = results / "benchmarks" / f"{name}.json"
    if not path.exists():
        return {"rows": {}}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}): run the benchmark again") from error
    return dict(content)
