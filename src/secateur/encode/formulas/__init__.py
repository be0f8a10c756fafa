"""The table of formulas: how a tensor is computed from smaller ones. The numbers in files never change."""

from __future__ import annotations

from dataclasses import fields

from secateur.encode.formulas.formula import ComputedTensor, Formula, Part
from secateur.encode.formulas.hashed import Hashed
from secateur.encode.formulas.predicted import Predicted
from secateur.encode.formulas.product import Product
from secateur.encode.formulas.signs import Signs, as_signs
from secateur.encode.formulas.vectors import Vectors
from secateur.encode.varint import Cursor

__all__ = [
    "FORMULAS",
    "ComputedTensor",
    "Formula",
    "Hashed",
    "Part",
    "Predicted",
    "Product",
    "Signs",
    "Vectors",
    "as_signs",
    "number_of",
    "take_formula",
]

FORMULAS: dict[int, type[Formula]] = {1: Product, 2: Hashed, 3: Vectors, 4: Signs, 5: Predicted}


def number_of(formula: Formula) -> int:
    """Return the number that files give to a kind of formula."""
    return next(number for number, kind in FORMULAS.items() if kind is type(formula))


def take_formula(cursor: Cursor, number: int) -> Formula:
    """Read a formula's own numbers."""
    if number not in FORMULAS:
        raise cursor.wrong(f"formula {number} is unknown: the file was written by a newer version")
    kind = FORMULAS[number]
    return kind(*(cursor.varint() for _ in fields(kind)))
