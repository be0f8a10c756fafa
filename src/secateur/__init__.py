"""Shrink PyTorch networks while they train: every layer learns its own pruning threshold."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from secateur.budget import Budget
    from secateur.compress import compress
    from secateur.encode import FormatError, load_state
    from secateur.files import load, save
    from secateur.functions.threshold import LearnedThreshold, learned_thresholds
    from secateur.job import InputConfig, Job
    from secateur.methods import Method
    from secateur.prune import keep_zeros, prune
    from secateur.pruner import Pruner
    from secateur.quantize import QuantizeConfig, coded_bits, freeze, quantize
    from secateur.run import Plan, compile_sparse, load_sparse
    from secateur.sibling import SiblingConfig, Target, build_sibling, targets
    from secateur.theta import hard_theta, theta_derivatives, theta_inverse
    from secateur.theta_autograd import theta
    from secateur.train import Recipe, Stage, parameter_groups, penalty
    from secateur.weights.function import WeightFunction
    from secateur.weights.reading import settle

__all__ = [
    "Budget",
    "FormatError",
    "InputConfig",
    "Job",
    "LearnedThreshold",
    "Method",
    "Plan",
    "Pruner",
    "QuantizeConfig",
    "Recipe",
    "SiblingConfig",
    "Stage",
    "Target",
    "WeightFunction",
    "build_sibling",
    "coded_bits",
    "compile_sparse",
    "compress",
    "freeze",
    "hard_theta",
    "keep_zeros",
    "learned_thresholds",
    "load",
    "load_sparse",
    "load_state",
    "parameter_groups",
    "penalty",
    "prune",
    "quantize",
    "save",
    "settle",
    "targets",
    "theta",
    "theta_derivatives",
    "theta_inverse",
]

# Where the public names live, in the order of the pipeline. They are imported when they are first used: torch takes
# seconds, and the command line's help does not need it.
_HOMES = {
    "theta": ("hard_theta", "theta_derivatives", "theta_inverse"),
    "theta_autograd": ("theta",),
    "weights.function": ("WeightFunction",),
    "weights.reading": ("settle",),
    "functions.threshold": ("LearnedThreshold", "learned_thresholds"),
    "sibling": ("SiblingConfig", "Target", "build_sibling", "targets"),
    "train": ("Recipe", "Stage", "parameter_groups", "penalty"),
    "budget": ("Budget",),
    "pruner": ("Pruner",),
    "prune": ("keep_zeros", "prune"),
    "quantize": ("QuantizeConfig", "coded_bits", "freeze", "quantize"),
    "encode": ("FormatError", "load_state"),
    "files": ("load", "save"),
    "run": ("Plan", "compile_sparse", "load_sparse"),
    "methods": ("Method",),
    "job": ("InputConfig", "Job"),
    "compress": ("compress",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # not at the top: importlib.metadata takes longer to import than all of this
        metadata = import_module("importlib.metadata")
        try:
            return metadata.version(__name__)
        except metadata.PackageNotFoundError:
            raise AttributeError("secateur is not installed, so it has no version") from None
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


class _Package(ModuleType):
    """Keeps functions from being hidden by the modules they live in: `secateur.prune` is the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
