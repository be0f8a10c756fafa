"""Linear SVMs for many classes at once: the same optimum as scikit-learn's LinearSVC, in matrix products.

One SVM minimises ½|w|² + C Σ max(0, 1 − y·wx)² over its weights w, of which the last one is the bias: it multiplies a
constant feature of 1. The optimum is unique. Newton's method finds it: the Hessian is I + 2C Σ xxᵀ over the pictures
within the margin, and conjugate gradients solve for the step. liblinear does so for one class after the other; here
all classes share the products with the features, which are the cost. LinearSVC's primal solver at its own tolerance
(1e-4) stops before the optimum when C is large, by up to 0.06 of a decision in a case we tried; what is reported here
is fitted to a tolerance of 1e-6, at which predictions were those of `LinearSVC(dual=False, tol=1e-10)`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secateur.transfer.metrics import Numbers

Weights: TypeAlias = npt.NDArray[np.float64]  # (features + 1, classes)

# Of the gradient, times the share of the rarer label: scikit-learn's, to choose C by, and that of what is reported.
_TOLERANCE, OPTIMUM = 1e-4, 1e-6
_STEP_TOLERANCE = 0.1  # of the system that gives a step of Newton's method
_MOST_STEPS, _MOST_SOLVER_STEPS, _MOST_HALVINGS = 100, 300, 20
_BLOCK = 1024  # pictures whose features are held as 64-bit floats at a time


def fit_svms(
    features: Numbers, targets: Numbers, penalty: float, start: Weights | None = None, *, tolerance: float = _TOLERANCE
) -> Weights:
    """Return the weights of one SVM for each column of `targets` (pictures, classes): 1, −1, or 0 to leave out.

    `start` are weights to begin with, such as those for another penalty C: they save time and do not change the
    optimum. Features are read as 32-bit floats. Steps are computed in these, gradients in 64 bits.
    """
    features, targets = np.asarray(features, np.float32), np.asarray(targets, np.float32)
    weights = np.zeros((features.shape[1] + 1, targets.shape[1])) if start is None else start.copy()
    rarer = np.minimum((targets > 0).sum(axis=0), (targets < 0).sum(axis=0))
    share = np.maximum(rarer, 1) / np.maximum(np.abs(targets).sum(axis=0), 1)
    goal = tolerance * share * 2 * penalty * np.linalg.norm(_pull_back(features, targets), axis=0)
    answers = decisions(features, weights)
    running = np.arange(targets.shape[1])
    for _ in range(_MOST_STEPS):
        wanted = targets[:, running]
        slack = np.where(wanted != 0, np.maximum(1 - wanted * answers[:, running], 0), 0)
        gradient = weights[:, running] - 2 * penalty * _pull_back(features, slack * wanted)
        is_open = np.linalg.norm(gradient, axis=0) > goal[running]
        running, gradient = running[is_open], gradient[:, is_open]
        if not len(running):
            break
        step = _newton_step(features, slack[:, is_open] > 0, gradient, penalty)
        moved = decisions(features, step)
        length = _step_length(weights[:, running], step, answers[:, running], moved, wanted[:, is_open], penalty)
        weights[:, running] += length * step
        answers[:, running] += length * moved
    return weights


def decisions(features: Numbers, weights: Weights) -> npt.NDArray[np.float64]:
    """Return the decision of every SVM on every picture (pictures, classes): features · weights + bias."""
    found = np.empty((len(features), weights.shape[1]))
    for start in range(0, len(features), _BLOCK):
        found[start : start + _BLOCK] = features[start : start + _BLOCK].astype(np.float64) @ weights[:-1]
    found += weights[-1]
    return found


def _pull_back(features: Numbers, values: Numbers) -> Weights:
    """Return Σ x · value over the pictures (features + 1, classes)."""
    found = np.zeros((features.shape[1] + 1, values.shape[1]))
    for start in range(0, len(features), _BLOCK):
        found[:-1] += features[start : start + _BLOCK].astype(np.float64).T @ values[start : start + _BLOCK]
    found[-1] = values.sum(axis=0, dtype=np.float64)
    return found


def _newton_step(features: Numbers, is_active: Numbers, gradient: Weights, penalty: float) -> Weights:
    """Return d with (I + 2C Σ xxᵀ) d = −gradient, summed over the active pictures of each class."""
    found = np.zeros(gradient.shape, np.float32)
    residual = -gradient.astype(np.float32)
    direction, size = residual.copy(), np.square(residual).sum(axis=0)
    goal, scale = _STEP_TOLERANCE**2 * size, np.float32(2 * penalty) * is_active
    running = np.arange(gradient.shape[1])
    for _ in range(_MOST_SOLVER_STEPS):
        inner = (features @ direction[:-1] + direction[-1]) * scale
        product = direction + np.concatenate([features.T @ inner, inner.sum(axis=0, keepdims=True)])
        length = size / (direction * product).sum(axis=0)
        found[:, running] += length * direction
        residual -= length * product
        before, size = size, np.square(residual).sum(axis=0)
        is_open = size > goal
        if not is_open.any():
            break
        direction = residual + size / before * direction
        if not is_open.all():
            running, residual, direction = running[is_open], residual[:, is_open], direction[:, is_open]
            size, goal, scale = size[is_open], goal[is_open], scale[:, is_open]
    return found.astype(np.float64)


def _step_length(
    weights: Weights, step: Weights, answers: Numbers, moved: Numbers, targets: Numbers, penalty: float
) -> npt.NDArray[np.float64]:
    """Return for each class the longest of 1, ½, ¼, … by which the step lowers the loss."""

    def loss(length: Numbers | float) -> Numbers:
        slack = np.where(targets != 0, np.maximum(1 - targets * (answers + length * moved), 0), 0)
        total: Numbers = np.square(weights + length * step).sum(axis=0) / 2 + penalty * np.square(slack).sum(axis=0)
        return total

    length, before = np.ones(weights.shape[1]), loss(0.0)
    for _ in range(_MOST_HALVINGS):
        is_worse = loss(length) > before
        if not is_worse.any():
            break
        length = np.where(is_worse, length / 2, length)
    return length
