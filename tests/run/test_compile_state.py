"""Hooks, buffers, inputs and threads: what else happens when a compiled network is called, or while it is compiled."""

import copy
import pickle
import sys
import threading

import pytest
import torch
from compiled import assert_same, chains, sparsened
from torch import Tensor, nn
from zoo import zoo

from secateur.run import compile_sparse

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def test_hooks_are_called_as_before(sparse_wins):
    seen: list[str] = []

    def watch(module: nn.Module, _, output: Tensor) -> None:
        assert isinstance(output, Tensor)
        seen.append(type(module).__name__)

    model = sparsened(
        nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 3)))
    )
    for module in (model[0], model[1]):
        module.register_forward_hook(watch)
    x = torch.randn(4, 6)
    compiled = compile_sparse(model, x)
    for network in (model, compiled):
        seen.clear()
        network(x)
        assert seen == ["Sequential", "Linear"]
    assert chains(compiled)


def test_the_hook_of_a_part_whose_answer_is_not_used_is_called(sparse_wins):
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.aside = nn.Linear(6, 8), nn.Linear(6, 2)

        def forward(self, x):
            self.aside(x)
            return self.first(x)

    model, seen = sparsened(Watched()), []
    model.aside.register_forward_hook(lambda *_: seen.append("aside"))
    compiled = compile_sparse(model, torch.randn(5, 6))
    assert chains(compiled)
    seen.clear()
    with torch.no_grad():
        compiled(torch.randn(5, 6))
    assert seen == ["aside"]


def test_a_hook_on_the_network_itself_is_called_as_before(sparse_wins):
    seen = []
    model = sparsened(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    model.register_forward_pre_hook(lambda *_: seen.append(1))
    compiled = compile_sparse(model, torch.randn(4, 6))
    seen.clear()
    compiled(torch.randn(4, 6))
    assert seen == [1]


def test_a_state_that_the_network_changes_stays_the_callers(sparse_wins):
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return self.layer(x) + self.calls

    model, x = sparsened(Counting()), torch.randn(2, 6)
    compiled = compile_sparse(model, x)
    assert model.calls == 0
    assert chains(compiled)
    for calls in (1, 2):  # and the compiled network begins with the same
        with torch.no_grad():
            assert_same(compiled(x), model.layer(x) + calls)


class Stateful(nn.Module):
    """Remembers something from call to call."""

    def __init__(self, step) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(6, 3), step
        self.register_buffer("last", None)
        self.register_buffer("sum", torch.zeros(2, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.randn(9, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, self.layer(x))


def _since_the_first_call(net: Stateful, y: Tensor) -> Tensor:
    net.last = y if net.last is None else net.last + y
    return net.last


def _limited_number_of_calls(net: Stateful, y: Tensor) -> Tensor:
    net.calls.add_(1)
    return y + net.table[net.calls]  # which ends at the ninth


def _its_own_buffer(net: Stateful, y: Tensor) -> Tensor:
    return net.sum.mul_(0.5).add_(y)


@pytest.mark.parametrize("step", [_since_the_first_call, _limited_number_of_calls, _its_own_buffer])
def test_what_a_network_remembers_begins_anew_in_the_compiled_one(step, sparse_wins):
    model, x = sparsened(Stateful(step)), torch.randn(2, 6)
    compiled = compile_sparse(model, x)
    assert chains(compiled)
    with torch.no_grad():
        for _ in range(3):
            assert_same(compiled(x), model(x))


def test_a_buffer_that_repeats_itself_is_left_alone(sparse_wins):
    class Repeating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("more", torch.zeros(1).expand(3))  # three numbers in one place, which none can write

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.more

    assert chains(compile_sparse(sparsened(Repeating()), torch.randn(2, 6)))


def test_a_state_that_a_network_of_its_own_layers_has_is_that_of_the_network(dense_wins):
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return self.layer(x) if self.calls > 0 else x

    compiled = compile_sparse(sparsened(Averaging()), torch.randn(2, 6))
    assert compiled.calls == 0


def test_an_example_that_the_network_changes_stays_the_callers(sparse_wins):
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.add_(1))

    model, x = sparsened(Adding()), torch.randn(2, 6)
    given = x.clone()
    compiled = compile_sparse(model, x)
    assert torch.equal(x, given)
    assert chains(compiled)
    assert_same(compiled(x.clone()), model(x.clone()).detach())


def test_a_network_that_changes_its_input_is_timed_on_the_example(sparse_wins):
    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(11, 6), nn.Linear(6, 3)

        def forward(self, numbers: Tensor) -> Tensor:
            return self.layer(self.table(numbers.add_(1)))  # the second time out of the table

    model, numbers = sparsened(Next()), torch.arange(10)
    compiled = compile_sparse(model, numbers)
    assert chains(compiled)
    with torch.no_grad():
        assert_same(compiled(numbers.clone()), model(numbers.clone()))


def test_threads_that_compile_at_once_wait_for_each_other(sparse_wins):
    model, x = sparsened(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))), torch.randn(2, 6)
    call, failures = nn.Module.__call__, []

    def compile_often() -> None:
        try:
            for _ in range(3):
                assert chains(pickle.loads(pickle.dumps(copy.deepcopy(compile_sparse(model, x)))))
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=compile_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert nn.Module.__call__ is call  # what torch.fx puts there while it traces is gone
    model(x)


@pytest.mark.parametrize("name", ["functional, view", "branching", "tokens"])
def test_many_python_threads_may_call_one_network(name, sparse_wins):
    model, (x,) = zoo(name)
    compiled = compile_sparse(model, x)
    inputs = [torch.randn(1 + number % 4, *x.shape[1:]) for number in range(16)]
    found: list[Tensor | None] = [None] * len(inputs)

    def work(number: int) -> None:
        for _ in range(4):
            found[number] = compiled(inputs[number])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with torch.no_grad():
        for one, given in zip(found, inputs, strict=True):
            assert_same(one, model.eval()(given))
