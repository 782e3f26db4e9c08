"""Gradients that are given, against torch's own way back, and its imports."""

import subprocess
import sys

import torch

from tempera.arithmetic.derivatives import backward

STEP = """
import sys, torch
from tempera import Batch, Side, mnr, step
tower = torch.nn.Linear(3, 2)
step(tower, mnr(0.05), Batch(Side(torch.eye(3)), Side(torch.eye(3))))
assert tower.weight.grad.any()
assert "sympy" not in sys.modules
"""


def test_given_gradients_reach_leaves_to_the_bit():
    grads = []
    for way in (backward, torch.autograd.backward):
        torch.manual_seed(0)
        leaf = torch.randn(5, 3, requires_grad=True)
        weight = torch.randn(3, 4, requires_grad=True)
        outputs = [leaf, torch.tanh(leaf @ weight)]
        with torch.no_grad():  # the way back needs no graph of its own
            way(outputs, [torch.randn(5, 3), torch.randn(5, 4)])
            way(outputs[:1], [torch.ones(5, 3)])  # adds to what is there
        grads.append((leaf.grad, weight.grad))
    for ours, of_torch in zip(*grads, strict=True):
        assert ours.any()
        assert torch.equal(ours, of_torch)


def test_no_outputs_need_no_gradient():
    backward([], [])


def test_a_step_does_not_import_symbolic_shapes():
    subprocess.run([sys.executable, "-c", STEP], check=True)
