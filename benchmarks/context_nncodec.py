"""Are files of the codec `context` smaller than those of NNCodec 2.1.3, and is it as fast to decode? (one thread).

Weights of pruned networks are quantised to 4 and 32 shared values, to int8 (255 levels) and to 511 levels, and each
matrix is coded by both. NNCodec gets its best settings: both directions, unary parts of 2, 5, 11 and 20, with and
without skipped rows, dependent quantisation off, no header; every stream is decoded and compared. Speed: both decode
the same synthetic matrices, 3 % of them not zero, in turns in NNCodec's process, which loads our library too.
"""

import argparse
import ctypes
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MATRICES = ((256, 9216), (1024, 9216), (4096, 9216))
DENSITY = 0.03
METHODS = ("4 values", "32 values", "int8", "511 levels")


def levels_of(weight, method):
    """Quantise the weights that are not zero, none of them to zero, and return the level matrix."""
    import torch

    from secateur.encode.levels import find_levels, find_values, to_bits
    from secateur.kmeans import assign, cluster

    matrix, kept = weight.reshape(len(weight), -1), weight != 0
    kept = kept.reshape(matrix.shape)
    if method.endswith("values"):
        centroids = cluster(matrix[kept], int(method.split()[0])).to(matrix.dtype)
        shared = torch.zeros_like(matrix)
        shared[kept] = centroids[assign(matrix[kept], centroids)]
        return next(find_levels(*find_values(to_bits(shared)), shared.dtype, tuple(shared.shape))).matrix
    largest = 127 if method == "int8" else 255
    sizes = (matrix.abs() * (largest / matrix.abs().max())).round().clamp(min=1)
    return (sizes * matrix.sign()).to(torch.int32).numpy()


def sizes(paths, python):
    """Return bytes of context and NNCodec by network, method and tensor."""
    import safetensors.torch

    from secateur.encode import nncodec_sizes
    from secateur.encode.codecs import context
    from secateur.encode.codecs.bounds import Bounds

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        matrices = {}
        for path in paths:
            file = path / "model.safetensors" if path.is_dir() else path
            for name, weight in safetensors.torch.load_file(file).items():
                for method in METHODS if weight.dim() > 1 else ():
                    matrix = levels_of(weight, method)
                    bounds = Bounds.of(matrix)
                    stream = context.encode(matrix, bounds)
                    assert np.array_equal(context.decode(memoryview(stream), bounds), matrix)
                    network = path.name if path.is_dir() else path.stem
                    rows.append({"network": network, "method": method, "tensor": name, "context": len(stream)})
                    matrices[f"t{len(rows)}"] = matrix
        archive = Path(folder) / "levels.npz"
        np.savez(archive, **matrices)
        command = [str(python), nncodec_sizes.__file__, str(archive)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [{**row, "nncodec": size} for row, size in zip(rows, found, strict=True)]


def synthetic(rows, columns):
    """Draw a matrix whose rows and columns differ in density, as those of pruned layers do."""
    random = np.random.default_rng(0)
    by_row, by_column = random.gamma(2, 1, rows), random.gamma(2, 1, columns)
    dense = np.outer(by_row / by_row.mean(), by_column / by_column.mean()) * DENSITY
    levels = np.clip(np.round(random.laplace(0, 4, (rows, columns))), -16, 16).astype(np.int32)
    return np.where(random.random((rows, columns)) < dense, np.where(levels == 0, 1, levels), 0).astype(np.int32)


def decoders(matrix, ours, coder):
    """Return for each rival a function that decodes the matrix and checks it."""
    size, number, pointer = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
    bounds = (size, size, size, number, number, size)
    ours.secateur_context_encode.argtypes = [pointer, *bounds, pointer, size]
    ours.secateur_context_decode.argtypes = [pointer, size, *bounds, pointer]
    ours.secateur_context_encode.restype = ours.secateur_context_decode.restype = size
    known = (*matrix.shape, int(np.count_nonzero(matrix)), int(matrix.min()), int(matrix.max()), 0)
    out = np.empty(matrix.size, np.uint8)
    length = ours.secateur_context_encode(matrix.ctypes.data, *known, out.ctypes.data, out.size)
    encoder = coder.Encoder()
    encoder.initCtxModels(11, 1)
    off = (coder.HdspMode.AlwaysOff, np.array([], np.int8))
    encoder.encodeLayer(matrix, 0, 0, 1, 0, 0, np.zeros(len(matrix), np.int32), *off, 0, 0)
    stream = bytearray(encoder.finish().tobytes())
    again = {"context": np.zeros_like(matrix), "nncodec": np.zeros_like(matrix)}

    def context():
        assert ours.secateur_context_decode(out.ctypes.data, length, *known, again["context"].ctypes.data) == 0

    def nncodec():
        decoder = coder.Decoder()
        decoder.setStream(stream)
        decoder.initCtxModels(11)
        decoder.decodeLayer(again["nncodec"], 0, 0, 1, 0, *off, 0, 0)
        decoder.finish()

    return {"context": (context, length), "nncodec": (nncodec, len(stream))}, again


def print_speed(library, runtime, sizes_module, repeats):
    """Time both in turns; run by NNCodec's interpreter."""
    spec = importlib.util.spec_from_file_location("nncodec_sizes", sizes_module)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    coder = module._load_coder()
    if runtime:
        ctypes.CDLL(runtime, ctypes.RTLD_GLOBAL)  # the OpenMP runtime that other routines of the library call
    ours, rows = ctypes.CDLL(library), []
    for shape in MATRICES:
        matrix = synthetic(*shape)
        rivals, again = decoders(matrix, ours, coder)
        times = {name: [] for name in rivals}
        for _ in range(repeats):
            for name, (run, _) in rivals.items():
                start = time.process_time()
                run()
                times[name].append(time.process_time() - start)
        assert all(np.array_equal(found, matrix) for found in again.values())
        row = {"weights": matrix.size, "density": np.count_nonzero(matrix) / matrix.size}
        row |= {f"{name}_bytes": length for name, (_, length) in rivals.items()}
        row |= {f"{name}_ns_per_weight": statistics.median(each) / matrix.size * 1e9 for name, each in times.items()}
        pairs = zip(times["nncodec"], times["context"], strict=True)
        rows.append({**row, "speed_ratio": statistics.median(theirs / own for theirs, own in pairs)})
    print(json.dumps(rows))


def speed(python, repeats):
    """Return the rows of `print_speed`."""
    import torch

    from secateur import native
    from secateur.encode import nncodec_sizes

    library = next(
        spec.origin
        for build in native._builds()
        if (spec := importlib.util.find_spec(f"secateur._native_{build}")) is not None
    )
    runtime = next(map(str, (Path(torch.__file__).parent / "lib").glob("libgomp*")), "")
    command = [str(python), __file__, "--speed", library, runtime, nncodec_sizes.__file__, "--repeats", str(repeats)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", type=Path, help="runs, or .safetensors files, of pruned networks")
    parser.add_argument("--nncodec", type=Path, help="the interpreter of an environment with nncodec 2.1.3")
    parser.add_argument("--speed", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", type=Path, help="write the tables as JSON")
    options = parser.parse_args()
    if options.speed:
        print_speed(*options.speed, options.repeats)
        return
    if options.nncodec is None:
        print("no rival given: pass --nncodec PYTHON, of an environment with `pip install --no-deps nncodec==2.1.3`")
        return
    rows = sizes(options.networks, options.nncodec)
    sums = []
    for network, method in dict.fromkeys((row["network"], row["method"]) for row in rows):
        mine = [row for row in rows if (row["network"], row["method"]) == (network, method)]
        print(f"\n{network}, {method}\n{'':24}{'NNCodec':>10}{'context':>10}{'smaller':>10}")
        total = {name: sum(row[name] for row in mine) for name in ("nncodec", "context")}
        for row in [*mine, {"tensor": "sum", **total}]:
            gain = 1 - row["context"] / row["nncodec"]
            print(f"{row['tensor']:24}{row['nncodec']:10,}{row['context']:10,}{gain:10.1%}")
        sums.append({"network": network, "method": method, **total, "smaller": 1 - total["context"] / total["nncodec"]})
    large = [row for row in rows if row["nncodec"] > 2000]
    worse = [row for row in large if row["context"] >= row["nncodec"]]
    print(f"\ntensors above 2 kB: {len(large)}, context larger on {len(worse)} of them")
    timed = speed(options.nncodec, options.repeats)
    print(f"\n{'weights':>12}{'NNCodec ns':>12}{'context ns':>12}{'speed ratio':>13}   (decode, per weight)")
    for row in timed:
        each = f"{row['nncodec_ns_per_weight']:12.2f}{row['context_ns_per_weight']:12.2f}{row['speed_ratio']:13.2f}"
        print(f"{row['weights']:12,}{each}")
    if options.save:
        facts = {"numpy": np.__version__, "python": sys.version.split()[0], "machine": platform.machine()}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        content = {"sums": sums, "tensors": rows, "larger_above_2_kB": worse, "speed": timed, **facts}
        options.save.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
