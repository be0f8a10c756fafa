"""What is printed about .cut files: their content, their integrity, and the size of the same weights in other forms."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from secateur.encode.inspection import FileReport, TensorReport
from secateur.experiments.verification import Verification
from secateur.measure import file_bytes
from secateur.report.tables.grid import Grid
from secateur.report.terminal.lines import say

_FORMS = {
    "dense": "dense, as stored in memory",
    "gzip": "gzip -9 of that",
    "zstd": "zstd -19 of that",
    "lzma": "xz -9e of that",
    "safetensors": "safetensors",
    "csr": "CSR, 32-bit indices",
    "smallest": ".cut, smallest codec per tensor",
    "nncodec": "NNCodec, streams and codebooks",
    "entropy bound": "entropy of independent levels",
}


def file_grid(report: FileReport) -> Grid:
    """Show what a file spends on each tensor."""
    header = ("tensor", "shape", "zeros", "levels", "codec", "bytes", "bits/weight", "bits/kept", "entropy")
    rows = [_row(tensor) for tensor in report.tensors]
    rows.append(("header", "", "", "", "", f"{report.header_bytes:,}", "", "", ""))
    weights = sum(tensor.weights for tensor in report.tensors if tensor.tied_to is None)
    nonzero = sum(tensor.nonzero for tensor in report.tensors if tensor.tied_to is None)
    entropy = sum(tensor.entropy_bytes for tensor in report.tensors if tensor.tied_to is None)
    each, kept = _per(report.bytes, weights), _per(report.bytes, nonzero)
    is_computed = any(tensor.is_computed for tensor in report.tensors)
    zeros = f"{1 - nonzero / weights:.1%}" if weights and not is_computed else "–"
    rows.append(("whole file", "", zeros, "", "", f"{report.bytes:,}", each, kept, f"{entropy:,.0f}"))
    notes = [
        f"{report.dense_bytes:,} bytes uncompressed: {report.dense_bytes / report.bytes:.1f}× as much. Entropy: bytes "
        "that independent levels would take."
    ]
    if is_computed:
        notes.append("Of a tensor that is computed from smaller ones, the numbers that are stored count as kept.")
    if report.architecture is not None:
        notes.append(f"Network: {report.architecture.name}.")
    notes += [f"{_plain(key)}: {_plain(value)}." for key, value in report.metadata.items() if len(value) <= 40]
    return Grid(report.path, header, tuple(rows), " ".join(notes))


def _plain(word: str) -> str:
    """Return a word from a file without control characters, which a terminal would obey."""
    return word if word.isprintable() else repr(word)


def sizes_grid(source: Path, sizes: dict[str, int]) -> Grid:
    """Show the bytes of each form and how much smaller it is than the dense one."""
    rows = tuple(
        (_FORMS.get(form, f".cut, {form}"), f"{size:,}", f"{sizes['dense'] / size:.1f}×" if size else "–")
        for form, size in sizes.items()
    )
    return Grid(f"{source}", ("form", "bytes", "smaller by"), rows)


def print_packed(console: Console, source: Path, target: Path) -> None:
    """Print the sizes of a file before and after conversion."""
    before, after = file_bytes(source), file_bytes(target)
    change = f"{before / after:.1f}× smaller" if after < before else f"{after / before:.1f}× larger"
    say(console, f"{target}: {after:,} bytes, {change} than {source} ({before:,})")


def print_exported(console: Console, source: Path, target: Path, difference: float | None) -> None:
    """Print the sizes of a file before and after an export, and how exactly ONNX Runtime computes the same."""
    print_packed(console, source, target)
    if difference is not None:
        say(console, f"outputs of ONNX Runtime differ from torch's by {difference:.1e} at most")


def print_verification(console: Console, found: Verification) -> None:
    """Print what a check found, one line each."""
    lines = [f"{found.path}: {found.bytes:,} bytes, {found.tensors} tensors, {found.elements:,} elements, sound"]
    if found.differences is not None:
        same = "every bit equals the original"
        lines.append(same if found.is_equal else f"differs from the original: {', '.join(found.differences)}")
    if found.error is not None:
        before = "" if found.original_error is None else f", original {found.original_error:.2f} %"
        lines.append(f"error on {found.test_images:,} test images: {found.error:.2f} %{before}")
    for line in lines:
        say(console, line)


def _row(tensor: TensorReport) -> tuple[str, ...]:
    shape = "×".join(map(str, tensor.shape)) or "–"
    zeros = f"{1 - tensor.nonzero / tensor.weights:.1%}" if tensor.weights and not tensor.is_computed else "–"
    if tensor.tied_to is not None:
        return (f"{tensor.name} = {tensor.tied_to}", shape, zeros, "", "", "0", "", "", "")
    return (
        tensor.name,
        shape,
        zeros,
        "–" if tensor.levels is None else f"{tensor.levels:,}",
        tensor.values if tensor.is_computed else tensor.codec,
        f"{tensor.bytes:,}",
        _per(tensor.bytes, tensor.weights),
        _per(tensor.bytes, tensor.nonzero),
        f"{tensor.entropy_bytes:,.0f}",
    )


def _per(size: int, count: int) -> str:
    return f"{8 * size / count:.3f}" if count else "–"
