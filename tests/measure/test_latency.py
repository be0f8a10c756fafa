import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur.measure import Latency, compare_latency, latency_ms
from secateur.measure.latency import LEAST_TURN_MS, calls_per_turn, median_interval, shortest, turn


class FakeTime:
    """A clock that moves only when a rival works; `calls` remembers who did."""

    def __init__(self) -> None:
        self.now, self.calls = 100.0, []

    def clock(self) -> float:
        return self.now

    def rival(self, name, seconds):
        durations = iter(seconds)

        def work() -> None:
            self.calls.append(name)
            self.now += next(durations)

        return work


class Sleeper(nn.Module):
    def __init__(self, work) -> None:
        super().__init__()
        self.work, self.seen = work, []

    def forward(self, *inputs: object) -> None:
        self.seen.append((inputs, self.training, torch.is_grad_enabled()))
        self.work()


def test_median_and_quartiles_are_those_of_the_timed_calls_only():
    time = FakeTime()
    model = Sleeper(time.rival("model", [9, 9, 0.001, 0.005, 0.002, 0.004, 0.003]))
    latency = latency_ms(model, torch.ones(1), repeats=5, warmup=2, clock=time.clock)
    assert latency.times_ms == pytest.approx((1, 5, 2, 4, 3))
    assert latency.median_ms == pytest.approx(3)
    assert latency.quartiles_ms == pytest.approx((2, 4))
    assert latency.iqr_ms == pytest.approx(2)


def test_a_model_is_timed_in_evaluation_without_gradients_and_put_back():
    time = FakeTime()
    model = Sleeper(time.rival("model", [1] * 5)).train()
    latency_ms(model, 1, 2, repeats=2, warmup=3, clock=time.clock)
    assert model.seen == [((1, 2), False, False)] * 5
    assert model.training


def test_rivals_take_turns_and_every_one_takes_every_place():
    time = FakeTime()
    rivals = {name: time.rival(name, [1] * 8) for name in "abc"}
    compare_latency(rivals, repeats=6, warmup=2, clock=time.clock)
    assert "".join(time.calls) == "abcbca" + "abcbcacab" * 2


def test_ratios_pair_the_calls_of_one_round():
    time = FakeTime()
    # The machine slows down tenfold half way; each round still says "half the time".
    slow = [0.9, 2, 2, 2, 20, 20, 20]
    rivals = {"dense": time.rival("dense", slow), "sparse": time.rival("sparse", [each / 2 for each in slow])}
    result = compare_latency(rivals, repeats=6, warmup=1, clock=time.clock)
    assert list(result) == ["dense", "sparse"]
    assert result["sparse"].time_ratio == pytest.approx(0.5)
    assert result["sparse"].interval == pytest.approx((0.5, 0.5))
    assert (result["dense"].time_ratio, result["dense"].interval) == (1.0, (1.0, 1.0))
    assert result["sparse"].latency.median_ms == pytest.approx(5500)


def test_the_ratio_is_the_median_over_rounds_not_the_ratio_of_medians():
    time = FakeTime()
    first = time.rival("first", [1, 1, 1, 10, 10, 10, 10])
    second = time.rival("second", [3, 3, 3, 10, 20, 20, 90])  # ratios 3, 3, 3, 1, 2, 2, 9
    result = compare_latency({"first": first, "second": second}, repeats=7, warmup=0, clock=time.clock)
    assert result["second"].time_ratio == pytest.approx(3)


def test_the_interval_spans_the_ratios_that_order_statistics_allow():
    time = FakeTime()
    rivals = {"first": time.rival("first", [1] * 10), "second": time.rival("second", range(1, 11))}
    second = compare_latency(rivals, repeats=10, warmup=0, clock=time.clock)["second"]
    assert second.time_ratio == pytest.approx(5.5)
    assert second.interval == pytest.approx((2, 9))


# Ranks from the tables of the sign test: 2·P(Bin(n, ½) < rank) ≤ 0.05.
@pytest.mark.parametrize(
    ("size", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (100, 40, 61), (2000, 956, 1045)]
)
def test_the_interval_of_a_median_has_the_ranks_of_the_sign_test(size, low, high):
    assert median_interval(range(size, 0, -1), confidence=0.95) == (low, high)


def test_a_confidence_that_is_met_exactly_is_met():
    assert median_interval(range(6), confidence=1 - 2 / 2**6) == (0, 5)


def test_a_stricter_confidence_widens_the_interval():
    assert median_interval(range(1, 21), confidence=0.99) == (4, 17)


@given(st.lists(st.floats(-9, 9), min_size=6, max_size=40))
def test_the_interval_contains_the_median(values):
    low, high = median_interval(values, confidence=0.95)
    assert low <= Latency(tuple(values)).median_ms <= high


def test_too_few_repeats_for_the_confidence_are_refused_with_the_number_needed():
    with pytest.raises(ValueError, match="at least 6 values, got 5"):
        median_interval(range(5), confidence=0.95)
    with pytest.raises(ValueError, match="at least 8 values"):
        median_interval(range(5), confidence=0.99)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_a_confidence_outside_nought_and_one_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence"):
        median_interval(range(50), confidence=confidence)


def test_a_comparison_too_short_for_its_interval_fails_before_any_work():
    time = FakeTime()
    with pytest.raises(ValueError, match="at least 6"):
        compare_latency({"a": time.rival("a", [1] * 9)}, repeats=5, warmup=1, clock=time.clock)
    assert time.calls == []


def test_a_comparison_of_nobody_is_refused():
    with pytest.raises(ValueError, match="rival"):
        compare_latency({})


def test_a_call_too_short_for_the_clock_is_refused_by_name():
    time = FakeTime()
    rivals = {"quick": time.rival("quick", [0] * 9), "slow": time.rival("slow", [1] * 9)}
    with pytest.raises(ValueError, match='"quick"'):
        compare_latency(rivals, repeats=6, warmup=0, clock=time.clock)


def test_a_turn_repeats_its_call():
    time = FakeTime()
    repeated = turn(time.rival("a", [1] * 9), 3)
    repeated()
    assert time.calls == ["a"] * 3


def test_a_rival_whose_turn_has_several_calls_is_timed_by_the_call():
    time = FakeTime()
    rivals = {"slow": time.rival("slow", [6] * 6), "quick": turn(time.rival("quick", [2] * 24), 4)}
    found = compare_latency(rivals, repeats=6, warmup=0, clock=time.clock, calls={"quick": 4})
    assert found["quick"].latency.median_ms == pytest.approx(2000)
    assert found["quick"].time_ratio == pytest.approx(1 / 3)
    assert found["slow"].latency.median_ms == pytest.approx(6000)


def test_the_shortest_time_is_that_of_the_calls_after_the_first():
    time = FakeTime()
    assert shortest(time.rival("a", [0.1, 5, 3, 4, 0.2]), 3, time.clock) == pytest.approx(3)
    assert len(time.calls) == 4


@given(st.floats(1e-6, 1))
def test_a_turn_has_the_fewest_calls_that_fill_it(seconds):
    time = FakeTime()
    calls = calls_per_turn(time.rival("a", [seconds] * 9), time.clock)
    assert calls * seconds * 1e3 >= LEAST_TURN_MS * (1 - 1e-6)
    assert calls == 1 or (calls - 1) * seconds * 1e3 < LEAST_TURN_MS * (1 + 1e-6)


def test_a_call_that_takes_no_time_by_the_clock_is_made_once_in_a_turn():
    time = FakeTime()
    assert calls_per_turn(time.rival("a", [0] * 9), time.clock) == 1


def test_one_repeat_has_no_quartiles_and_is_refused():
    with pytest.raises(ValueError, match="repeats"):
        latency_ms(nn.Identity(), 1, repeats=1)


def test_the_real_clock_measures_something():
    assert latency_ms(nn.Linear(8, 8), torch.ones(1, 8), repeats=3, warmup=0).median_ms > 0
