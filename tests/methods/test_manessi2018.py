"""Where learned thresholds cut: at |θ(w)| < γ with a smooth θ, at the threshold itself with a budget."""

import pytest
import torch

from secateur.methods import Budgeted, Manessi2018
from secateur.theta_autograd import theta


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.2])
def test_theta_is_the_cutoff_where_the_cut_falls_and_that_is_below_the_threshold(threshold):
    method = Manessi2018()
    [cut] = method.cut_magnitudes((threshold,))
    at = theta(torch.tensor([cut]), torch.tensor([threshold]), method.sibling.alpha)
    assert at.item() == pytest.approx(method.cutoff, rel=1e-4)
    assert cut < threshold


def test_a_budget_cuts_at_the_threshold_itself():
    assert Budgeted().cut_magnitudes((0.1, 0.2)) == (0.1, 0.2)
