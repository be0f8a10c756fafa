"""The shape of a job's inputs, where neither its data nor its settings say it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from secateur import data, networks
from secateur.job import Job
from secateur.networks import Shape, imported


def find_input_shape(job: Job, trust: Collection[str] = ()) -> Shape | None:
    """Return the shape that the pictures of a job's folder are resized to; None for data with a shape of their own.

    It is the one in the job's settings; else the usual one of the network, which one that is not ours gives as its
    attribute `input_shape`; else the size of the pictures, if they all have one, with the channels that the network's
    first convolution takes. A ValueError names the flag if there is none.
    """
    if job.inputs.input_shape is not None or networks.is_import_path(job.data):
        return job.inputs.input_shape
    if job.data in data.DATA_SETS:
        entry = data.DATA_SETS[job.data]
        return data.shape_of(job.data, networks.usual_shape(job.network, trust) or entry.shape)
    if not networks.is_import_path(job.network):
        return networks.NETWORKS.find(job.network).input_shape
    folder = Path(job.data)
    hints = imported.hints_of(job.network, trust, classes=len(data.classes_of(folder)))
    if hints.input_shape is not None:
        return hints.input_shape
    size = data.common_size(folder)
    if size is None:
        raise ValueError(
            f"{job.network} has no attribute input_shape, and the pictures in {data.printable(folder)} have several "
            "sizes: add --input-shape CHANNELS HEIGHT WIDTH"
        )
    return hints.channels, *size
