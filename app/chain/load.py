"""How much is asked of one chain: the places at its door, the permits of its fills, and how long either has been refusing."""

from __future__ import annotations

from app.core.budget import FillBudget, Priority
from app.core.saturation import Gate, SaturationWindow
from app.metrics import Metrics

from .permits import Permits
from .ports import Clock
from .rules import ChainRules


class Load:
    """Owned by its chain. `door` is the chain's gate in the cold lane, which the process's door opens and closes."""

    def __init__(self, rules: ChainRules, metrics: Metrics, clock: Clock) -> None:
        self._clock = clock
        self._wait_seconds = metrics.fill_queue_wait_duration_seconds
        self._name = rules.name
        self.door = Gate(rules.max_in_flight, self._window(rules))
        budget = FillBudget(rules.max_fills, max_queued=rules.max_queued_fills)
        self.permits = Permits(budget, clock, on_wait=self._on_wait, window=self._window(rules))

    def __repr__(self) -> str:
        return f"<Load door={self.door!r} permits={self.permits!r}>"

    @property
    def saturated(self) -> bool:
        """Whether the door or the fills have refused for the threshold or longer, and nothing has moved there since."""
        now = self._clock.now()
        return self.door.window.saturated(now) or self.permits.window.saturated(now)

    @property
    def open_s(self) -> float:
        """For how long the older of the two windows has been open; 0 while both are clear."""
        now = self._clock.now()
        return max(self.door.window.open_s(now), self.permits.window.open_s(now))

    def _on_wait(self, priority: Priority, waited_s: float) -> None:
        self._wait_seconds.labels(self._name, priority.value).observe(waited_s)

    @staticmethod
    def _window(rules: ChainRules) -> SaturationWindow:
        return SaturationWindow(rules.saturation_threshold_s, rules.saturation_expiry_s)
