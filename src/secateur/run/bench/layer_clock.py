"""Time the layers of a network while it runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from secateur.measure.latency import Clock


class LayerClock:
    """Times some modules of a network while it is entered; outside, they are as they were."""

    def __init__(self, modules: Mapping[str, nn.Module], clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._spent: dict[str, float] = {}
        self._timed = [(module, self._timing(name, module.forward)) for name, module in modules.items()]
        self._own = [module.__dict__.get("forward") for module in modules.values()]
        self.rounds: list[dict[str, float]] = []  # milliseconds of a call, by name
        self.moved: dict[str, int] = {}  # bytes of what a module was given and answered
        self.shapes: dict[str, tuple[int, ...]] = {}  # of what it was given

    def _timing(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        clock, spent = self._clock, self._spent

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            answer = forward(*args, **kwargs)
            spent[name] = spent.get(name, 0.0) + clock() - start
            if name not in self.shapes:
                self.shapes[name] = tuple(next(iter((*args, *kwargs.values()))).shape)
                self.moved[name] = sum(
                    one.nbytes for one in (*args, *kwargs.values(), answer) if isinstance(one, Tensor)
                )
            return answer

        return timed

    def __enter__(self) -> LayerClock:
        for module, timed in self._timed:
            module.__dict__["forward"] = timed  # found before that of the class
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for (module, _), own in zip(self._timed, self._own, strict=True):
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own

    def turn(self, call: Callable[[], object], calls: int) -> Callable[[], None]:
        """Return a function that calls so many times under the clock, and notes what each module took."""

        def repeated() -> None:
            self._spent.clear()
            with self:
                for _ in range(calls):
                    call()
            self.rounds.append({name: seconds * 1e3 / calls for name, seconds in self._spent.items()})

        return repeated

    def medians_ms(self, last: int) -> dict[str, float]:
        """Return each module's median time over the last rounds; one that is not called has none."""
        rounds = self.rounds[-last:]
        return {name: statistics.median(one[name] for one in rounds) for name in (rounds[0] if rounds else {})}
