"""Makes the situations of `ours`: run it as a program after a change here, and the files are written.

Each says why its outcome is right. What a node tells is a copy of a true block, changed: where a root or a hash decides what is
true, the outcome is a proof, and where nothing decides it, a refusal that may be retried.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rlp

from tests.acceptance.made_blocks import Outcome, Sent, block_hash, every_type, make_block, op_deposit, rehash
from tests.oracles import signing, trie_library
from tests.oracles.signing import Account, Call, keccak

Json = Any
Change = Callable[[Json], object]

OURS = Path(__file__).parent / "ours"
MADE: dict[str, Json] = {}
ZERO_HASH = "0x" + "00" * 32
OTHER_HASH = "0x" + "f0" * 32
ZERO_BLOOM = "0x" + "00" * 256
KEEP = object()
BLOCK_METHODS = ["eth_getBlockReceipts", "eth_getBlockByNumber", "eth_getBlockByHash"]
REFUSED = [422, 503]
MISSING = {"code": -32601, "message": "the method eth_getBlockReceipts does not exist/is not available"}


# --- blocks ---------------------------------------------------------------------------------------------------------


def plain_block(height: int, count: int = 2, parent: bytes = bytes(32), **header: str) -> Json:
    """A block of transfers."""
    sender = Account.numbered(height % 1000 + 1)
    call = Call(b"\x11" * 20, height)
    return make_block(
        height, parent, [Sent(signing.dynamic_fee(sender, call, 1), sender.address) for _ in range(count)], **header
    )


def chained(height: int, blocks: int, count: int = 2) -> list[Json]:
    """Blocks of transfers in a row."""
    made = [plain_block(height, count)]
    while len(made) < blocks:
        made.append(plain_block(height + len(made), count, block_hash(made[-1])))
    return made


def mixed(height: int, **header: str) -> Json:
    """A block of every type: 0 (both signings), 1, 2, 2, 3 and 4, with logs in four of them."""
    return make_block(height, bytes(32), every_type(1), **header)


def altered(record: Json, *changes: Change) -> Json:
    """A copy, changed in place."""
    other = copy.deepcopy(record)
    for change in changes:
        change(other)
    return other


def put(target: Json, name: str, value: Json) -> None:
    """Sets a field; KeyError takes it away."""
    if value is KeyError:
        target.pop(name, None)
    else:
        target[name] = value


def in_receipts(name: str, value: Json) -> Change:
    """The field of every receipt."""

    def change(record: Json) -> None:
        for at, receipt in enumerate(record["receipts"]):
            put(receipt, name, value(at, receipt) if callable(value) and value is not KeyError else value)

    return change


def in_logs(name: str, value: Json) -> Change:
    """The field of every log."""

    def change(record: Json) -> None:
        for receipt in record["receipts"]:
            for at, log in enumerate(receipt["logs"]):
                put(log, name, value(at, log) if callable(value) and value is not KeyError else value)

    return change


def in_transactions(name: str, value: Json, types: Sequence[str] = ()) -> Change:
    """The field of every transaction, or of those of some types."""

    def change(record: Json) -> None:
        for at, each in enumerate(record["block"]["transactions"]):
            if not types or each.get("type") in types:
                put(each, name, value(at, each) if callable(value) and value is not KeyError else value)

    return change


def in_header(name: str, value: Json) -> Change:
    """A field of the header."""
    return lambda record: put(record["block"], name, value)


def in_transaction(at: int, name: str, value: Json) -> Change:
    """A field of one transaction."""
    return lambda record: put(record["block"]["transactions"][at], name, value)


def in_receipt(at: int, name: str, value: Json) -> Change:
    """A field of one receipt."""
    return lambda record: put(record["receipts"][at], name, value)


# --- situations -----------------------------------------------------------------------------------------------------


def write(name: str, right: str, **told: Json) -> None:
    """Keeps one situation."""
    assert name not in MADE, name
    MADE[name] = {"author": "ours", "right": right, **told}


def get(height: int | str, way: str, status: int | list[int] = 200, **want: Json) -> Json:
    """A request for an item of a block."""
    return {"get": f"/api/v1/proofs/1/blocks/{height}/{way}", "want": {"status": status, **want}}


def get_by_hash(kind: str, tx_hash: str, status: int | list[int] = 200, **want: Json) -> Json:
    """A request for an item by the hash of its transaction."""
    return {"get": f"/api/v1/proofs/1/{kind}/{tx_hash}", "want": {"status": status, **want}}


def calls(node: str = "n", most: Json = None, least: Json = None) -> Json:
    """How often a node may have been called."""
    return {"stats": node, **({"max": most} if most else {}), **({"min": least} if least else {})}


def fault(method: str | list[str], mode: str, node: str = "n", **more: Json) -> Json:
    """One fault of a node: `match`, `count`, and everything else its arguments."""
    told = {"path": f"/{node}", "method": method, "mode": mode}
    for name in ("match", "count"):
        if name in more:
            told[name] = more.pop(name)
    return {**told, "args": more} if more else told


def error(method: str | list[str], code: Json, message: str, node: str = "n", **more: Json) -> Json:
    """A JSON-RPC error of a node."""
    return {**fault(method, "error", node, **more), "args": {"code": code, "message": message}}


def status(method: str | list[str], code: int, body: str, ctype: str = "application/json", **more: Json) -> Json:
    """An HTTP error of a node."""
    return {**fault(method, "status", **more), "args": {"status": code, "ctype": ctype, "body": body, "headers": {}}}


def play(
    name: str,
    right: str,
    blocks: Sequence[Json],
    requests: Sequence[Json],
    faults: Sequence[Json] = (),
    *,
    second: Sequence[Json] | None = None,
    chain_id: int = 1,
    chain: Json = None,
    **more: Json,
) -> None:
    """A situation of one chain: what its node has, or its two nodes."""
    upstream = {"n": {"chainId": chain_id, "blocks": list(blocks), **more.pop("tags", {})}}
    nodes: Json = {"upstream": "n"}
    if second is not None:
        upstream["m"] = {"chainId": chain_id, "blocks": list(second)}
        nodes = {"upstreams": ["n", "m"]}
    chains = [{"chain_key": 1, "name": "one", **nodes, **(chain or {})}]
    given = {"faults": list(faults)} if faults else {}
    write(name, right, upstream=upstream, chains=chains, **given, requests=list(requests), **more)


def served(height: int | str, count: int = 7, *kinds: str) -> list[Json]:
    """Every item of a block is proven."""
    return [get(height, f"{kind}/{at}") for kind in kinds or ("receipts", "transactions") for at in range(count)]


def rpc_error(code: Json, message: str) -> str:
    """The body of a JSON-RPC error."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}})


# --- N01: a node refuses by plan what it does not have for us -------------------------------------------------------

N01 = chained(1000, 4)
OLD = {"block": 1000}
STAYS = (
    "the words are about what was asked, not about who asks: the node stays in use for all else, in one call a block"
)


def _plan(name: str, *faults: Json, old: str = "1000", most: int = 0, ready: bool = False) -> None:
    play(
        name,
        STAYS,
        N01,
        [
            get(1001, "receipts/0"),
            get(old, "receipts/0", [200, 422, 503] if most else REFUSED),
            get(1002, "receipts/0"),
            *([{"get": "/readyz", "want": {"status": 200}}] if ready else []),
            get(1003, "receipts/1"),
            calls(most={"eth_getTransactionReceipt": most}),
        ],
        faults,
    )


def make_n01() -> None:
    """401, 402 and 403 with words of a plan."""
    paid = rpc_error(-32002, "Historical blocks require a paid plan, please upgrade")
    _plan("N01x1-401-paid-plan", status(BLOCK_METHODS, 401, paid, match=OLD), ready=True)
    _plan(
        "N01x2-403-plain-text",
        status(
            BLOCK_METHODS, 403, "Archive access is not included in your subscription tier.", "text/plain", match=OLD
        ),
    )
    _plan(
        "N01x3-403-pruned",
        status(BLOCK_METHODS, 403, rpc_error(-32000, "block 1000 has been pruned on this tier"), match=OLD),
    )
    _plan(
        "N01x4-by-block-hash",
        status(BLOCK_METHODS, 403, rpc_error(-32602, "Archive requests require a personal token."), match=OLD),
        old=N01[0]["block"]["hash"],
    )
    _plan(
        "N01x5-error-in-200",
        error(BLOCK_METHODS, 403, "archive data is not available on the free plan, upgrade your plan", match=OLD),
    )
    _plan(
        "N01x6-402-receipts-only",
        status("eth_getBlockReceipts", 402, rpc_error(-32000, "payment required for archive receipts"), match=OLD),
        most=2,
    )
    denied = status(
        "eth_getTransactionReceipt", 403, rpc_error(-32002, "Archive requests need the Pro plan"), match=OLD
    )
    play(
        "N01x7-403-single-receipts",
        STAYS,
        N01,
        [get(1001, "receipts/0"), get(1000, "receipts/0", REFUSED), get(1002, "receipts/0"), get(1003, "receipts/1")],
        [error("eth_getBlockReceipts", **MISSING), denied],
    )
    play(
        "N01x8-two-nodes-one-with-a-plan",
        "the other node has the block, and the first stays in use for what it serves",
        N01,
        [*[get(height, "receipts/0") for height in (1000, 1001, 1002)], calls("n", least={"eth_getBlockReceipts": 2})],
        [status(BLOCK_METHODS, 403, rpc_error(-32602, "Archive requests require a personal token."), match=OLD)],
        second=N01,
    )
    play(
        "N01x9-403-bad-key",
        "nothing about the block: the key is refused, so the node rests and is not asked for each request",
        N01,
        [get(1000 + at % 4, "receipts/0", 503) for at in range(8)] + [calls(most={"eth_getBlockReceipts": 0})],
        [status("*", 403, rpc_error(-32000, "invalid API key"))],
        wait_ready=False,
        settle=1,
    )


# --- N02: limits told with codes of another meaning -----------------------------------------------------------------

N02 = chained(2000, 2, 16)
PAUSE = "words of a limit come before the code: a pause, never one call per transaction"


def make_n02() -> None:
    """Words come before codes."""
    words = {
        "N02x1-32008-rate-limit": (-32008, "rate limit exceeded"),
        "N02x2-32010-too-many": (-32010, "too many requests, slow down"),
        "N02x3-32011-daily": (-32011, "daily request count exceeded, request rate limited"),
        "N02x4-32000-capacity": (-32000, "exceeded its compute units per second capacity"),
        "N02x5-32008-throttled": (-32008, "your requests are being throttled"),
        "N02x6-32016-limit": (-32016, "over rate limit"),
    }
    for name, (code, message) in words.items():
        play(
            name,
            PAUSE,
            N02,
            [
                get(2000, "receipts/0", [200, 503]),
                calls(most={"eth_getTransactionReceipt": 0, "eth_getBlockReceipts": 6}),
            ],
            [error("eth_getBlockReceipts", code, message, count=2)],
        )
    play(
        "N02x7-32010-everything",
        "the node is given a pause: a handful of calls",
        N02,
        [
            get(2000, "receipts/0", 503, retriable=True),
            get(2001, "receipts/0", 503, retriable=True),
            calls(most={"eth_getTransactionReceipt": 10, "eth_getBlockReceipts": 8}),
        ],
        [error(["eth_getBlockReceipts", "eth_getTransactionReceipt"], -32010, "request limit reached")],
    )
    for name, code, message in (
        ("N02x8-32008-size", -32008, "response is too big: exceeded max limit of 1048576 bytes"),
        ("N02x9-32011-size", -32011, "the response exceeds the maximum size allowed"),
    ):
        play(
            name,
            "the words are those of a size: smaller calls, one per transaction, are the way",
            N02,
            [get(2000, "receipts/0"), calls(least={"eth_getTransactionReceipt": 16})],
            [error("eth_getBlockReceipts", code, message)],
        )


# --- N03: transactions of types that no codec knows -----------------------------------------------------------------


def _with_strange(height: int, envelope: bytes, told_type: Json, receipt_type: Json, prefix: bytes) -> Json:
    """A block of a transfer and one transaction of some envelope, whose receipt has its type byte or none."""
    record = plain_block(height, 2)
    block, receipts = record["block"], record["receipts"]
    sent = [Sent(signing.dynamic_fee(Account.numbered(31), Call(b"\x11" * 20), 1), Account.numbered(31).address)]
    first = make_block(height, bytes(32), sent)
    block["transactions"][0] = first["block"]["transactions"][0]
    receipts[0] = first["receipts"][0]
    strange = block["transactions"][1]
    put(strange, "type", told_type)
    strange["hash"] = receipts[1]["transactionHash"] = "0x" + keccak(envelope).hex()
    put(receipts[1], "type", receipt_type)
    leaves = [b"\x02" + rlp.encode([1, 21_000, bytes(256), []]), prefix + rlp.encode([1, 42_000, bytes(256), []])]
    block["transactionsRoot"] = "0x" + trie_library.root_of([sent[0].raw, envelope]).hex()
    block["receiptsRoot"] = "0x" + trie_library.root_of(leaves).hex()
    return rehash(record)


def make_n03() -> None:
    """Types that no codec knows."""
    refused = {"code": "UnsupportedTransactionType", "retriable": False}
    body = rlp.encode([b"\x01" * 40, b"\x02" * 40])
    cases = {
        "N03x1-type-0x80": _with_strange(3000, b"\x80" + body, "0x80", "0x0", b""),
        "N03x2-type-0x7f-in-both-tries": _with_strange(3000, b"\x7f" + body, "0x7f", "0x7f", b"\x7f"),
        "N03x3-type-of-two-bytes": _with_strange(3000, b"\xff" + body, "0x100", "0x0", b""),
        "N03x4-receipt-says-0xff": _with_strange(3000, b"\xff" + body, "0xff", "0xff", b""),
        "N03x5-type-as-number": _with_strange(3000, b"\x6f" + body, 0x6F, 0x6F, b"\x6f"),
        "N03x6-receipt-without-type": _with_strange(3000, b"\xc8" + body, "0xc8", KeyError, b""),
    }
    for name, record in cases.items():
        tx_hash = record["block"]["transactions"][1]["hash"]
        play(
            name,
            "no codec has the type, which lasts; the receipts need no transaction: their root is met",
            [record],
            [
                get(3000, "transactions/1", 422, **refused),
                get(3000, "transactions/0", 422, **refused),
                get(3000, "receipts/0"),
                get(3000, "receipts/1"),
                get_by_hash("receipts", tx_hash),
                get_by_hash("transactions", tx_hash, 422, **refused),
            ],
        )
    both = cases["N03x1-type-0x80"]
    play(
        "N03x7-two-nodes-agree",
        "two nodes tell the same type: the refusal has its second witness",
        [both],
        [get(3000, "transactions/1", 422, **refused), get(3000, "receipts/1")],
        second=[both],
    )


# --- N04: blooms ----------------------------------------------------------------------------------------------------


def make_n04() -> None:
    """A bloom is a function of the logs."""
    right = "the bloom is a function of the logs, and the root tells which is right"
    honest = mixed(4000)
    spellings = {
        "N04x1-bloom-absent": in_receipts("logsBloom", KeyError),
        "N04x2-bloom-null": in_receipts("logsBloom", None),
        "N04x3-bloom-0x": in_receipts("logsBloom", "0x"),
        "N04x4-bloom-short": in_receipts("logsBloom", "0x00"),
        "N04x5-bloom-of-another": in_receipts("logsBloom", honest["receipts"][2]["logsBloom"]),
        "N04x6-bloom-full": in_receipts("logsBloom", "0x" + "ff" * 256),
        "N04x7-bloom-text": in_receipts("logsBloom", "none"),
        "N04x8-bloom-of-the-block": in_receipts("logsBloom", honest["block"]["logsBloom"]),
        "N04x9-one-bloom-zero": in_receipt(2, "logsBloom", ZERO_BLOOM),
    }
    for name, change in spellings.items():
        play(name, right, [altered(honest, change)], served(4000))
    play(
        "N04xa-singly",
        right,
        [altered(honest, in_receipts("logsBloom", ZERO_BLOOM))],
        served(4000),
        [error("eth_getBlockReceipts", **MISSING)],
    )
    for name, value in (("N04xb-header-bloom-0x0", "0x0"), ("N04xc-header-bloom-null", None)):
        play(
            name,
            "a block without logs has a bloom of zeros: one spelling of none for another, and the hash tells",
            [altered(plain_block(4000), in_header("logsBloom", value))],
            served(4000, 2),
        )
    play(
        "N04xd-header-bloom-zero-with-logs",
        "the header's bloom is that of its receipts: found, or refused until the node says it; never lasting",
        [altered(honest, in_header("logsBloom", ZERO_BLOOM))],
        [get(4000, "receipts/2", [200, 503]), get(4000, "transactions/2", [200, 503])],
    )


# --- N05: types of receipts -----------------------------------------------------------------------------------------


def make_n05() -> None:
    """A receipt has the type of its transaction."""
    right = "the type is in the transaction, whose hash is proven, and the receipts' root tells"
    honest = mixed(5000)
    rotated = [receipt["type"] for receipt in honest["receipts"]]
    spellings = {
        "N05x1-type-absent": in_receipts("type", KeyError),
        "N05x2-type-null": in_receipts("type", None),
        "N05x3-type-0x": in_receipts("type", "0x"),
        "N05x4-types-of-their-neighbours": in_receipts("type", lambda at, _: rotated[at - 1]),
        "N05x5-type-as-number": in_receipts("type", lambda _, receipt: int(receipt["type"], 16)),
        "N05x6-type-0x7e": in_receipts("type", "0x7e"),
        "N05x7-type-as-words": in_receipts("type", "EIP1559"),
        "N05x8-type-0xff": in_receipts("type", "0xff"),
        "N05x9-one-type-wrong": in_receipt(3, "type", "0x1"),
    }
    for name, change in spellings.items():
        play(name, right, [altered(honest, change)], served(5000))
    play(
        "N05xa-singly",
        right,
        [altered(honest, in_receipts("type", "0x0"))],
        served(5000),
        [error("eth_getBlockReceipts", **MISSING)],
    )
    deposits = make_block(5000, bytes(32), [op_deposit(1), *every_type(10)[3:5]])
    play(
        "N05xb-deposit-receipt-of-type-0",
        right,
        [altered(deposits, in_receipts("type", "0x0"))],
        served(5000, 3),
        chain_id=10,
        chain={"family": "op-stack"},
    )
    play(
        "N05xc-transactions-without-type",
        "the envelope that meets the hash has the type; at the least a refusal that may be retried",
        [altered(honest, in_transactions("type", KeyError), in_receipts("type", KeyError))],
        [get(5000, "receipts/2", [200, 503]), get(5000, "transactions/2", [200, 503])],
    )


# --- N06: transactions without a hash -------------------------------------------------------------------------------


def make_n06() -> None:
    """A hash is keccak of the envelope."""
    right = "the hash is keccak of the envelope, and the root commits to it"
    honest = mixed(6000)
    blocks = ["eth_getBlockByNumber", "eth_getBlockByHash"]

    def full(change: Callable[[int], Json], at: Sequence[int] = range(7)) -> Json:
        many = [{"path": ["transactions", place, "hash"], **change(place)} for place in at]
        return fault(blocks, "mutate", match={"full": True}, many=many)

    spellings: dict[str, Json] = {
        "N06x1-null": {"value": None},
        "N06x2-0x": {"value": "0x"},
        "N06x3-zero": {"value": ZERO_HASH},
        "N06x4-upper-case": KEEP,
    }
    for name, change in spellings.items():
        told = full(
            lambda at, change=change: (
                change
                if change is not KEEP
                else {"value": "0x" + honest["block"]["transactions"][at]["hash"][2:].upper()}
            )
        )
        play(name, right, [honest], served(6000), [told])
    tx_hash = honest["block"]["transactions"][4]["hash"]
    absent = full(lambda _: {"delete": True})
    play(
        "N06x5-asked-by-hash",
        right,
        [honest],
        [
            get(honest["block"]["hash"], "transactions/4"),
            get_by_hash("transactions", tx_hash),
            get_by_hash("receipts", tx_hash),
        ],
        [absent],
    )
    play(
        "N06x6-in-receipts-too",
        right + "; which receipt is whose, their order says",
        [altered(honest, in_receipts("transactionHash", KeyError))],
        served(6000),
        [absent],
    )
    play(
        "N06x7-last-one-null",
        right,
        [honest],
        served(6000),
        [full(lambda _: {"value": None}, [6])],
    )
    play(
        "N06x8-one-of-another",
        right + "; at the least a refusal that may be retried",
        [honest],
        [get(6000, "transactions/4", [200, 503]), get(6000, "receipts/4")],
        [full(lambda _: {"value": OTHER_HASH}, [4])],
    )


# --- N07: v ---------------------------------------------------------------------------------------------------------


def make_n07() -> None:
    """Of the few values v can have, one meets the hash."""
    right = "of the few values that v can have, one meets the hash"
    honest = mixed(7000)
    parity = [
        (int(each["v"], 16) - (27 if int(each["v"], 16) < 35 else 35)) % 2
        if each["type"] == "0x0"
        else int(each["v"], 16)
        for each in honest["block"]["transactions"]
    ]

    def legacy(value: Callable[[int, Json], Json], *names: str) -> list[Change]:
        return [in_transactions(name, value, ["0x0"]) for name in names]

    typed = ["0x1", "0x2", "0x3", "0x4"]
    cases: dict[str, list[Change]] = {
        "N07x1-27-and-28": legacy(lambda at, _: hex(27 + parity[at]), "v"),
        "N07x2-parity-alone": [
            *legacy(lambda at, _: hex(parity[at]), "yParity"),
            in_transactions("v", KeyError, ["0x0"]),
        ],
        "N07x3-the-other-parity": legacy(lambda at, _: hex(1 - parity[at]), "v"),
        "N07x4-number": legacy(lambda at, _: parity[at], "v"),
        "N07x5-absent": [in_transactions("v", KeyError, ["0x0"])],
        "N07x6-recid-without-chain-id": [
            *legacy(lambda at, _: hex(parity[at]), "v"),
            in_transactions("chainId", KeyError, ["0x0"]),
        ],
        "N07x7-typed-27-and-28": [
            in_transactions("v", lambda at, _: hex(27 + parity[at]), typed),
            in_transactions("yParity", KeyError, typed),
        ],
        "N07x8-typed-as-155": [
            in_transactions("v", lambda at, _: hex(37 + parity[at]), typed),
            in_transactions("yParity", KeyError, typed),
        ],
        "N07x9-typed-null": [in_transactions("v", None, typed), in_transactions("yParity", None, typed)],
    }
    for name, changes in cases.items():
        play(name, right, [altered(honest, *changes)], served(7000))
    large = make_block(7000, bytes(32), every_type(11_155_111))
    flat = [in_transactions("v", lambda at, _: hex(parity[at]), ["0x0"]), in_transactions("chainId", KeyError, ["0x0"])]
    play("N07xa-large-chain-id", right, [altered(large, *flat)], served(7000), chain_id=11_155_111)


# --- N08: fields of the header written in other ways ----------------------------------------------------------------


def make_n08() -> None:
    """What the hash decides is tried in the forms it can have."""
    right = "in the form that it has in the header, the header hashes to the hash"
    honest = mixed(8000)
    seal = mixed(8000, nonce="0x0000000000000042")
    zero_mix = mixed(8000, mixHash=ZERO_HASH)
    cases = {
        "N08x1-nonce-null": altered(honest, in_header("nonce", None)),
        "N08x2-nonce-absent": altered(honest, in_header("nonce", KeyError)),
        "N08x3-nonce-0x": altered(honest, in_header("nonce", "0x")),
        "N08x4-nonce-number": altered(honest, in_header("nonce", 0)),
        "N08x5-nonce-short": altered(seal, in_header("nonce", "0x42")),
        "N08x6-nonce-decimal": altered(seal, in_header("nonce", 0x42)),
        "N08x7-mix-hash-0x0": altered(zero_mix, in_header("mixHash", "0x0")),
        "N08x8-mix-hash-absent": altered(zero_mix, in_header("mixHash", KeyError)),
        "N08x9-both-null": altered(zero_mix, in_header("mixHash", None), in_header("nonce", None)),
        "N08xa-extra-data-null": altered(honest, in_header("extraData", None)),
        "N08xb-difficulty-absent": altered(honest, in_header("difficulty", KeyError)),
        "N08xc-parent-0x0": altered(honest, in_header("parentHash", "0x0")),
        "N08xe-excess-blob-gas-null": altered(honest, in_header("excessBlobGas", None)),
    }
    for name, record in cases.items():
        play(name, right, [record], [get(8000, "transactions/0"), get(8000, "receipts/2")])
    play(
        "N08xd-uncles-absent",
        "the hash of no uncles may be tried; at the least a refusal that may be retried",
        [altered(honest, in_header("sha3Uncles", KeyError))],
        [get(8000, "transactions/0", [200, 503]), get(8000, "receipts/2", [200, 503])],
    )
    play(
        "N08xf-nonce-of-another",
        "no form of what was told meets the hash, and a seal that has a value cannot be derived: refused for now",
        [altered(seal, in_header("nonce", "0x43"))],
        [get(8000, "transactions/0", 503, retriable=True), get(8000, "receipts/2", 503, retriable=True)],
    )


# --- N10: ids -------------------------------------------------------------------------------------------------------


def make_n10() -> None:
    """An id as text is an id; another id is none."""
    honest = mixed(10_000)
    early = {"wait_ready": False, "settle": 3}
    play(
        "N10x1-only-receipts",
        'the id is told beyond doubt ("7" for 7)',
        [honest],
        served(10_000, 2),
        [fault("eth_getBlockReceipts", "string_id")],
    )
    play(
        "N10x2-singly",
        "as in one answer, so in an answer to many",
        [honest],
        served(10_000, 7),
        [fault("*", "string_id"), error("eth_getBlockReceipts", **MISSING)],
        **early,
    )
    play(
        "N10x3-other-text",
        "text that is not the id of the call is that of another call: nothing is served from it",
        [honest],
        [get(10_000, "receipts/0", 503, retriable=True), get(10_000, "transactions/0", 503, retriable=True)],
        [fault("*", "id", value="987654321")],
        **early,
    )
    play(
        "N10x4-error-with-text-id",
        "an error with its id as text is an error of this call: the receipts are asked for one by one",
        [honest],
        [get(10_000, "receipts/0")],
        [error("eth_getBlockReceipts", **MISSING), fault("eth_getBlockReceipts", "string_id")],
    )
    play(
        "N10x5-version-absent",
        "which call is answered, its id says; the version adds nothing to it",
        [honest],
        [get(10_000, "receipts/0", [200, 503]), get(10_000, "transactions/1", [200, 503])],
        [fault("*", "envelope", jsonrpc=None)],
        **early,
    )


# --- N11: codecs that do not fit ------------------------------------------------------------------------------------


def _deposit_of_own(height: int, family_type: int, others: int = 1, deposits: int = 1, good: int = 0) -> Json:
    """A block whose transactions of one type have fields that no codec knows."""
    sent = [op_deposit(each) for each in range(deposits + good)]
    sender = Account.numbered(41)
    sent += [Sent(signing.dynamic_fee(sender, Call(b"\x11" * 20), 1), sender.address) for _ in range(others)]
    record = make_block(height, bytes(32), sent)
    raws = [each.raw for each in sent]
    for at in range(deposits):
        fields = [*rlp.decode(raws[at][1:]), b"\x05\x06\x07"]
        raws[at] = bytes([family_type]) + rlp.encode(fields)
        told, receipt = record["block"]["transactions"][at], record["receipts"][at]
        told |= {"type": hex(family_type), "hash": "0x" + keccak(raws[at]).hex(), "ethValue": "0x50607", "r": "0x0"}
        receipt |= {"type": hex(family_type), "transactionHash": told["hash"]}
    leaves = []
    for receipt in record["receipts"]:
        fields = [1, int(receipt["cumulativeGasUsed"], 16), bytes(256), []]
        if "depositNonce" in receipt:
            fields += [int(receipt["depositNonce"], 16), 1]
        leaves.append(bytes([int(receipt["type"], 16)]) + rlp.encode(fields))
    record["block"]["transactionsRoot"] = "0x" + trie_library.root_of(raws).hex()
    record["block"]["receiptsRoot"] = "0x" + trie_library.root_of(leaves).hex()
    return rehash(record)


def make_n11() -> None:
    """A codec that does not fit is a type that is not supported, not a node that lies."""
    right = "header and receipts hold, and all of one type fail their hash: the codec does not fit, which lasts"
    refused = {"code": "UnsupportedTransactionType", "retriable": False}
    one = _deposit_of_own(11_000, 0x7E)
    op = {"family": "op-stack"}
    ask = [get(11_000, "transactions/0", 422, **refused), get(11_000, "receipts/0"), get(11_000, "receipts/1")]
    play("N11x1-deposit-of-its-own", right, [one], ask, chain=op)
    play("N11x2-two-deposits", right, [_deposit_of_own(11_000, 0x7E, 2, 2)], ask, chain=op)
    play("N11x3-only-deposits", right, [_deposit_of_own(11_000, 0x7E, 0, 2)], ask, chain=op)
    play("N11x4-two-nodes", right, [one], ask, second=[one], chain=op)
    play(
        "N11x5-the-others-of-the-block",
        "the root of the transactions cannot be met without the one: refused with it",
        [one],
        [get(11_000, "transactions/1", 422, **refused), get(11_000, "receipts/1")],
        chain=op,
    )
    play(
        "N11x6-one-of-two-deposits",
        "the codec fits the other one: a lie or a new form, which this alone does not tell; the receipts hold",
        [_deposit_of_own(11_000, 0x7E, 1, 1, 1)],
        [get(11_000, "transactions/0", REFUSED), get(11_000, "receipts/0"), get(11_000, "receipts/2")],
        chain=op,
    )
    for name, family_type, family in (
        ("N11x7-0x7d-under-op-stack", 0x7D, "op-stack"),
        ("N11x8-0x6a-under-ethereum", 0x6A, "ethereum"),
        ("N11x9-0x7b-under-ethereum", 0x7B, "ethereum"),
    ):
        record = _deposit_of_own(11_000, family_type)
        for each in record["receipts"]:  # those of no deposit have no nonce
            each.pop("depositNonce", None)
            each.pop("depositReceiptVersion", None)
        leaves = [
            bytes([int(each["type"], 16)]) + rlp.encode([1, int(each["cumulativeGasUsed"], 16), bytes(256), []])
            for each in record["receipts"]
        ]
        record["block"]["receiptsRoot"] = "0x" + trie_library.root_of(leaves).hex()
        play(
            name,
            "no codec of this family has the type; the receipts need none",
            [rehash(record)],
            ask,
            chain={"family": family},
        )


# --- N12: hashes in receipts ----------------------------------------------------------------------------------------


def _one_twice(height: int, places: Sequence[int]) -> Json:
    """A block in which transactions stand as the places say."""
    senders = [Account.numbered(51 + at) for at in range(max(places) + 1)]
    sent = [
        Sent(
            signing.dynamic_fee(sender, Call(b"\x11" * 20), 1),
            sender.address,
            Outcome(21_000 + at, 1, [(b"\x22" * 20, [bytes([at]) * 32], b"")]),
        )
        for at, sender in enumerate(senders)
    ]
    return make_block(height, bytes(32), [sent[at] for at in places])


def make_n12() -> None:
    """Which receipt is whose, the order that meets the root says."""
    right = "order and index are right, and the root tells"
    honest = mixed(12_000)
    hashes = [receipt["transactionHash"] for receipt in honest["receipts"]]
    singles_missing = fault("eth_getTransactionReceipt", "null")
    cases = {
        "N12x1-all-name-the-last": in_receipts("transactionHash", hashes[-1]),
        "N12x2-zero": in_receipts("transactionHash", ZERO_HASH),
        "N12x3-null": in_receipts("transactionHash", None),
        "N12x4-absent": in_receipts("transactionHash", KeyError),
        "N12x5-0x": in_receipts("transactionHash", "0x"),
        "N12x6-two-exchanged": in_receipts("transactionHash", lambda at, _: hashes[{2: 3, 3: 2}.get(at, at)]),
        "N12x7-one-unknown": in_receipt(4, "transactionHash", OTHER_HASH),
        "N12x8-in-logs-zero": in_logs("transactionHash", ZERO_HASH),
        "N12x9-in-logs-absent": in_logs("transactionHash", KeyError),
    }
    for name, change in cases.items():
        play(name, right, [altered(honest, change)], served(12_000), [singles_missing])
    play(
        "N12xa-list-in-another-order",
        "the indexes say the order that meets the root",
        [altered(honest, lambda record: record["receipts"].reverse())],
        served(12_000),
    )
    for name, places in (("N12xb-twice-at-the-end", [0, 1, 1]), ("N12xc-three-times", [0, 1, 0, 0])):
        record = _one_twice(12_000, places)
        play(
            name,
            "by position each has its proof; by hash one of them, or a stated refusal",
            [record],
            [
                *served(12_000, len(places)),
                get_by_hash("receipts", record["block"]["transactions"][-1]["hash"], [200, 404, 409, 422]),
                get_by_hash("transactions", record["block"]["transactions"][-1]["hash"], [200, 404, 409, 422]),
            ],
        )
    play(
        "N12xd-twice-and-singly",
        "one hash has one receipt, so the second cannot be asked for: transactions hold, receipts are not had now",
        [_one_twice(12_000, [0, 1, 1])],
        [
            get(12_000, "transactions/1"),
            get(12_000, "transactions/2"),
            get(12_000, "receipts/2", [200, 503]),
            get(12_000, "receipts/0", [200, 503]),
        ],
        [error("eth_getBlockReceipts", **MISSING)],
    )


# --- N16: offers of h2c ---------------------------------------------------------------------------------------------

PROOF = json.dumps({"kind": "trie", "root": "0x" + "11" * 32, "key": "0x80", "value": "0x01", "nodes": ["0xc0"]})
AGAIN = "GET /livez HTTP/1.1\r\nHost: copath.test\r\n\r\n"
OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"


def _head(more: str, first: str = "POST /api/v1/proofs/verify", length: int | None = len(PROOF)) -> str:
    framing = "Transfer-Encoding: chunked\r\n" if length is None else f"Content-Length: {length}\r\n"
    return f"{first} HTTP/1.1\r\nHost: copath.test\r\nContent-Type: application/json\r\n{more}{framing}\r\n"


def _chunk(text: str) -> str:
    return f"{len(text):x}\r\n{text}\r\n"


def make_n16() -> None:
    """A request that offers an upgrade is answered as if it did not."""
    right = "answered as the same request without the offer, and the connection stays usable"

    def raw(name: str, *segments: str, again: str | None = AGAIN, **want: Json) -> None:
        more = {"again": again} if again else {}
        write(
            name,
            right,
            kind="raw_http",
            segments=list(segments),
            **more,
            want={"status": 200, "contains": "valid"} | want,
        )

    raw("N16x1-body-later", _head(OFFER), PROOF)
    raw("N16x2-body-in-pieces", _head(OFFER) + PROOF[:10], PROOF[10:60], PROOF[60:])
    raw("N16x3-chunked-later", _head(OFFER, length=None), _chunk(PROOF[:50]), _chunk(PROOF[50:]) + "0\r\n\r\n")
    raw("N16x4-expect", _head(OFFER + "Expect: 100-continue\r\n"), PROOF)
    raw("N16x5-expect-chunked", _head(OFFER + "Expect: 100-continue\r\n", length=None), _chunk(PROOF), "0\r\n\r\n")
    raw(
        "N16x6-lower-case", _head(OFFER.lower().replace("aaeaaeaaaaiaaaabaamaaabkaaqbaaaaaauaaeaa", "AAMAAABk")) + PROOF
    )
    raw("N16x7-head-in-two", _head(OFFER)[:90], _head(OFFER)[90:] + PROOF)
    raw("N16x8-websocket-offer", _head("Connection: Upgrade\r\nUpgrade: websocket\r\n") + PROOF)
    raw("N16x9-several-offers", _head("Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.2, h2c\r\n") + PROOF)
    raw("N16xa-twice-at-once", _head(OFFER) + PROOF + AGAIN, again=None)
    get_head = "GET /api/v1/chains HTTP/1.1\r\nHost: copath.test\r\n" + OFFER + "\r\n"
    raw("N16xb-get", get_head, contains="one")
    raw("N16xc-empty-body", _head(OFFER, length=0), status=400, contains="code")
    raw("N16xd-byte-by-byte", *(_head(OFFER) + PROOF)[:12], (_head(OFFER) + PROOF)[12:])
    raw("N16xe-upgrade-alone", _head("Upgrade: h2c\r\n") + PROOF)


# --- N19: where temporary files go ----------------------------------------------------------------------------------


def make_n19() -> None:
    """A place for temporary files of any shape works, or is named."""
    starts = {"starts": True, "proof": True}

    def start(name: str, right: str, env: Json = None, want: Json = None, **more: Json) -> None:
        write(name, right, kind="start", demo=True, env=env or {}, want=want or starts, **more)

    start("N19x1-200-long", "starts and serves proofs, whichever way the builders start", tmpdir=200)
    start("N19x2-not-ascii", "starts and serves proofs", tmpdir=100, tmpdir_name="tmp-\u00fc\u4e2d ")
    start("N19x3-missing", "another place is taken, as the platform has it", {"TMPDIR": "/nonexistent/place"})
    start("N19x4-relative", "starts and serves proofs", {"TMPDIR": "."})
    start("N19x5-long-two-builders", "starts and serves proofs", {"COPATH_BUILD__PROCESSES": "2"}, tmpdir=120)
    start("N19x6-a-file", "another place is taken, as the platform has it", {"TMPDIR": "/etc/hostname"})


# --- N20: what is pasted along with a secret ------------------------------------------------------------------------

CHAIN = "bind_port: {PORT}\ndatabase_url: {DB}\nblock_store_url: null\nchains:\n  - chain_key: 1\n"
CONFIG = CHAIN + "    upstreams:\n      - name: own\n"


def make_n20() -> None:
    """A secret with something beside it is cleaned, or refused in one line that names its setting."""
    refused = {"starts": False, "no_unhandled": True}
    cleaned = {"starts": True, "no_traceback": True}
    url = "        url: http://127.0.0.1:{UP}/\n"

    def headers(name: str, text: str, secret: str, want: Json = None, **more: Json) -> None:
        config = CONFIG + url + "        headers: " + text + "\n"
        write(
            name,
            "refused at the start in one line that names the setting, without the value",
            kind="start",
            config=config,
            env={},
            secrets=[secret],
            want=want or {**refused, "names": "headers"},
            **more,
        )

    headers("N20x1-no-break-space", '{X-Api-Key: "s3cr3t\\u00a0k3y"}', "s3cr3t")
    headers("N20x2-carriage-return", '{X-Api-Key: "s3cr3t\\rk3y"}', "s3cr3t")
    headers("N20x3-nul", '{X-Api-Key: "s3cr3t\\0k3y"}', "s3cr3t")
    headers("N20x4-soft-hyphen", '{X-Api-Key: "s3cr3t\\u00adk3y"}', "s3cr3t")
    headers("N20x5-curly-quotes", '{X-Api-Key: "\\u201cs3cr3t\\u201d"}', "s3cr3t")
    headers("N20x6-umlaut", '{Authorization: "Bearer s3cr3t\\u00fc"}', "s3cr3t")
    headers("N20x7-emoji", '{X-Api-Key: "s3cr3t\\U0001f511"}', "s3cr3t")
    headers("N20x8-name-with-space", '{"X Api Key": "s3cr3t"}', "s3cr3t")
    headers("N20x9-name-with-dash", '{"X\\u2013Api-Key": "s3cr3t"}', "s3cr3t")
    headers("N20xa-empty-name", '{"": "s3cr3t"}', "s3cr3t")

    def file(name: str, right: str, text: str, want: Json, echo: Json = None, **more: Json) -> None:
        config = CONFIG + url + "        headers_file: {FILE}\n"
        given = {"echo": echo} if echo else {}
        write(
            name, right, kind="start", config=config, env={}, file=text, want=want, secrets=["s3cr3t"], **given, **more
        )

    echo = {"x-api-key": "s3cr3t-k3y"}
    file(
        "N20xb-file-with-blank-lines",
        "the secret alone is used",
        "\r\n\r\nX-Api-Key: s3cr3t-k3y \r\n\r\n",
        cleaned,
        echo,
    )
    file(
        "N20xc-file-two-headers-bom",
        "the secrets alone are used",
        "\ufeffX-Api-Key: s3cr3t-k3y\nX-Other: b\n",
        cleaned,
        echo,
    )
    file(
        "N20xd-file-with-dash",
        "refused at the start in one line that names the setting, without the value",
        "X-Api-Key: s3cr3t\u2013k3y\n",
        {**refused, "names": "headers"},
    )
    file(
        "N20xe-file-in-utf-16",
        "refused at the start in one line that names the setting, without the value",
        "",
        {**refused, "names": "headers_file"},
        file_hex="\ufeffX-Api-Key: s3cr3t\r\n".encode("utf-16-le").hex(),
    )
    file(
        "N20xf-file-empty",
        "refused at the start in one line that names the setting",
        "\ufeff\r\n",
        {**refused, "names": "headers_file"},
    )

    def url_file(name: str, right: str, text: str, want: Json, **more: Json) -> None:
        config = CHAIN + "    eth_rpc_url_file: {FILE}\n"
        write(name, right, kind="start", config=config, env={}, file=text, want=want, **more)

    url_file(
        "N20xg-url-file-bom",
        "the URL alone is used",
        "\ufeffhttp://127.0.0.1:{UP}/\r\n",
        cleaned,
        echo={"content-type": "application/json"},
    )
    url_file(
        "N20xh-url-file-zero-width-space",
        "refused at the start in one line that names the setting, without the value",
        "http://node.example.org/s3cr3t\u200b\n",
        {**refused, "names": "eth_rpc_url"},
        secrets=["s3cr3t"],
    )
    write(
        "N20xi-config-bom",
        "a configuration file with a byte order mark is read as one without",
        kind="start",
        config="\ufeff" + CONFIG + url,
        env={},
        want=cleaned,
        echo={"content-type": "application/json"},
    )
    write(
        "N20xj-pepper-zero-width-space",
        "refused at the start in one line that names the setting, without the value (or cleaned)",
        kind="start",
        config=CONFIG + url,
        env={"COPATH_CONSUMERS__PEPPER": "s3cr3t-s3cr3t-s3cr3t\u200b"},
        secrets=["s3cr3t"],
        want={"starts": None, "no_traceback": True},
    )


# --- N24: finality before the first tag -----------------------------------------------------------------------------


def make_n24() -> None:
    """Depth is for nodes that do not know tags at all."""
    blocks = chained(14_000, 30, 1)
    tags = {"head": 14_029, "fin": 14_005}
    chain = {"finality": {"mode": "tag", "depth": 3}}
    latest, final = {"field": ["finality.level", "latest"]}, {"field": ["finality.level", "finalized"]}
    right = "the node knows the tag and has no such block yet: nothing above is called final"
    after = [{"reset": "n"}, {"sleep": 20}, get(14_021, "receipts/0", **latest), get(14_004, "receipts/0", **final)]
    none_yet: dict[str, Json] = {
        "N24x1-null": fault("eth_getBlockByNumber", "null", match={"final": True}),
        "N24x2-not-found": error("eth_getBlockByNumber", -32000, "finalized block not found", match={"final": True}),
        "N24x3-no-block-yet": error("eth_getBlockByNumber", -32000, "no finalized block yet", match={"final": True}),
    }
    for name, each in none_yet.items():
        play(
            name, right, blocks, [get(14_020, "receipts/0", **latest), *after], [each], chain=chain, tags=tags, settle=4
        )
    depth = {"fields": {"finality.level": "finalized", "finality.by": "depth"}}
    play(
        "N24x4-tag-unknown",
        "a node that does not know tags at all: depth is what there is",
        blocks,
        [get(14_020, "receipts/0", **depth), get(14_028, "receipts/0", **latest)],
        [
            error("eth_getBlockByNumber", -32602, "invalid argument 0: hex string without 0x prefix", match={tag: True})
            for tag in ("final", "safe")
        ],
        chain=chain,
        tags=tags,
        settle=4,
    )
    lost = [
        {**fault("eth_getBlockByNumber", "null", match={"final": True})},
        {**fault("eth_getBlockByNumber", "null", match={"safe": True})},
    ]
    play(
        "N24x5-tag-lost-later",
        "once a tag was heard, depth is over",
        blocks,
        [
            get(14_020, "receipts/0", **latest),
            {"faults": lost},
            {"sleep": 20},
            get(14_021, "receipts/0", **latest),
            get(14_004, "receipts/0", **final),
        ],
        chain=chain,
        tags=tags,
        settle=4,
    )
    play(
        "N24x6-mode-depth",
        "who chose depth has depth",
        blocks,
        [get(14_020, "receipts/0", **depth), get(14_028, "receipts/0", **latest)],
        chain={"finality": {"mode": "depth", "depth": 3}},
        tags=tags,
        settle=4,
    )


# --- N26: an error of one block that sounds like a missing method ---------------------------------------------------


def make_n26() -> None:
    """What is said about one block says nothing about the method."""
    blocks = chained(16_000, 4, 12)
    one = {"block": 16_000}
    right = "about that block alone: the others are still had in one call each"
    ask = [
        get(16_000, "receipts/0", [200, 503, 422]),
        *[get(height, "receipts/0") for height in (16_001, 16_002, 16_003)],
        calls(most={"eth_getTransactionReceipt": 14}, least={"eth_getBlockReceipts": 4}),
    ]
    words = {
        "N26x1-unsupported-type": (-32000, "unsupported transaction type 0x7e"),
        "N26x2-32603-not-available": (-32603, "block receipts are not available for this block"),
        "N26x3-32004-before-height": (-32004, "this method is not supported for blocks before 17000"),
        "N26x4-32001-not-found": (-32001, "resource not available"),
        "N26x5-32601-pruned": (-32601, "receipts of pruned blocks are not available"),
        "N26x6-history": (-32000, "historical state is not available"),
    }
    for name, (code, message) in words.items():
        play(name, right, blocks, ask, [error("eth_getBlockReceipts", code, message, match=one)])
    play(
        "N26x7-http-501",
        right,
        blocks,
        ask,
        [status("eth_getBlockReceipts", 501, rpc_error(-32601, "not implemented for this block range"), match=one)],
    )
    forms = {"hash", "number", "object"}
    for number, (form, code, message) in enumerate(
        (
            ("number", -32602, "invalid argument 0: hex number > 64 bits"),
            ("object", -32602, "invalid params: expected an object"),
            ("hash", -32602, "invalid argument 0: json: cannot unmarshal hex string into Go value of type common.Hash"),
            ("number", -32000, "invalid block number"),
            ("object", -32700, "data did not match any variant"),
        ),
        start=8,
    ):
        play(
            f"N26x{number:x}-only-{form}-{-code}",
            "asked in the wrong form, it is asked in the others, and the form is learned",
            blocks,
            [
                *[get(16_000 + at, "receipts/0") for at in range(4)],
                calls(most={"eth_getTransactionReceipt": 0, "eth_getBlockReceipts": 8}),
            ],
            [error("eth_getBlockReceipts", code, message, match={"form": each}) for each in sorted(forms - {form})],
        )


# --- N30: none where the hash of a block belongs --------------------------------------------------------------------


def make_n30() -> None:
    """Zero, null, absent and 0x are four spellings of none."""
    right = "none names no block, in whichever of its spellings, and the root tells"
    honest = mixed(30_000)
    log = honest["receipts"][2]
    cases = {
        "N30x1-log-null": in_logs("blockHash", None),
        "N30x2-log-absent": in_logs("blockHash", KeyError),
        "N30x3-log-0x": in_logs("blockHash", "0x"),
        "N30x4-receipt-null": in_receipts("blockHash", None),
        "N30x5-receipt-absent": in_receipts("blockHash", KeyError),
        "N30x6-receipt-number-null": in_receipts("blockNumber", None),
        "N30x7-receipt-number-zero": in_receipts("blockNumber", "0x0"),
        "N30x8-log-number-zero": in_logs("blockNumber", "0x0"),
        "N30x9-log-number-absent": in_logs("blockNumber", KeyError),
        "N30xa-transaction-hash-zero": in_transactions("blockHash", ZERO_HASH),
        "N30xb-transaction-hash-null": in_transactions("blockHash", None),
        "N30xc-transaction-number-null": in_transactions("blockNumber", None),
        "N30xd-one-log-alone": lambda record: record["receipts"][2]["logs"][0].update(blockHash=ZERO_HASH),
        "N30xe-removed-null": in_logs("removed", None),
    }
    ask = [*served(30_000), get_by_hash("logs", log["transactionHash"] + "/0")]
    for name, change in cases.items():
        play(name, right, [altered(honest, change)], ask)
    for name, change in (
        ("N30xf-singly-null", in_receipts("blockHash", None)),
        ("N30xg-singly-log-absent", in_logs("blockHash", KeyError)),
    ):
        play(name, right, [altered(honest, change)], ask, [error("eth_getBlockReceipts", **MISSING)])
    for name, change in (
        ("N30xh-receipts-of-another", in_receipts("blockHash", OTHER_HASH)),
        ("N30xi-logs-of-another", in_logs("blockHash", OTHER_HASH)),
    ):
        play(
            name,
            "another block is named: refused for now (or the root tells); never lasting",
            [altered(honest, change)],
            [get(30_000, "receipts/2", [200, 503]), get(30_000, "transactions/2", [200, 503])],
        )


# --- N31: the block method is wrong ---------------------------------------------------------------------------------


def make_n31() -> None:
    """Where the block method is wrong for a block, the single receipts may be right."""
    right = "the receipts one by one meet the root"
    honest, other = mixed(31_000), mixed(31_001)

    def wrong(mode: str, **args: Json) -> Json:
        return fault("eth_getBlockReceipts", mode, match={"block": 31_000}, **args)

    cases = {
        "N31x1-status": wrong("mutate", path=[4, "status"], value="0x0"),
        "N31x2-one-short": wrong("mutate", path=[6], delete=True),
        "N31x3-empty": wrong("result", value=[]),
        "N31x4-null": wrong("null"),
        "N31x5-of-another-block": wrong("result", value=other["receipts"]),
        "N31x6-not-a-list": wrong("result", value={"receipts": []}),
        "N31x7-without-logs": wrong("mutate", many=[{"path": [at, "logs"], "value": []} for at in range(7)]),
        "N31x8-one-null": wrong("mutate", path=[3], value=None),
        "N31x9-one-more": wrong("mutate", path=[7], insert=True, value=other["receipts"][0]),
        "N31xa-log-data": wrong("mutate", path=[2, "logs", 0, "data"], value="0x1234"),
        "N31xb-error": error("eth_getBlockReceipts", -32603, "internal error", match={"block": 31_000}),
    }
    for name, each in cases.items():
        play(name, right, [honest], served(31_000), [each])
    play(
        "N31xc-gas-of-its-own",
        "no field of the trie: nothing is wrong, and nothing is asked twice",
        [honest],
        [*served(31_000), calls(most={"eth_getTransactionReceipt": 0})],
        [wrong("mutate", path=[2, "gasUsed"], value="0x1")],
    )
    play(
        "N31xd-two-nodes",
        "the other node has it right",
        [honest],
        served(31_000),
        [wrong("mutate", path=[4, "status"], value="0x0"), fault("eth_getTransactionReceipt", "null")],
        second=[honest],
    )


# --- N32: indexes ---------------------------------------------------------------------------------------------------


def make_n32() -> None:
    """The order that meets the root gives the indexes."""
    right = "the order that meets the root gives the indexes"
    honest = mixed(32_000)
    last = len(honest["receipts"]) - 1
    cases: dict[str, list[Change]] = {
        "N32x1-absent": [in_transactions("transactionIndex", KeyError)],
        "N32x2-null": [in_transactions("transactionIndex", None)],
        "N32x3-0x": [in_transactions("transactionIndex", "0x")],
        "N32x4-backwards": [in_transactions("transactionIndex", lambda at, _: hex(last - at))],
        "N32x5-all-five": [in_transactions("transactionIndex", "0x5")],
        "N32x6-receipts-all-zero": [in_receipts("transactionIndex", "0x0")],
        "N32x7-receipts-from-one": [in_receipts("transactionIndex", lambda at, _: hex(at + 1))],
        "N32x8-receipts-absent": [in_receipts("transactionIndex", KeyError)],
        "N32x9-receipts-null": [in_receipts("transactionIndex", None)],
        "N32xa-both-zero": [in_transactions("transactionIndex", "0x0"), in_receipts("transactionIndex", "0x0")],
        "N32xb-both-absent": [in_transactions("transactionIndex", KeyError), in_receipts("transactionIndex", KeyError)],
        "N32xc-logs-zero": [in_logs("transactionIndex", "0x0")],
        "N32xd-log-index-in-receipt": [in_logs("logIndex", lambda at, _: hex(at))],
        "N32xe-log-index-zero": [in_logs("logIndex", "0x0")],
        "N32xf-log-index-absent": [in_logs("logIndex", KeyError)],
        "N32xg-numbers": [in_transactions("transactionIndex", lambda at, _: at)],
        "N32xh-two-exchanged": [in_transactions("transactionIndex", lambda at, _: hex({2: 3, 3: 2}.get(at, at)))],
        "N32xi-huge": [in_receipts("transactionIndex", "0x" + "ff" * 40)],
    }
    tx_hash = honest["receipts"][2]["transactionHash"]
    ask = [*served(32_000), get_by_hash("receipts", tx_hash), get_by_hash("logs", tx_hash + "/0")]
    for name, changes in cases.items():
        play(name, right, [altered(honest, *changes)], ask)
    play(
        "N32xj-list-shuffled",
        "the indexes say the order that meets the root",
        [altered(honest, lambda record: record["block"]["transactions"].reverse())],
        ask,
    )
    play(
        "N32xk-singly",
        right,
        [altered(honest, in_receipts("transactionIndex", "0x0"), in_transactions("transactionIndex", "0x0"))],
        ask,
        [error("eth_getBlockReceipts", **MISSING)],
    )


# --- N33: miners ----------------------------------------------------------------------------------------------------


def make_n33() -> None:
    """The header has zero where a node shows the signer."""
    right = "with the zero address in its place the header hashes to the hash"
    clique = mixed(33_000, difficulty="0x2", mixHash=ZERO_HASH, extraData="0x" + "00" * 32 + "ab" * 65)
    real = mixed(33_000, miner="0x" + "ab" * 20)
    signer = "0x" + "5e" * 20
    cases = {
        "N33x1-signer": altered(clique, in_header("miner", signer)),
        "N33x2-null": altered(clique, in_header("miner", None)),
        "N33x3-absent": altered(clique, in_header("miner", KeyError)),
        "N33x4-0x": altered(clique, in_header("miner", "0x")),
        "N33x5-author-and-no-miner": altered(real, in_header("author", "0x" + "ab" * 20), in_header("miner", KeyError)),
        "N33x6-mixed-case": altered(real, in_header("miner", "0x" + "aB" * 20)),
        "N33x7-difficulty-one": altered(mixed(33_000, difficulty="0x1"), in_header("miner", signer)),
        "N33x8-with-nonce-of-a-vote": altered(
            mixed(33_000, difficulty="0x2", nonce="0xffffffffffffffff"), in_header("miner", signer)
        ),
    }
    for name, record in cases.items():
        play(name, right, [record], [get(33_000, "transactions/0"), get(33_000, "receipts/2")])
    play(
        "N33x9-another-miner",
        "neither it nor zero meets the hash: refused for now, and never for good",
        [altered(real, in_header("miner", signer))],
        [get(33_000, "transactions/0", 503, retriable=True), get(33_000, "receipts/2", 503, retriable=True)],
    )


# --- N34: one trie without the other --------------------------------------------------------------------------------


def make_n34() -> None:
    """What cannot be read of one trie does not take the proofs of the other."""
    honest = mixed(34_000)
    receipts_hold = "the receipts' root is met without a transaction: served; the transactions are refused"
    transactions_hold = "the transactions' root is met without a receipt: served; the receipts are not had now"
    cases: dict[str, Change] = {
        "N34x1-gas-absent": in_transaction(2, "gas", KeyError),
        "N34x2-to-unreadable": in_transaction(3, "to", "contract"),
        "N34x3-input-odd": in_transaction(1, "input", "0xabc"),
        "N34x4-value-negative": in_transaction(0, "value", "-1"),
        "N34x5-value-in-words": in_transaction(0, "value", "1.5e18"),
        "N34x6-entry-null": lambda record: record["block"]["transactions"].__setitem__(3, None),
        "N34x7-access-list-entry": in_transaction(2, "accessList", [{"address": "0x" + "22" * 20}]),
        "N34x8-signature-of-another": in_transaction(2, "s", "0x1234"),
        "N34x9-authorizations-absent": in_transaction(6, "authorizationList", KeyError),
        "N34xa-value-list": in_transaction(4, "value", []),
    }
    blocks = ["eth_getBlockByNumber", "eth_getBlockByHash"]
    for name, change in cases.items():
        told = altered(honest, change)
        whole = fault(
            blocks, "mutate", match={"full": True}, path=["transactions"], value=told["block"]["transactions"]
        )
        lasting = [get(34_000, "transactions/2", REFUSED)]
        play(name, receipts_hold, [honest], [*lasting, *served(34_000, 7, "receipts")], [whole])
    ways = {
        "N34xb-hashes-only": [each["hash"] for each in honest["block"]["transactions"]],
        "N34xc-one-missing": honest["block"]["transactions"][:-1],
        "N34xd-none": [],
        "N34xe-null": None,
    }
    for name, value in ways.items():
        play(
            name,
            receipts_hold,
            [honest],
            [get(34_000, "transactions/2", REFUSED), *served(34_000, 6, "receipts")],
            [fault(blocks, "mutate", match={"full": True}, path=["transactions"], value=value)],
        )
    single = fault("eth_getTransactionReceipt", "null")

    def receipts(mode: str, **args: Json) -> Json:
        return fault(["eth_getBlockReceipts"], mode, **args)

    wrong = {
        "N34xf-receipts-null": [receipts("null"), single],
        "N34xg-receipts-empty": [receipts("result", value=[]), single],
        "N34xh-receipts-error": [
            error(["eth_getBlockReceipts", "eth_getTransactionReceipt"], -32000, "pruned history unavailable")
        ],
        "N34xi-topic-unreadable": [receipts("mutate", path=[2, "logs", 0, "topics"], value="0xabc"), single],
        "N34xj-receipt-null": [receipts("mutate", path=[0], value=None), single],
        "N34xk-cumulative-absent": [receipts("mutate", path=[5, "cumulativeGasUsed"], delete=True), single],
        "N34xl-status-in-words": [receipts("mutate", path=[5, "status"], value="success"), single],
        "N34xm-receipts-text": [receipts("result", value="none"), single],
    }
    for name, faults in wrong.items():
        play(
            name,
            transactions_hold,
            [honest],
            [*served(34_000, 3, "transactions"), get(34_000, "receipts/2", [422, 503])],
            faults,
        )


# --- N35: wrong for a moment ----------------------------------------------------------------------------------------


def make_n35() -> None:
    """Who waits as long as Retry-After said is served."""
    right = "at once, or a retriable refusal whose Retry-After is true: who waits for it is served"
    honest, other = mixed(35_000), mixed(35_001)
    blocks = ["eth_getBlockByNumber", "eth_getBlockByHash"]
    full = {"full": True}
    cases = {
        "N35x1-header-once": fault(blocks, "mutate", match=full, count=1, path=["gasUsed"], value="0x1"),
        "N35x2-no-transactions-once": fault(blocks, "mutate", match=full, count=1, path=["transactions"], value=[]),
        "N35x3-receipts-null-once": fault("eth_getBlockReceipts", "null", count=1),
        "N35x4-receipts-of-another-once": fault("eth_getBlockReceipts", "result", count=1, value=other["receipts"]),
        "N35x5-receipts-truncated-once": fault("eth_getBlockReceipts", "mutate", count=1, path=[6], delete=True),
        "N35x6-block-null-once": fault(blocks, "null", match=full, count=1),
        "N35x7-receipts-twice": fault("eth_getBlockReceipts", "mutate", count=2, path=[1, "status"], value="0x0"),
    }
    for name, each in cases.items():
        play(
            name,
            right,
            [honest],
            [
                get(35_000, "receipts/0", [200, 404, 503] if "block-null" in name else [200, 503]),
                {"sleep": 4},
                get(35_000, "receipts/0"),
                {"sleep": 8},
                get(35_000, "transactions/0"),
            ],
            [each],
        )
    play(
        "N35x8-unknown-type-once",
        "one witness near the head: whatever it is called at first, it is not kept for longer than a short while",
        [honest],
        [
            get(35_000, "transactions/2", [200, 422, 503]),
            {"sleep": 20},
            get(35_000, "transactions/2"),
            get(35_000, "receipts/2"),
        ],
        [fault(blocks, "mutate", match=full, count=1, path=["transactions", 2, "type"], value="0x6f")],
    )


# --- more of each, two nodes, other families, several at once --------------------------------------------------------


def _op_block(height: int) -> Json:
    return make_block(height, bytes(32), [op_deposit(1), op_deposit(2), *every_type(10)[:5]])


OP: Json = {"chain_id": 10, "chain": {"family": "op-stack"}}


def make_n_more_of_nodes() -> None:
    """What nodes say: of plans, of limits, of methods."""
    first = N01[0]["block"]["transactions"][0]["hash"]
    old = status(
        [*BLOCK_METHODS, "eth_getTransactionByHash", "eth_getTransactionReceipt"],
        403,
        rpc_error(-32602, "Archive requests require a personal token."),
        match=OLD,
    )
    play(
        "N01xa-by-transaction-hash",
        STAYS + "; and what a node may not tell is not said to be absent",
        N01,
        [
            get_by_hash("receipts", first, REFUSED),
            get(1001, "receipts/0"),
            get_by_hash("receipts", N01[2]["block"]["transactions"][1]["hash"]),
            calls(most={"eth_getTransactionReceipt": 2}),
        ],
        [old],
    )
    _plan(
        "N01xb-400",
        status(BLOCK_METHODS, 400, rpc_error(-32000, "archive requests are not in your current plan"), match=OLD),
    )
    plans = [{**old, "path": f"/{node}"} for node in ("n", "m")]
    play(
        "N01xc-both-nodes",
        STAYS,
        N01,
        [get(1000, "receipts/0", REFUSED), get(1001, "receipts/0"), get(1002, "receipts/0"), get(1003, "receipts/1")],
        plans,
        second=N01,
    )
    few = calls(most={"eth_getTransactionReceipt": 0, "eth_getBlockReceipts": 6})
    play(
        "N02xa-429-with-32011",
        PAUSE,
        N02,
        [get(2000, "receipts/0", [200, 503]), few],
        [status("eth_getBlockReceipts", 429, rpc_error(-32011, "request limit reached"), count=2)],
    )
    play(
        "N02xb-503-no-backends",
        PAUSE,
        N02,
        [get(2000, "receipts/0", [200, 503]), few],
        [status("eth_getBlockReceipts", 503, rpc_error(-32011, "no backends available for method"), count=2)],
    )
    play(
        "N02xc-blocks-limited",
        "as for receipts, so for blocks",
        N02,
        [get(2000, "receipts/0", [200, 503]), calls(most={"eth_getTransactionReceipt": 0})],
        [
            error(
                ["eth_getBlockByNumber", "eth_getBlockByHash"],
                -32011,
                "request limit reached",
                match={"full": True},
                count=2,
            )
        ],
    )
    play(
        "N02xd-two-nodes",
        "the other node has no limit",
        N02,
        [get(2000, "receipts/0"), get(2001, "receipts/0"), few],
        [error("eth_getBlockReceipts", -32011, "request limit reached")],
        second=N02,
    )
    honest = mixed(31_000)
    wrong = fault("eth_getBlockReceipts", "mutate", many=[{"path": [4, "status"], "value": "0x0"}])
    play(
        "N31xe-one-single-missing",
        "neither way gives all receipts: refused for now, while the transactions are proven",
        [honest],
        [get(31_000, "receipts/0", 503, retriable=True), get(31_000, "transactions/0")],
        [wrong, fault("eth_getTransactionReceipt", "null")],
    )
    play(
        "N31xf-http-500",
        "a fault of the server, not of the block: the receipts one by one, or a refusal that may be retried",
        [honest],
        [get(31_000, "receipts/0", [200, 503]), get(31_000, "receipts/4", [200, 503])],
        [status("eth_getBlockReceipts", 500, "internal server error", "text/plain")],
    )
    play(
        "N31xg-half-a-list",
        "the receipts one by one meet the root",
        [honest],
        served(31_000),
        [fault("eth_getBlockReceipts", "result", value=honest["receipts"][:3])],
    )
    play(
        "N31xh-list-doubled",
        "the receipts one by one meet the root",
        [honest],
        served(31_000),
        [fault("eth_getBlockReceipts", "result", value=[each for each in honest["receipts"] for _ in range(2)])],
    )
    blocks = chained(16_000, 4, 12)
    play(
        "N26xd-two-nodes",
        "about that block alone: the other node has it, and the first is still asked for the others",
        blocks,
        [*[get(16_000 + at, "receipts/0") for at in range(4)], calls(most={"eth_getTransactionReceipt": 14})],
        [error("eth_getBlockReceipts", -32000, "transaction type not supported", match={"block": 16_000})],
        second=blocks,
    )
    play(
        "N26xe-missing-for-a-moment",
        "what was switched off is tried again: most blocks are had in one call each",
        blocks,
        [
            get(16_000, "receipts/0"),
            *[step for at in (1, 2, 3) for step in ({"sleep": 20}, get(16_000 + at, "receipts/0"))],
            calls(least={"eth_getBlockReceipts": 2}),
        ],
        [error("eth_getBlockReceipts", **MISSING, count=1)],
    )


def make_n_more_of_data() -> None:
    """What nodes write in the place of data: in other families, and several at once."""
    op, honest = _op_block(4000), mixed(4000)
    placeholders = [
        in_receipts("logsBloom", ZERO_BLOOM),
        in_receipts("type", "0x0"),
        in_receipts("transactionIndex", "0x0"),
        in_receipts("blockHash", ZERO_HASH),
        in_receipts("blockNumber", None),
        in_receipts("transactionHash", ZERO_HASH),
        in_logs("blockHash", ZERO_HASH),
        in_logs("transactionHash", None),
        in_logs("transactionIndex", "0x0"),
        in_logs("logIndex", "0x0"),
        in_transactions("transactionIndex", "0x0"),
        in_transactions("blockHash", None),
    ]
    in_families: dict[str, list[Change]] = {
        "N04xe-op-stack": [in_receipts("logsBloom", ZERO_BLOOM)],
        "N05xd-op-stack": [in_receipts("type", "0x2")],
        "N12xe-op-stack": [in_receipts("transactionHash", None)],
        "N30xj-op-stack": [in_logs("blockHash", ZERO_HASH), in_receipts("blockHash", None)],
        "N32xl-op-stack": [in_receipts("transactionIndex", "0x0"), in_transactions("transactionIndex", "0x0")],
        "N30xk-all-at-once-op-stack": placeholders,
    }
    for name, changes in in_families.items():
        play(name, "as under ethereum: the roots tell", [altered(op, *changes)], served(4000), **OP)
    play("N30xl-all-at-once", "each is none, and the roots tell", [altered(honest, *placeholders)], served(4000))
    play(
        "N30xm-transactions-of-another",
        "another block is named: refused for now (or the root tells); never lasting",
        [altered(honest, in_transactions("blockHash", OTHER_HASH))],
        [get(4000, "receipts/2", [200, 503]), get(4000, "transactions/2", [200, 503])],
    )
    blocks = ["eth_getBlockByNumber", "eth_getBlockByHash"]
    absent = [{"path": ["transactions", at, "hash"], "delete": True} for at in range(7)]
    for name, record, more, faults in (
        ("N06x9-op-stack", op, OP, []),
        ("N06xa-singly", honest, {}, [error("eth_getBlockReceipts", **MISSING)]),
    ):
        play(
            name,
            "the hash is keccak of the envelope, and the root commits to it",
            [record],
            served(4000),
            [fault(blocks, "mutate", match={"full": True}, many=absent), *faults],
            **more,
        )
    shuffled = [lambda record: record["receipts"].reverse()]
    orders: dict[str, list[Change]] = {
        "N12xf-no-hash-no-index": [in_receipts("transactionHash", None), in_receipts("transactionIndex", None)],
        "N12xg-reversed-without-index": [*shuffled, in_receipts("transactionIndex", KeyError)],
        "N12xh-reversed-all-zero": [*shuffled, in_receipts("transactionIndex", "0x0")],
        "N12xi-reversed-without-hash": [*shuffled, in_receipts("transactionHash", None)],
    }
    for name, changes in orders.items():
        play(name, "what is told of the order suffices, and the root tells", [altered(honest, *changes)], served(4000))
    sealed = mixed(8000, mixHash=ZERO_HASH, difficulty="0x2")
    several = altered(
        sealed,
        in_header("nonce", "0x0"),
        in_header("mixHash", None),
        in_header("miner", None),
        in_header("parentHash", "0x"),
    )
    play(
        "N08xg-several-at-once",
        "in the forms that they have in the header, the header hashes to the hash",
        [several],
        [get(8000, "transactions/0"), get(8000, "receipts/2")],
    )
    play(
        "N08xh-numbers",
        "in the forms that they have in the header, the header hashes to the hash",
        [
            altered(
                sealed,
                *[
                    in_header(name, int(sealed["block"][name], 16))
                    for name in ("gasUsed", "timestamp", "gasLimit", "number", "baseFeePerGas", "difficulty")
                ],
            )
        ],
        [get(8000, "transactions/0"), get(8000, "receipts/2")],
    )
    play(
        "N33xa-signer-and-short-nonce",
        "with zero in its place, and the nonce at its length, the header hashes to the hash",
        [
            altered(
                mixed(33_000, difficulty="0x2", mixHash=ZERO_HASH),
                in_header("miner", "0x" + "5e" * 20),
                in_header("nonce", "0x0"),
            )
        ],
        [get(33_000, "transactions/0"), get(33_000, "receipts/2")],
    )
    strange = _with_strange(3000, b"\x80" + rlp.encode([b"\x01" * 40]), "0x80", "0x0", b"")
    play(
        "N03x8-op-stack",
        "no codec has the type, which lasts; the receipts need no transaction: their root is met",
        [strange],
        [get(3000, "transactions/1", 422, code="UnsupportedTransactionType"), get(3000, "receipts/1")],
        chain={"family": "op-stack"},
    )
    play(
        "N11xa-deposits-under-ethereum",
        "no codec of this family has the type; the receipts need none",
        [op],
        [
            get(4000, "transactions/0", 422, code="UnsupportedTransactionType", retriable=False),
            get(4000, "receipts/3"),
            get(4000, "receipts/0"),
        ],
        chain_id=10,
    )


def make_n_more_of_two() -> None:
    """Two nodes that each have a part of it right."""
    honest = mixed(34_000)
    unreadable = altered(honest, in_transaction(2, "gas", None), in_transaction(5, "to", "none"))
    without_receipts = altered(honest, in_receipt(2, "cumulativeGasUsed", "none"))
    play(
        "N34xn-other-node-has-both",
        "the other node has all of it",
        [unreadable],
        served(34_000),
        second=[honest],
    )
    play(
        "N34xo-each-has-one",
        "the one has the receipts right, the other the transactions: each trie that is met is served",
        [unreadable],
        [*served(34_000, 3, "transactions"), *served(34_000, 3, "receipts")],
        second=[without_receipts],
    )
    play(
        "N34xp-neither-trie",
        "neither root is met: refused for now, and nothing breaks",
        [altered(unreadable, in_receipt(2, "cumulativeGasUsed", "none"))],
        [get(34_000, "transactions/2", REFUSED), get(34_000, "receipts/2", 503, retriable=True)],
    )
    wrong_types = altered(mixed(5000), in_receipts("type", "0x2"))
    play(
        "N05xe-two-nodes",
        "the type is in the transaction: the first node's answer is proven, or the other's is",
        [wrong_types],
        served(5000),
        second=[mixed(5000)],
    )
    moment = mixed(35_000)
    once = fault("eth_getBlockReceipts", "mutate", count=1, many=[{"path": [2, "logs"], "value": []}])
    later = [
        get(35_000, "receipts/0", [200, 503]),
        {"sleep": 4},
        get(35_000, "receipts/0"),
        {"sleep": 8},
        get(35_000, "receipts/2"),
    ]
    right = "at once, or a retriable refusal whose Retry-After is true: who waits for it is served"
    play("N35x9-both-nodes-once", right, [moment], later, [once, {**once, "path": "/m"}], second=[moment])
    single = fault(
        "eth_getTransactionReceipt", "mutate", count=2, many=[{"path": ["cumulativeGasUsed"], "value": "0x1"}]
    )
    play("N35xa-singly", right, [moment], later, [error("eth_getBlockReceipts", **MISSING), single])


def make_all() -> dict[str, Json]:
    """Every situation of ours by name."""
    if not MADE:
        for name, maker in sorted(globals().items()):
            if name.startswith("make_n"):
                maker()
    return MADE


def stored(told: Json) -> bytes:
    """The content of its file."""
    text = json.dumps(told, indent=None if "upstream" in told else 2)
    return gzip.compress(text.encode(), 9, mtime=0) if "upstream" in told else text.encode() + b"\n"


def file_name(name: str, told: Json) -> str:
    """The name of its file."""
    return f"{name}.json.gz" if "upstream" in told else f"{name}.json"


if __name__ == "__main__":
    OURS.mkdir(exist_ok=True)
    for made_name, made in make_all().items():
        (OURS / file_name(made_name, made)).write_bytes(stored(made))
