"""The codec: what is a response, what is none, and what an error means."""

from __future__ import annotations

import json

import pytest

from app.upstream import jsonrpc
from app.upstream.faults import CallFailed, Fault


def fault_of(body: bytes, call_id: int = 7) -> Fault:
    with pytest.raises(CallFailed) as caught:
        jsonrpc.decode_response(body, call_id)
    return caught.value.fault


def test_a_request_is_one_object_with_the_parameters_as_given() -> None:
    sent = json.loads(jsonrpc.encode_request(7, "eth_getBlockByNumber", ["0x0", True]))
    assert sent == {"jsonrpc": "2.0", "id": 7, "method": "eth_getBlockByNumber", "params": ["0x0", True]}


def test_a_batch_counts_its_ids_up() -> None:
    sent = json.loads(jsonrpc.encode_batch(7, [("a", []), ("b", [{"blockHash": "0x"}])]))
    assert [call["id"] for call in sent] == [7, 8]
    assert sent[1]["params"] == [{"blockHash": "0x"}]


@pytest.mark.parametrize("result", ["null", "[]", '{"a": 1e400}', '"0x1"', '[ 1 , {"b":"\\u00e9"} ]'])
def test_a_result_keeps_its_text(result: str) -> None:
    body = f'{{"jsonrpc":"2.0","id":7,"result":{result}}}'.encode()
    assert jsonrpc.decode_response(body, 7) == result.encode()


def test_a_null_error_beside_a_result_is_none() -> None:
    assert jsonrpc.decode_response(b'{"id":7,"error":null,"result":1}', 7) == b"1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   \n",
        b"invalid host specified",
        b"<html><body>rate limited</body></html>",
        b"{}",
        b'{"result":"0x1"}',
        b'{"jsonrpc":"2.0","id":8,"result":"0x1"}',
        b'{"jsonrpc":"2.0","id":"other","result":"0x1"}',
        b'{"jsonrpc":"2.0","id":null,"result":"0x1"}',
        b'[{"jsonrpc":"2.0","id":7,"result":"0x1"}]',
        b'{"jsonrpc":"2.0","id":7}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":',
        b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"jsonrpc":"2.0","id":1' + b"0" * 5000 + b',"result":1}',
        b'{"jsonrpc":"2.0","id":7,"result":NaN}',
        b'{"jsonrpc":"2.0","id":8,"error":{"code":-32000,"message":"of another call"}}',
        b"\xff\xfe\x00",
    ],
)
def test_B27_what_is_no_response_is_a_typed_failure(body: bytes) -> None:
    assert fault_of(body) is Fault.MALFORMED


def test_duplicate_keys_and_huge_integers_are_read_in_bounded_time() -> None:
    body = b'{"id":1,"result":' + b"9" * 200_000 + b',"id":7,"id":7}'
    assert jsonrpc.decode_response(body, 7) == b"9" * 200_000


def test_an_excerpt_is_bounded_printable_and_on_one_line() -> None:
    words = jsonrpc.excerpt(b"\x00\x1b[31m" + b"line\r\n\tline \xf0\x9f\x92\xa9 " * 10_000)
    assert len(words) <= 4096
    assert words.isascii()
    assert words.isprintable()


def test_an_error_says_in_our_words_what_it_means_and_keeps_theirs_for_logs() -> None:
    body = b'{"id":7,"error":{"code":-32000,"message":"header not found at https://host/KEY"}}'
    with pytest.raises(CallFailed) as caught:
        jsonrpc.decode_response(body, 7)
    assert "KEY" not in str(caught.value)
    assert "-32000" in caught.value.message
    assert "KEY" in caught.value.excerpt


NOT_FOUND = [
    (-32000, "header not found"),
    (-32000, "unknown block"),
    (-32001, "Resource not found."),
    (-32000, "block not found"),
    (-32602, "Unknown block number"),
    (-32000, "block with number 17 not found"),
    (39001, "Unknown block"),
    (-32000, "header for hash not found"),
    (-32000, "could not find block"),
    (-32603, "Block doesn't exist"),
    (-32000, "cannot query unfinalized data"),
    (-32000, "requested block number is greater than latest"),
    (-32000, "One of the blocks specified in filter (fromBlock, toBlock or blockHash) cannot be found"),
    (26, "Unknown block"),
]
NOT_SUPPORTED = [
    (-32601, "the method eth_getBlockReceipts does not exist/is not available"),
    (-32601, "Method not found"),
    (-32004, "Method not supported"),
    (-32000, "method handler: eth_getBlockReceipts is not implemented"),
    (-32000, "unsupported method: eth_getBlockReceipts"),
    (-32001, "rpc method is not whitelisted"),
    (-32603, "eth_getBlockReceipts is not available on the Free tier"),
    (-32600, "Method not allowed"),
]
LIMITED = [
    (-32005, "daily request count exceeded, request rate limited"),
    (-32005, "Limit exceeded"),
    (429, "Your app has exceeded its compute units per second capacity."),
    (-32029, "Too Many Requests"),
    (-32000, "rate limit exceeded"),
    (-32007, "50/second request limit reached"),
    (-32097, "slow down"),
    (None, "Project ID quota used up"),
    (-32603, "RESOURCE_EXHAUSTED"),
    (-32001, "you are being throttled"),
    (-32011, "request limit reached"),
    (-32010, "rate limit of 25 requests per second"),
    (-32008, "Too many concurrent requests"),
    (-32602, "you have reached your daily limit"),
    (-32601, "quota exceeded for this method"),
    (-32003, "exceeded the rate limit"),
]
TOO_BIG = [
    (-32008, "Response is too big"),
    (-32003, "response too large"),
    (-32600, "batch too large"),
    (-32010, "The batch request was too large"),
    (-32005, "Batched requests are not supported by this server"),
    (-32000, "Batch size is too large"),
    (-32602, "Query returned more than 10000 results"),
    (-32005, "response size limit exceeded"),
    (-32011, "The batch response was too large"),
    (-32011, ""),
    (-32005, "Too many requests in batch"),
]
PRUNED = [
    (4444, "pruned history unavailable"),
    (4444, ""),
    (-32000, "missing trie node 0a1b (path )"),
    (-32602, "history for this block has been pruned"),
    (-32000, "state is not available, node is not an archive"),
    (-32000, "required historical state unavailable"),
    (-32602, "Archive requests require a personal token. Get one at https://rpc.example.org"),
    (-32002, "Archive, Debug and Trace requests are not available on your current plan."),
    (-32000, "archive data needs the Growth plan"),
    (-32002, "Archive data is not available on this node"),
    (-32001, "upgrade your plan for blocks that old"),
]
UNAVAILABLE = [
    (-32001, "all nodes failed"),
    (-32002, "request timed out"),
    (-32000, "service temporarily unavailable"),
    (503, "no"),
    (-32603, "backend overloaded, please try again"),
    (-32011, "no backends available for method"),
    (-32601, "no backend is currently healthy to serve traffic"),
    (-32000, "no healthy nodes"),
    (-32010, "bad gateway"),
]
NOT_SERVED = [
    (-32000, "transaction type not supported"),
    (-32603, "unsupported transaction type 0x7e"),
    (-32000, "method handler failed: transaction type not supported"),
    (-32000, "pending blocks are not supported"),
    (-32000, "receipts are not available on this shard"),
    (-32004, "this method is not supported for blocks before 17000"),
    (-32601, "not implemented for this block range"),
]
INVALID = [
    (-32602, "invalid argument 0: hex number with leading zero digits"),
    (-32602, "hash parameter is not supported"),
    (-32000, "json: cannot unmarshal object into Go value of type string"),
    (-32602, ""),
    (-32000, "invalid block number"),
]
OTHER = [(-32000, "the database is upset"), (-32603, "Internal error"), (None, ""), (3, "execution reverted")]

TABLE = [
    *((Fault.NOT_FOUND, *row) for row in NOT_FOUND),
    *((Fault.METHOD_NOT_SUPPORTED, *row) for row in NOT_SUPPORTED),
    *((Fault.RATE_LIMITED, *row) for row in LIMITED),
    *((Fault.TOO_BIG, *row) for row in TOO_BIG),
    *((Fault.PRUNED, *row) for row in PRUNED),
    *((Fault.UNAVAILABLE, *row) for row in UNAVAILABLE),
    *((Fault.INVALID_PARAMS, *row) for row in INVALID),
    *((Fault.NOT_SERVED, *row) for row in NOT_SERVED),
    *((Fault.RPC_ERROR, *row) for row in OTHER),
]


@pytest.mark.parametrize(("fault", "code", "message"), TABLE)
def test_row_14_vendors_words_are_understood(fault: Fault, code: int | None, message: str) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "error": {"code": code, "message": message}}).encode()
    assert fault_of(body) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ("rate limited: too many requests", Fault.RATE_LIMITED),
        ({"code": "-32601", "message": None}, Fault.METHOD_NOT_SUPPORTED),
        ({"code": -32000, "message": "sorry", "data": "header not found"}, Fault.NOT_FOUND),
        ({"code": 1.5, "message": ["?"]}, Fault.RPC_ERROR),
        ([], Fault.RPC_ERROR),
        ({}, Fault.RPC_ERROR),
    ],
)
def test_errors_of_any_shape_are_errors(error: object, fault: Fault) -> None:
    assert fault_of(json.dumps({"id": 7, "error": error}).encode()) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"code": -32005.0, "message": "x"}, Fault.RATE_LIMITED),
        ({"code": 10**30, "message": "x"}, Fault.RPC_ERROR),
        ({"code": True, "message": "x"}, Fault.RPC_ERROR),
        ({"code": {"a": 1}, "message": "header not found"}, Fault.NOT_FOUND),
        ({"code": -32000, "message": "header not found" + "x" * 1_000_000}, Fault.NOT_FOUND),
        ({"code": -32000, "message": {"text": "header not found"}}, Fault.RPC_ERROR),
    ],
)
def test_errors_are_bounded_before_they_are_read(error: object, fault: Fault) -> None:
    with pytest.raises(CallFailed) as caught:
        jsonrpc.decode_response(json.dumps({"id": 7, "error": error}).encode(), 7)
    assert caught.value.fault is fault
    assert len(caught.value.excerpt) <= 4096


@pytest.mark.parametrize("nested", ["[" * 20_000 + "]" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000])
def test_an_error_of_any_depth_is_a_failure(nested: str) -> None:
    assert fault_of(f'{{"id":7,"error":{nested}}}'.encode()) in (Fault.RPC_ERROR, Fault.MALFORMED)
    assert fault_of(f'{{"id":7,"error":{{"code":-32000,"data":{nested}}}}}'.encode()) in (
        Fault.RPC_ERROR,
        Fault.MALFORMED,
    )


@pytest.mark.parametrize("given", ['"7"', "7.0", "7"])
def test_an_id_that_comes_back_in_another_form_is_that_id(given: str) -> None:
    assert jsonrpc.decode_response(f'{{"id":{given},"result":"a"}}'.encode(), 7) == b'"a"'
    assert jsonrpc.decode_batch(f'[{{"id":{given},"result":"a"}}]'.encode(), 7, 1) == [b'"a"']


@pytest.mark.parametrize("given", ['"8"', '"7x"', '"0x7"', '" 7"', "7.5", "true", '"' + "7" * 5000 + '"', "1e400"])
def test_an_id_of_another_call_is_no_answer(given: str) -> None:
    assert fault_of(f'{{"id":{given},"result":"a"}}'.encode()) is Fault.MALFORMED


@pytest.mark.parametrize("id_part", ['"id":null,', "", '"id":7,'])
def test_an_error_may_come_without_id(id_part: str) -> None:
    assert fault_of(f'{{{id_part}"error":{{"code":429,"message":"x"}}}}'.encode()) is Fault.RATE_LIMITED


def test_B28_a_batch_is_matched_by_id_in_any_order_and_what_is_missing_failed() -> None:
    body = json.dumps(
        [
            {"id": 9, "result": "c"},
            {"id": 7, "result": "a"},
            {"id": 8, "error": {"code": 429, "message": "limited"}},
            {"id": 99, "result": "of nobody"},
        ]
    ).encode()
    first, second, third, fourth = jsonrpc.decode_batch(body, 7, 4)
    assert (first, third) == (b'"a"', b'"c"')
    assert isinstance(second, CallFailed)
    assert second.fault is Fault.RATE_LIMITED
    assert isinstance(fourth, CallFailed)
    assert fourth.fault is Fault.MALFORMED


def test_B28_one_error_object_answers_the_whole_batch() -> None:
    with pytest.raises(CallFailed) as caught:
        jsonrpc.decode_batch(b' {"id":null,"error":{"code":-32600,"message":"batch too large"}}', 7, 2)
    assert caught.value.fault is Fault.TOO_BIG


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"id":7,"result":1}', b"[1]", b'"x"', b"[{]"])
def test_what_is_no_batch_is_a_typed_failure(body: bytes) -> None:
    with pytest.raises(CallFailed) as caught:
        jsonrpc.decode_batch(body, 7, 1)
    assert caught.value.fault is Fault.MALFORMED
