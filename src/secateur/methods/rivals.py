"""Methods that are carried out by a package from outside: whether it is installed, and how it is imported."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from secateur.methods.method import Method

INSTALLED_AS = {"nncf": "nncf", "pquant": "pquant-ml"}  # the name in pip of each package that may be needed


def require_rival(method: Method) -> None:
    """Raise a ValueError that says how to install the package of a method, if it is missing."""
    if find_spec(method.package) is None:
        remedy = f"pip install {INSTALLED_AS[method.package]}"
        raise ValueError(f'method "{method.name}" needs {method.package}, which is not installed: {remedy}')


def import_rival(method: Method, module: str) -> Any:
    """Import a module of the package of a method; a ValueError says what is wrong."""
    require_rival(method)
    os.environ.setdefault("KERAS_BACKEND", "torch")  # without it PQuantML imports TensorFlow
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f'method "{method.name}" cannot use the {method.package} that is installed: {error}'
        ) from error
