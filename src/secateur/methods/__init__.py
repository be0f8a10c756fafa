"""Published methods, one small file each, and the table of them: the one place that knows methods by name.

A new method is a file in this folder and a word in the table. Another package adds one through an entry point of the
group `secateur.methods` whose value is such a class.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping
from typing import Any

from secateur.budget import Budget
from secateur.methods.admm import Admm
from secateur.methods.biased_decay import BiasedDecay
from secateur.methods.binary_connect import BinaryConnect
from secateur.methods.binary_net import BinaryNet
from secateur.methods.binary_weights import BinaryWeights
from secateur.methods.budgeted import Budgeted
from secateur.methods.continuous_sparsification import ContinuousSparsification
from secateur.methods.denil2013 import Denil2013
from secateur.methods.dense import Dense
from secateur.methods.dst import Dst
from secateur.methods.few_values import FewValues
from secateur.methods.gradual_magnitude import GradualMagnitude
from secateur.methods.han2015 import Han2015
from secateur.methods.hashed_nets import HashedNets
from secateur.methods.int8 import Int8
from secateur.methods.joint import Joint
from secateur.methods.low_rank import LowRankMethod
from secateur.methods.ltp import Ltp
from secateur.methods.magnitude import Magnitude
from secateur.methods.manessi2018 import Manessi2018
from secateur.methods.method import Aided, Aids, Cautious, Method
from secateur.methods.network_surgery import NetworkSurgery
from secateur.methods.nncf_rb import NncfRb
from secateur.methods.obd import OptimalBrainDamage
from secateur.methods.obs import OptimalBrainSurgeon
from secateur.methods.pdp import Pdp
from secateur.methods.pquant import PquantAutoSparse, PquantDst
from secateur.methods.snip import Snip
from secateur.methods.soft_movement import SoftMovement
from secateur.methods.sparse_variational_dropout import SparseVariationalDropout
from secateur.methods.str2020 import Str
from secateur.methods.ternary import TernaryFixedPoint
from secateur.methods.torch_prune import TorchPrune
from secateur.methods.vector_quantization import VectorQuantization
from secateur.methods.xnor_net import XnorNet
from secateur.plain_data import PlainDataError, from_plain, to_plain
from secateur.table import Table

__all__ = [
    "METHODS",
    "Aided",
    "Aids",
    "Budgeted",
    "Cautious",
    "Dense",
    "FewValues",
    "Han2015",
    "Joint",
    "Manessi2018",
    "Method",
    "first_methods",
    "method_for",
    "method_from_json",
    "method_to_json",
]

METHODS: Table[type[Method]] = Table(
    "method",
    "secateur.methods",
    ABCMeta,
    (
        Dense,
        Manessi2018,
        Budgeted,
        Joint,
        Han2015,
        Magnitude,
        GradualMagnitude,
        BiasedDecay,
        OptimalBrainDamage,
        OptimalBrainSurgeon,
        TernaryFixedPoint,
        Int8,
        BinaryConnect,
        BinaryNet,
        BinaryWeights,
        XnorNet,
        Snip,
        NetworkSurgery,
        Admm,
        Pdp,
        SoftMovement,
        ContinuousSparsification,
        Str,
        Dst,
        Ltp,
        SparseVariationalDropout,
        LowRankMethod,
        HashedNets,
        VectorQuantization,
        Denil2013,
        TorchPrune,
        NncfRb,
        PquantDst,
        PquantAutoSparse,
        FewValues,
    ),
)


def first_methods() -> tuple[str, ...]:
    """Name the methods that a pipeline can begin with: those that need no trained network."""
    return tuple(name for name, kind in METHODS.items() if not kind.needs_trained)


def method_for(budget: Budget) -> type[Method]:
    """Return the method that keeps a budget, where the user names none."""
    return Budgeted if budget.bytes is None else Joint


def method_to_json(method: Method) -> dict[str, Any]:
    """Return a method's name and settings as plain data."""
    return {"name": method.name, **to_plain(method)}


def method_from_json(content: Mapping[str, Any]) -> Method:
    """Return the method of that name with those settings."""
    settings = dict(content)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise PlainDataError("a method must have a name")
    return from_plain(METHODS.find(name), settings)
