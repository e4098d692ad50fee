"""What one node has earned: whether it may be asked now, which chain it proved to serve, and what it can do.

Synchronous, with `now` as an argument: every change happens between two awaits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .faults import NEVER_CONNECTED, CallFailed, Fault

CHAIN_CHECK_INTERVAL_S = 300.0
"""A verified chain id is asked for again after this long: an address may come to serve another chain."""

FOREIGN_CHECK_INTERVAL_S = 60.0
"""A node of another chain is looked at again after this long, and asked for nothing else meanwhile."""

DENIED_FOR_S = 60.0
"""A node that refused our credentials is tried again once after this long: keys are renewed."""

COOLDOWN_MIN_S, COOLDOWN_MAX_S = 1.0, 60.0

BATCH_START = 100

OFF_FIRST_S, OFF_LONGEST_S = 60.0, 3600.0
"""A method that a node does not offer is tried again after so long, each time after twice as long: nodes learn methods too, and
an error of one block may sound as if the method were missing."""


class ReceiptsForm(StrEnum):
    """How a node wants the block named in `eth_getBlockReceipts`."""

    HASH = "hash"
    OBJECT = "object"
    NUMBER = "number"


@dataclass(slots=True)
class Capabilities:
    """What was learned about a node, and when to see whether it still holds. One answer that was too big for it is no fact."""

    block_receipts: bool = True
    receipts_form: ReceiptsForm = ReceiptsForm.HASH
    form_is_known: bool = False
    """Whether the node ever answered to that form."""
    batch_limit: int = BATCH_START
    """The largest batch believed to pass; 1: no batches."""
    receipts_again_at: float = 0.0
    receipts_off_s: float = 0.0
    batches_again_at: float = 0.0
    batches_off_s: float = 0.0

    def offers_block_receipts(self, now: float) -> bool:
        """Whether to ask for the receipts of a block in one call, be it to see whether that is offered by now."""
        return self.block_receipts or now >= self.receipts_again_at

    def note_receipts_form(self, form: ReceiptsForm) -> None:
        """The node gave the receipts of a block to this form of the parameter."""
        self.block_receipts, self.receipts_form, self.form_is_known = True, form, True
        self.receipts_off_s = 0.0

    def note_no_block_receipts(self, now: float) -> None:
        """The node says that it does not offer the method."""
        self.block_receipts = False
        self.receipts_off_s = min(max(OFF_FIRST_S, 2 * self.receipts_off_s), OFF_LONGEST_S)
        self.receipts_again_at = now + self.receipts_off_s

    def largest_batch(self, now: float) -> int:
        """The largest batch to try: what is believed to pass, or now and then twice of it."""
        if not self.batches_off_s or self.batch_limit >= BATCH_START or now < self.batches_again_at:
            return self.batch_limit
        self.batches_off_s = min(2 * self.batches_off_s, OFF_LONGEST_S)
        self.batches_again_at = now + self.batches_off_s
        self.batch_limit = min(2 * self.batch_limit, BATCH_START)
        return self.batch_limit

    def note_batch_limit(self, size: int, now: float) -> None:
        """A batch of more calls than `size` did not pass."""
        self.batch_limit = size
        self.batches_off_s = self.batches_off_s or OFF_FIRST_S
        self.batches_again_at = now + self.batches_off_s


@dataclass(slots=True)
class Standing:
    """Owned by its node, which is the only writer."""

    configured_chain_id: int | None
    chain_id: int | None = None
    """As the node last said, while it fits the configured one."""
    verified_at: float | None = None
    foreign_chain_id: int | None = None
    foreign_since: float = 0.0
    denied_until: float | None = None
    cooling_until: float | None = None
    limits_in_a_row: int = 0

    @property
    def up(self) -> bool:
        """Whether the node is in use at all, a passing limit aside."""
        return self.denied_until is None and self.foreign_chain_id is None

    def word(self, now: float) -> str:
        """How the node stands, in one word for listings: ok, unverified, limited, denied or wrong-chain."""
        if self.foreign_chain_id is not None:
            return "wrong-chain"
        if self.denied_until is not None:
            return "denied"
        if self.cooling_until is not None and now < self.cooling_until:
            return "limited"
        # Never asked yet, or not reached at the last attempt.
        return "unverified" if self.verified_at is None else "ok"

    def barred_until(self, now: float) -> float | None:
        """When a node that serves another chain, or refuses our credentials, may be looked at again; None: it is not barred."""
        if self.foreign_chain_id is not None:
            return max(now, self.foreign_since + FOREIGN_CHECK_INTERVAL_S)
        return self.denied_until

    def refusal(self, now: float) -> CallFailed | None:
        """Why the node must not be asked now; None when it may be."""
        if self.cooling_until is not None and now < self.cooling_until:
            wait_s = self.cooling_until - now
            return CallFailed(Fault.RATE_LIMITED, "the node asked us to slow down", retry_after_s=wait_s)
        if self.denied_until is not None and now < self.denied_until:
            return CallFailed(Fault.DENIED, "the node refuses our credentials", retry_after_s=self.denied_until - now)
        return None

    def chain_is_known(self, now: float) -> bool:
        """Whether a call may go out without asking for the chain id first.

        Raises `CallFailed` for a node that was seen to serve another chain a moment ago.
        """
        if self.foreign_chain_id is not None:
            if now < self.foreign_since + FOREIGN_CHECK_INTERVAL_S:
                raise self.foreign()
            return False
        return self.verified_at is not None and now < self.verified_at + CHAIN_CHECK_INTERVAL_S

    def foreign(self) -> CallFailed:
        """The refusal of a node that serves another chain."""
        return CallFailed(
            Fault.WRONG_CHAIN, f"the node serves chain {self.foreign_chain_id}, configured {self.configured_chain_id}"
        )

    def note_chain_id(self, found: int, now: float) -> None:
        """The node named its chain."""
        if self.configured_chain_id is not None and found != self.configured_chain_id:
            self.chain_id, self.verified_at = None, None
            self.foreign_chain_id, self.foreign_since = found, now
            return
        if self.configured_chain_id is None:
            # Learned once: an address that later names another chain is as wrong as one that never fitted.
            self.configured_chain_id = found
        self.chain_id, self.verified_at, self.foreign_chain_id = found, now, None

    def forget_chain(self) -> None:
        """Whatever answers next at that address may be another node."""
        self.verified_at = None

    def note_answer(self) -> None:
        """The node answered."""
        # A cool-down is not lifted by the answer to a call that was sent before it: it ends by itself.
        self.limits_in_a_row = 0
        self.denied_until = None

    def note_failure(self, failure: CallFailed, now: float) -> None:
        """The node did not answer, or not with a result."""
        if failure.fault is Fault.RATE_LIMITED:
            self.limits_in_a_row += 1
            wait_s = failure.retry_after_s
            if wait_s is None:
                wait_s = 2.0 ** (self.limits_in_a_row - 1) if self.limits_in_a_row < 8 else COOLDOWN_MAX_S
            wait_s = min(max(wait_s, COOLDOWN_MIN_S), COOLDOWN_MAX_S)
            failure.retry_after_s = wait_s
            self.cooling_until = max(self.cooling_until or 0.0, now + wait_s)
        elif failure.fault is Fault.DENIED:
            self.denied_until = now + DENIED_FOR_S
        elif failure.fault in NEVER_CONNECTED:
            self.forget_chain()
