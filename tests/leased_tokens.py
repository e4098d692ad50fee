"""The row of tokens that several processes share, as slow and obvious as it can be: what the statement in SQL has to do."""

from __future__ import annotations

from app.core.tokens import Ask, Lease


class Row:
    """Of one account. `burst` tokens at first; `now` is its own clock, which may be set back."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self.refilled_at = now
        self.cooling_until = 0.0
        self.questions = 0

    def lease(self, ask: Ask, now: float, cool_s: float = 0.0) -> Lease:
        """As `app.store.spendings.SqlSpendings.lease`."""
        self.questions += 1
        refill = max(0.0, now - self.refilled_at) * self.rate
        self.refilled_at = now if self.refilled_at > now + 60 else max(self.refilled_at, now)
        there = min(self.burst, self.tokens + refill) - ask.used
        missing = min(ask.want + ask.kept, self.burst) - there
        granted = 0.0
        if missing <= self.rate * ask.patience_s:
            granted = ask.want + min(ask.spare, max(0.0, there - ask.want - self.burst / 2))
        self.tokens = there - granted
        if cool_s:
            self.cooling_until = max(self.cooling_until, now + cool_s)
        wait_s = max(0.0, missing / self.rate) if self.rate else 0.0
        return Lease(granted, wait_s, self.tokens, max(0.0, self.cooling_until - now))
