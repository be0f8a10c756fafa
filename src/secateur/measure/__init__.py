"""Measurements of a network: its weights, arithmetic, size, latency and error."""

from secateur.measure.counts import Counts, Tally, TensorCount, Total, count, prunable_names
from secateur.measure.error import Answers, answers_of_batches, error_of_batches, error_rate
from secateur.measure.flops import LayerFlops, ModelFlops, count_flops
from secateur.measure.latency import Comparison, Latency, compare_latency, latency_ms
from secateur.measure.size import dense_bytes, file_bytes

__all__ = [  # noqa: RUF022 – in the order of the docstring
    "count",
    "prunable_names",
    "Counts",
    "Total",
    "TensorCount",
    "Tally",
    "count_flops",
    "ModelFlops",
    "LayerFlops",
    "dense_bytes",
    "file_bytes",
    "latency_ms",
    "compare_latency",
    "Latency",
    "Comparison",
    "error_rate",
    "error_of_batches",
    "answers_of_batches",
    "Answers",
]
