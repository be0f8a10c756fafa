"""Check a .cut file: compare it with its original bit by bit, and count its network's errors on test images."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from secateur import data
from secateur.encode.container import MAX_BYTES, open_archive
from secateur.encode.convert import Comparison, compare, read_safetensors
from secateur.files import input_shape, load, read_inputs
from secateur.measure import error_of_batches


@dataclass(frozen=True)
class Verification(Comparison):
    """How a file differs from its original, and the test error of its network and of the original."""

    error: float | None = None
    original_error: float | None = None
    test_images: int = 0


def verify(
    path: Path,
    *,
    against: Path | None = None,
    data_set: str | None = None,
    data_root: Path | None = None,
    max_bytes: int = MAX_BYTES,
    trust: Collection[str] = (),
) -> Verification:
    """Decode every tensor of a file; compare each, bit by bit, with the original; count errors on test images.

    Only errors need the network itself; `trust` names the modules that may be imported for one that is not ours.
    """
    originals = None if against is None else read_safetensors(against)[0]
    found = Verification(**vars(compare(path, originals, max_bytes=max_bytes)))
    return found if data_set is None else _with_errors(found, originals or {}, data_set, data_root, max_bytes, trust)


def _with_errors(
    found: Verification,
    originals: Mapping[str, Tensor],
    data_set: str,
    data_root: Path | None,
    max_bytes: int,
    trust: Collection[str],
) -> Verification:
    path = Path(found.path)
    scaling = read_inputs(path).scaling
    model = load(path, max_bytes=max_bytes, trust=trust).float()  # like the images
    with open_archive(path) as archive:
        shape = input_shape(model, archive.metadata, path)
    test = data.Inputs(data.load(data_set, "test", data_root, shape), scaling)
    error, original_error = error_of_batches(model, test.batches()), None
    if _fits(originals, model):
        model.load_state_dict(originals)
        original_error = error_of_batches(model, test.batches())
    return replace(found, error=error, original_error=original_error, test_images=len(test))


def _fits(state: Mapping[str, Tensor], model: nn.Module) -> bool:
    """Return whether a model can hold these tensors; differences have been reported already."""
    return {n: t.shape for n, t in state.items()} == {n: t.shape for n, t in model.state_dict().items()}
