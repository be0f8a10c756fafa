"""Measure the size of level matrices coded by NNCodec; run by an interpreter that has NNCodec and NumPy installed.

Only its coder is loaded: the package around it would need torchvision and more. The best of both directions, four
binarisations and with or without skipped rows counts, so that NNCodec is at its best; each stream is decoded.
"""

import importlib.util
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np


def main(path: str) -> None:
    """Print the bytes of each matrix of an .npz file, as a JSON list."""
    coder = _load_coder()
    with np.load(path) as matrices:
        print(json.dumps([_smallest(coder, matrices[name]) for name in matrices.files]))


def _load_coder() -> Any:
    package = importlib.util.find_spec("nncodec")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("nncodec is not installed there: pip install --no-deps nncodec==2.1.3")
    [library] = Path(package.submodule_search_locations[0]).glob("extensions/deepCABAC*.so")
    spec = importlib.util.spec_from_file_location("deepCABAC", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _smallest(coder: Any, levels: Any) -> int:
    sizes = []
    off = (coder.HdspMode.AlwaysOff, np.array([], np.int8))
    for matrix, unary, skip in product((levels, levels.T), (2, 5, 11, 20), (0, 1)):
        matrix = np.ascontiguousarray(matrix, np.int32)
        encoder = coder.Encoder()
        encoder.initCtxModels(unary, 1)
        skipped = (~matrix.any(axis=1)).astype(np.int32)
        encoder.encodeLayer(matrix, 0, 0, 1, 0, skip, skipped, *off, 0, 0)
        stream = encoder.finish().tobytes()
        decoder, again = coder.Decoder(), np.zeros_like(matrix)
        decoder.setStream(bytearray(stream))
        decoder.initCtxModels(unary)
        decoder.decodeLayer(again, 0, 0, 1, 0, *off, 0, 0)
        decoder.finish()
        if not np.array_equal(again, matrix):
            raise ValueError("NNCodec did not give back what it was given")
        sizes.append(len(stream))
    return min(sizes)


if __name__ == "__main__":
    main(sys.argv[1])
