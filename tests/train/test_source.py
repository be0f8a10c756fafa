import pytest
import torch
from torch.testing import assert_close

from secateur.train.recipe import Recipe
from secateur.train.source import steps_in, steps_of


class Numbers:
    """Ten samples, which are their own numbers."""

    def __len__(self):
        return 10

    def batch(self, indices, generator):
        return indices


class Loaded:
    """Five batches of two samples, the last of one."""

    number = 5

    def __len__(self):
        return 9

    def epoch(self, seed):
        yield from torch.arange(9).split(2)


def steps(source, recipe, seed=0, **share):
    generators = {name: torch.Generator().manual_seed(seed) for name in ("order", "generator")}
    return [list(parts) for parts in steps_in(source, recipe, **generators, **share)]


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("source", [Numbers(), Loaded()])
def test_as_many_steps_as_announced(source, accumulate):
    recipe = Recipe(batch_size=4, accumulate=accumulate)
    assert len(steps(source, recipe)) == steps_of(source, recipe)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("source", [Numbers(), Loaded()])
def test_the_parts_of_a_step_count_one_together(source, accumulate):
    for parts in steps(source, Recipe(batch_size=4, accumulate=accumulate)):
        assert sum(count for count, _ in parts) == pytest.approx(1)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_is_the_mean_over_its_samples(accumulate):
    whole = [parts[0][1] for parts in steps(Loaded(), Recipe())]
    for number, parts in enumerate(steps(Loaded(), Recipe(accumulate=accumulate))):
        samples = torch.cat(whole[number * accumulate : (number + 1) * accumulate]).double()
        assert_close(sum(count * batch.double().mean() for count, batch in parts), samples.mean())


def test_processes_share_the_samples_of_a_step():
    recipe = Recipe(batch_size=4)
    shares = [steps(Numbers(), recipe, process=rank, processes=3) for rank in range(3)]
    for whole, *parts in zip(steps(Numbers(), recipe), *shares, strict=True):
        real = torch.cat([batch for [(count, batch)] in parts if count])
        assert sorted(real.tolist()) == sorted(whole[0][1].tolist())
        assert sum(count for [(count, _)] in parts) == pytest.approx(3)


def test_a_process_without_samples_takes_one_that_counts_nothing():
    shares = [steps(Numbers(), Recipe(batch_size=4), process=rank, processes=8)[0] for rank in range(8)]
    assert all(len(batch) == 1 for [(_, batch)] in shares)
    assert [count for [(count, _)] in shares] == [2.0] * 4 + [0.0] * 4


def test_an_epoch_brings_every_sample_once_in_an_order_of_its_seed():
    first, again, other = (
        torch.cat([parts[0][1] for parts in steps(Numbers(), Recipe(batch_size=4), seed)]).tolist()
        for seed in (0, 0, 1)
    )
    assert sorted(first) == list(range(10))
    assert first == again != other
