"""What can go wrong with a proof, as types: a stable code, whether a retry can help, and when.

Codes and their meaning are part of the public contract: they never change once released. How a code becomes an HTTP status is
the doors' matter (`app/api/problems.py`); nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import ClassVar


class ContentInvalid(Exception):
    """An upstream gave data that contradicts itself or the block asked for.

    Expected, and never shown to a client as it is: the next upstream is asked, and when none is left the answer is
    `InconsistentSource`. `check` is a closed, short name that may become a metric label; `detail` carries no payload beyond
    hashes, heights and counts.
    """

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(check, detail)
        self.check = check
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.check}: {self.detail}"


class Witnesses(Enum):
    """How many upstreams a refusal about a block rests on."""

    SEVERAL = "several"  # another upstream says the same
    ONLY = "only"  # no other upstream could say anything about it
    UNHEARD = "unheard"  # another upstream could, and did not


class Doubtful(Exception):
    """What could be made of an upstream's data is not all that there should be: another upstream may have better.

    Never shown to a client: when no upstream has better, `settled_by` yields what there is; an error in its place is raised. Of
    several the one of the highest `worth` counts. `wrong`: the data contradicts what the block's header commits to, and is not
    just incomplete. `claims`: what it refuses for good, each of which another upstream must bear out. `check`: the closed name
    under which an upstream that was corrected is counted. `singly`: the receipts may be right if asked for one by one.
    """

    def __init__(
        self,
        value: object,
        worth: int,
        *,
        wrong: bool = False,
        claims: frozenset[Hashable] = frozenset(),
        settle: Callable[[Witnesses], object] | None = None,
        refuted_by: Callable[[object], bool] | None = None,
        check: str = "",
        singly: bool = False,
    ) -> None:
        super().__init__(worth, wrong)
        self.value = value
        self.worth = worth
        self.wrong = wrong
        self.claims = claims
        self.check = check
        self.singly = singly
        self._settle = settle
        self._refuted_by = refuted_by

    def settled_by(self, witnesses: Witnesses) -> object:
        """What there is when it rests on so many."""
        return self.value if self._settle is None else self._settle(witnesses)

    def refuted_by(self, better: object) -> bool:
        """Whether what another upstream gave shows that this is the upstream's fault."""
        return self.wrong if self._refuted_by is None else self._refuted_by(better)


class ProofError(Exception):
    """Why no proof is given. `retriable` says whether the same request may succeed later without any change."""

    code: ClassVar[str] = "Internal"
    retriable: bool = False

    def __init__(self, message: str, *, retry_after_s: float | None = None, **extra: object) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.extra: dict[str, object] = extra

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross the process boundary of the block builders: keyword arguments must survive pickling.
        own = {name: value for name, value in vars(self).items() if name == "retriable"}
        return (_restore, (type(self), self.message, self.retry_after_s, self.extra), own)


def _restore(kind: type[ProofError], message: str, retry_after_s: float | None, extra: dict[str, object]) -> ProofError:
    return kind(message, retry_after_s=retry_after_s, **extra)


# --- the request itself ---------------------------------------------------------------------------------------------


class InvalidChainKey(ProofError):
    """The chain named in the request is not configured here."""

    code = "InvalidChainKey"


class InvalidParameter(ProofError):
    """A path, query or body parameter is not of its form. `about` says which kind, from a closed set, for counting."""

    code = "InvalidParameter"

    def __init__(
        self, message: str, *, about: str = "parameter", retry_after_s: float | None = None, **extra: object
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **extra)
        self.about = about


class MalformedJson(ProofError):
    """A request body is not JSON."""

    code = "MalformedJson"


class PayloadTooLarge(ProofError):
    """A request body or path is larger than this server reads."""

    code = "PayloadTooLarge"


class UnsupportedMediaType(ProofError):
    """A request body is not of a media type this server reads."""

    code = "UnsupportedMediaType"


class NotFound(ProofError):
    """No route of that path."""

    code = "NotFound"


class MethodNotAllowed(ProofError):
    """The path has no such method."""

    code = "MethodNotAllowed"


class TxIndexOutOfBounds(ProofError):
    """The block has fewer transactions than the index asked for."""

    code = "TxIndexOutOfBounds"


class LogIndexOutOfBounds(ProofError):
    """The receipt or block has fewer logs than the index asked for."""

    code = "LogIndexOutOfBounds"


class BlockBeforeOrAtGenesis(ProofError):
    """The height is at or below the attestation genesis: nothing anchors it."""

    code = "BlockBeforeOrAtGenesis"


class EmptyProofQueries(ProofError):
    """A batch without an entry."""

    code = "EmptyProofQueries"


class TooManyProofQueries(ProofError):
    """A batch with too many entries."""

    code = "TooManyProofQueries"


class TooManyTxQueriesInProofQuery(ProofError):
    """A batch entry with too many transaction indexes."""

    code = "TooManyTxQueriesInProofQuery"


class EmptyTxHashes(ProofError):
    """A batch by transaction hash without a hash."""

    code = "EmptyTxHashes"


class TooManyTxHashes(ProofError):
    """A batch by transaction hash with too many hashes."""

    code = "TooManyTxHashes"


class BatchSpanTooLarge(ProofError):
    """A batch whose heights lie too far apart."""

    code = "BatchSpanTooLarge"


class Unauthorized(ProofError):
    """No valid API key where one is required."""

    code = "Unauthorized"


# --- definite absence, or not yet -----------------------------------------------------------------------------------


class TxHashNotFound(ProofError):
    """An upstream that has the chain answered that it knows no such transaction."""

    code = "TxHashNotFound"


class TxNotMined(ProofError):
    """The transaction is known and in no block yet."""

    code = "TxNotMined"
    retriable = True


class BlockNotOnSourceChain(ProofError):
    """The height is above the head, or the hash names no block that an upstream knows."""

    code = "BlockNotOnSourceChain"
    retriable = True


class AttestationsMissing(ProofError):
    """The chain has no anchor, so no continuity proof can end in one."""

    code = "AttestationsMissing"


class BlockNotReady(ProofError):
    """No anchor covers the height yet. `extra` carries `block_number` and `last_attested_block`."""

    code = "BlockNotReady"
    retriable = True


class NotFinalized(ProofError):
    """The block exists but has not reached the finality level asked for."""

    code = "NotFinalized"
    retriable = True


# --- permanent properties of the block ------------------------------------------------------------------------------


class EmptyBlockTxProof(ProofError):
    """The block has no transactions: there is nothing to prove."""

    code = "EmptyBlockTxProof"


class UnsupportedBlockFormat(ProofError):
    """The block is of a form that cannot be rebuilt to what its header commits to."""

    code = "UnsupportedBlockFormat"


class NotCommittedByHeader(ProofError):
    """The header commits to no such item."""

    code = "NotCommittedByHeader"


class UnsupportedTransactionType(ProofError):
    """The block holds a transaction type that has no codec here, so its trie cannot be rebuilt."""

    code = "UnsupportedTransactionType"


class HeaderHashUnsupported(ProofError):
    """The chain's block hash is not the Keccak hash of a header that can be rebuilt from JSON-RPC."""

    code = "HeaderHashUnsupported"


class HistoryUnavailable(ProofError):
    """No upstream keeps data that old."""

    code = "HistoryUnavailable"


# --- not now --------------------------------------------------------------------------------------------------------


class InconsistentSource(ProofError):
    """Every upstream's data failed a check: nothing that could be proved."""

    code = "InconsistentSource"
    retriable = True


class RpcUnavailable(ProofError):
    """No upstream gave an answer."""

    code = "RpcUnavailable"
    retriable = True


class UpstreamBudgetExhausted(ProofError):
    """The budget for upstream calls is spent; answers already known are still served."""

    code = "UpstreamBudgetExhausted"
    retriable = True


class Overloaded(ProofError):
    """Too many proof requests in flight in this process."""

    code = "Overloaded"
    retriable = True


class ChainOverloaded(ProofError):
    """Too much work in flight, or queued, for this chain."""

    code = "ChainOverloaded"
    retriable = True


class RequestTimeout(ProofError):
    """The request's deadline passed. `extra["stage"]` names where."""

    code = "RequestTimeout"
    retriable = True


class BodyTimeout(ProofError):
    """The request's body did not come in time."""

    code = "BodyTimeout"
    retriable = True


class Draining(ProofError):
    """This process is shutting down."""

    code = "Draining"
    retriable = True


class ConsumerRateLimited(ProofError):
    """The consumer is over its own rate."""

    code = "ConsumerRateLimited"
    retriable = True


class ConsumerConcurrency(ProofError):
    """The consumer has too many requests in flight."""

    code = "ConsumerConcurrency"
    retriable = True


# --- our fault ------------------------------------------------------------------------------------------------------


class SelfCheckFailed(ProofError):
    """The independent verifier refused the bytes that were about to be sent."""

    code = "SelfCheckFailed"


class MerkleError(ProofError):
    """The binary tree and a leaf disagree."""

    code = "MerkleError"


class Internal(ProofError):
    """A fault of this server."""

    code = "Internal"
