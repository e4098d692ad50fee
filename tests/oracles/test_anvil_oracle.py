"""The real node does what the tests ask of it: every type in one block, mining on demand, reorgs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracles import signing
from tests.oracles.anvil import CHAIN_ID, Anvil, RpcError, running_anvil
from tests.oracles.signing import Account, Call


@pytest.fixture(scope="module")
def anvil() -> Iterator[Anvil]:
    with running_anvil() as node:
        yield node


def test_one_block_of_every_type_with_creates_a_revert_and_logs(anvil: Anvil) -> None:
    height = anvil.mine_every_type(blobs=True)
    transactions, receipts = anvil.block(height)["transactions"], anvil.receipts(height)
    assert {transaction["type"] for transaction in transactions} == {"0x0", "0x1", "0x2", "0x3", "0x4"}
    assert {receipt["status"] for receipt in receipts} == {"0x0", "0x1"}
    assert sum(transaction["to"] is None for transaction in transactions) >= 2
    assert sum(len(receipt["logs"]) for receipt in receipts) >= 6
    assert {transaction["v"] for transaction in transactions if transaction["type"] == "0x0"} & {"0x1b", "0x1c"}


def test_nothing_is_mined_before_it_is_told(anvil: Anvil) -> None:
    account = Account.numbered(9)
    anvil.fund(account)
    before = anvil.height()
    tx_hash = anvil.send(signing.dynamic_fee(account, Call(b"\x11" * 20), CHAIN_ID))
    assert anvil.height() == before
    assert anvil.rpc("eth_getTransactionByHash", tx_hash)["blockNumber"] is None
    assert anvil.mine(3) == before + 3
    assert anvil.rpc("eth_getTransactionByHash", tx_hash)["blockNumber"] == hex(before + 1)


def test_a_reorg_replaces_blocks_and_can_carry_a_transaction_over(anvil: Anvil) -> None:
    account = Account.numbered(10)
    anvil.fund(account)
    raw = signing.dynamic_fee(account, Call(b"\x11" * 20), CHAIN_ID)
    tx_hash = anvil.send(raw)
    height = anvil.mine()
    anvil.mine()
    old = anvil.block(height)["hash"]
    anvil.reorg(2, [(raw, 1)])
    assert anvil.height() == height + 1
    assert anvil.block(height)["hash"] != old
    assert anvil.block(height)["transactions"] == []
    assert anvil.rpc("eth_getTransactionByHash", tx_hash)["blockNumber"] == hex(height + 1)


def test_an_error_of_the_node_is_an_error_here(anvil: Anvil) -> None:
    with pytest.raises(RpcError):
        anvil.rpc("no_such_method")
