"""The closed sets that label values come from. A value outside its set is a fault, not a new series."""

from __future__ import annotations

NO_CHAIN = ""

METHODS = ("GET", "HEAD", "POST", "OPTIONS", "other")
STATUS_CLASSES = ("2xx", "3xx", "4xx", "5xx", "error")  # error: no response was sent
REJECT_REASONS = (
    "overloaded",
    "chain_overloaded",
    "fill_queue_full",
    "fill_wait_timeout",
    "consumer_rate",
    "consumer_concurrency",
    "unauthorized",
    "upstream_budget",
    "draining",
    "timeout",
    "body_timeout",
    "bodies",
    "warm_lane",
    "verify_queue",
    "keys",
    "builder_lost",
    "builder_hung",
)
# What became of a proof request: `served`, `cancelled` (the client left) or the code that the client saw.
OUTCOMES = (
    "served",
    "cancelled",
    "InvalidChainKey",
    "InvalidParameter",
    "MalformedJson",
    "PayloadTooLarge",
    "UnsupportedMediaType",
    "NotFound",
    "MethodNotAllowed",
    "TxIndexOutOfBounds",
    "LogIndexOutOfBounds",
    "BlockBeforeOrAtGenesis",
    "EmptyProofQueries",
    "TooManyProofQueries",
    "TooManyTxQueriesInProofQuery",
    "EmptyTxHashes",
    "TooManyTxHashes",
    "BatchSpanTooLarge",
    "Unauthorized",
    "TxHashNotFound",
    "TxNotMined",
    "BlockNotOnSourceChain",
    "AttestationsMissing",
    "BlockNotReady",
    "NotFinalized",
    "EmptyBlockTxProof",
    "UnsupportedBlockFormat",
    "NotCommittedByHeader",
    "UnsupportedTransactionType",
    "HeaderHashUnsupported",
    "HistoryUnavailable",
    "InconsistentSource",
    "RpcUnavailable",
    "UpstreamBudgetExhausted",
    "Overloaded",
    "ChainOverloaded",
    "RequestTimeout",
    "BodyTimeout",
    "Draining",
    "ConsumerRateLimited",
    "ConsumerConcurrency",
    "SelfCheckFailed",
    "MerkleError",
    "Internal",
)
REJECTED_INPUTS = (
    "bad_tx_hash",
    "bad_block",
    "bad_index",
    "bad_chain",
    "bad_query",
    "bad_parameter",
    "unknown_chain",
    "index_out_of_bounds",
    "log_index_out_of_bounds",
    "too_large",
    "not_finalized",
    "before_genesis",
)
FILL_CLASSES = ("request", "backfill")
FILL_RESULTS = ("ok", "refused", "unavailable", "invalid", "timeout", "cancelled", "error")
CACHE_RESULTS = ("hit", "miss")
EVICTION_REASONS = ("capacity", "retention", "dropped")
CACHE_REJECT_REASONS = ("too_large",)
UPSTREAM_RESULTS = (
    "ok",
    "not_found",
    "timeout",
    "transport",
    "http_4xx",
    "http_5xx",
    "rate_limited",
    "invalid",
    "cancelled",
)
UPSTREAM_METHODS = (
    "eth_chainId",
    "eth_blockNumber",
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_getTransactionByHash",
    "eth_getTransactionReceipt",
    "eth_subscribe",
    "eth_unsubscribe",
)
PURPOSES = ("request", "backfill", "head", "probe")
ROUTES_TAKEN = ("head_aware", "exclusive", "exclusive_expired", "exclusive_broken", "full")
CONTENT_CHECKS = (
    "block_hash",
    "build",
    "decode",
    "deposit_nonce",
    "header_fields",
    "header_hash",
    "identity",
    "null_block",
    "null_receipt",
    "null_receipts",
    "null_withdrawal",
    "position",
    "receipt_block_hash",
    "receipt_identity",
    "receipts_not_committed",
    "receipts_root",
    "receipts_type",
    "signature",
    "transaction_hash",
    "transactions_not_committed",
    "transactions_root",
    "transactions_type",
    "unexpected",
    "withdrawals_root",
)
TRIES = ("transactions", "receipts")
PROOF_KINDS = ("transaction", "receipt", "log", "usc")
EXCEPTION_SOURCES = ("main", "thread", "unraisable", "loop", "asgi", "task")
BLOCK_STORE_TIERS = ("directory", "objects")
BLOCK_STORE_SIDES = ("read", "write")
BLOCK_STORE_READS = ("hit", "miss", "damaged", "foreign", "other_version", "failed", "timeout", "skipped")
BLOCK_STORE_WRITES = ("ok", "failed", "timeout", "skipped")
BLOCK_STORE_EVICTION_REASONS = ("capacity", "age")
