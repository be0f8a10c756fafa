import torch
from torch.utils.data import DataLoader, TensorDataset

from secateur.experiments.given_data import batches_of, source_of

NUMBERS = TensorDataset(torch.arange(40))


def order(source, seed):
    return torch.cat([batch[0] for batch in source.epoch(seed)]).tolist()


def test_a_loader_that_shuffles_is_evaluated_in_one_order():
    source = batches_of(DataLoader(NUMBERS, 8, shuffle=True), "validation")
    torch.manual_seed(1)
    first = order(source, 0)
    torch.manual_seed(2)
    assert order(source, 0) == first != list(range(40))


def test_a_loader_with_a_generator_of_its_own_begins_with_the_seed():
    source = source_of(DataLoader(NUMBERS, 8, shuffle=True, generator=torch.Generator()), "train")
    assert order(source, 3) == order(source, 3) != order(source, 4)


def test_reading_a_loader_leaves_torchs_generator_alone():
    source = batches_of(DataLoader(NUMBERS, 8, shuffle=True), "validation")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    order(source, 0)
    assert torch.equal(torch.get_rng_state(), before)
