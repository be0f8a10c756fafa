"""Two ranks, under DDP and FSDP2, learn what one process learns on the same batches."""

import json
import os
import shlex
import subprocess
import sys
from itertools import product
from unittest import mock

import pytest
import torch
from ranks import run_two_ranks
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from toy_networks import mlp

from secateur import build_sibling, learned_thresholds, load, parameter_groups, penalty, prune, theta

STEPS = 8


def with_sgd(groups):
    return torch.optim.SGD(groups, momentum=0.9)


def papers_loss(sibling, outputs, labels, step):
    return functional.cross_entropy(outputs, labels) + penalty(sibling, 1e-2)


def down_and_up(sibling, outputs, labels, step):
    """Reward large θ first, which takes thresholds to zero, and punish them then."""
    return functional.cross_entropy(outputs, labels) + (-0.1 if step < STEPS // 2 else 0.1) * penalty(sibling, 1.0)


def down_and_up_without_penalty(sibling, outputs, labels, step):
    return (-1 if step < STEPS // 2 else 1) * outputs.square().mean()


RUNS = {
    "sgd": (with_sgd, papers_loss, 0.1),
    "adam": (torch.optim.Adam, papers_loss, 0.1),
    "down and up": (with_sgd, down_and_up, 0.2),
    "down and up without penalty": (with_sgd, down_and_up_without_penalty, 2.0),
}
WRAPPERS = ("ddp", "fsdp2")


def start():
    torch.manual_seed(0)
    return build_sibling(mlp())


def fit(sibling, run, share=slice(None)):
    """Train on this share of every batch; yield after each step."""
    make_optimizer, loss, rho = RUNS[run]
    optimizer = make_optimizer(parameter_groups(sibling, lr=0.05, rho=rho, lambda_wd=1e-4))
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x, labels = torch.randn(8, 12, generator=generator), torch.arange(8) % 4
        outputs = sibling(x[share])
        # Whole weights are out of reach after a sharded forward: the penalty must do with what it left.
        with mock.patch(
            "secateur.functions.threshold.theta_with_norm", side_effect=AssertionError("penalty reads weights")
        ):
            loss(sibling, outputs, labels[share], step).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def wrap(sibling, wrapper):
    if wrapper == "ddp":
        return nn.parallel.DistributedDataParallel(sibling)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    fully_shard(sibling[0], mesh=mesh)
    fully_shard(sibling[2], mesh=mesh)
    return fully_shard(sibling, mesh=mesh)


def work(rank, folder):
    """Do every run under every wrapper as one of two ranks, and save the whole state of each."""
    for wrapper, run in product(WRAPPERS, RUNS):
        sibling = start()
        list(fit(wrap(sibling, wrapper), run, slice(4 * rank, 4 * rank + 4)))
        state = sibling.state_dict()
        whole = {name: value.full_tensor() if wrapper == "fsdp2" else value for name, value in state.items()}
        torch.save(whole, folder / f"{wrapper} {run} {rank}")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """What both ranks of every run ended with."""
    folder = tmp_path_factory.mktemp("ranks")
    run_two_ranks(work, folder)
    return {
        (wrapper, run): [torch.load(folder / f"{wrapper} {run} {rank}", weights_only=True) for rank in (0, 1)]
        for wrapper, run in product(WRAPPERS, RUNS)
    }


def trained_alone(run):
    sibling = start()
    list(fit(sibling, run))
    return sibling


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_two_ranks_learn_the_thresholds_of_one_process(states, wrapper, run):
    first, second = states[wrapper, run]
    assert_close(first, second, rtol=0, atol=0)
    assert_close(first, dict(trained_alone(run).state_dict()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_two_ranks_cut_the_weights_that_one_process_cuts(states, wrapper, run):
    alone, together, cutoff = trained_alone(run), start(), 1e-3
    together.load_state_dict(states[wrapper, run][0])
    for name, function in learned_thresholds(alone).items():
        chain = alone.get_submodule(name.removesuffix(".weight")).parametrizations.weight
        decided = (theta(chain.original, function.threshold, function.alpha).abs() - cutoff).abs() > 1e-6
        kept, expected = (prune(model, cutoff).get_parameter(name) != 0 for model in (together, alone))
        assert torch.equal(kept[decided], expected[decided])
        assert 0 < expected.sum() < expected.numel()


@pytest.mark.parametrize("run", ["down and up", "down and up without penalty"])
def test_the_runs_that_go_down_touch_zero_and_come_back(run):
    sibling = start()
    paths = [[f.threshold.item() for f in learned_thresholds(sibling).values()] for _ in fit(sibling, run)]
    assert any(min(path) < 0 < path[-1] for path in zip(*paths, strict=True))


LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_two_ranks_are_one_training_and_not_two_of_the_same(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(
        "from secateur.train.parallel import accelerator_of\n"
        "from secateur.train.processes import join_processes\n"
        "from secateur.train.recipe import Recipe\n"
        "join_processes()\n"
        "accelerator = accelerator_of(Recipe())\n"
        "print(f'{accelerator.process_index} of {accelerator.num_processes}\\n', end='', flush=True)\n"
    )
    done = subprocess.run([*LAUNCHER, str(script)], capture_output=True, text=True, timeout=240, check=False)
    assert sorted(done.stdout.split("\n")) == ["", "0 of 2", "1 of 2"], done.stderr


def test_two_ranks_compress_to_one_file(tmp_path):
    words = shlex.split("compress lenet-300-100 --data digits --ratio 20 --epochs 1 --quantize-epochs 1")
    command = [*LAUNCHER, "-m", "secateur", *words, "--runs", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (packed,) = (path for path in tmp_path.rglob("model.cut") if "dense" not in path.parent.name)
    assert done.stdout.count("First the dense network") == 1
    assert load(packed).input_shape == (1, 28, 28)
    # Ranks that disagreed about what to cut would end with different weights, and not with exactly this many.
    assert json.loads((packed.parent / "result.json").read_text())["kept_by_form"]["pruned"] == 266_200 // 20
