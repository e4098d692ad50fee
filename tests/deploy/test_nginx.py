"""The shipped nginx configuration, read and run by nginx, in front of a server that says what the test tells it to."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.api.guard import MAX_BODY_BYTES
from app.serving.listener import KEEP_ALIVE_S
from tests.acceptance.waiting import until
from tests.deploy.nginx_proxy import CONFIGURATION, Nginx, nginx_program, running_nginx, written

pytestmark = pytest.mark.xdist_group("nginx")  # one server for all of them

PROOF = "/api/v1/proofs/1/receipts/0x00"
LONG_AGO = "Sun, 06 Nov 1994 08:49:37 GMT"


@dataclass(slots=True)
class Origin:
    """A server in Copath's place: answers with what is set, and remembers what it was asked."""

    port: int = 0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    holding: threading.Event | None = None

    def tells(self, body: bytes, cache_control: str, **headers: str) -> None:
        self.status, self.body, self.asked = 200, body, []
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.headers = {"Cache-Control": cache_control, "Vary": "Accept-Encoding, Origin", **named}


@pytest.fixture(scope="module")
def _origin() -> Iterator[Origin]:
    origin = Origin()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            origin.asked.append((self.command, self.path, headers))
            if origin.holding is not None:
                origin.holding.wait(20)
            tag = origin.headers.get("ETag")
            same = tag is not None and headers.get("if-none-match") == tag
            body = b"" if same or self.command == "HEAD" else origin.body
            self.send_response(304 if same else origin.status)
            for name, value in origin.headers.items():
                self.send_header(name, value)
            self.send_header("X-Request-Id", headers.get("x-request-id", "none"))
            if not same:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_HEAD = do_GET  # noqa: N815 - names that the library looks for

        def date_time_string(self, timestamp: float | None = None) -> str:
            return LONG_AGO

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    origin.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield origin
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def _nginx(_origin: Origin) -> Iterator[Nginx]:
    with running_nginx(_origin.port) as nginx:
        yield nginx


@pytest.fixture
def origin(_origin: Origin) -> Origin:
    _origin.tells(b"{}", "no-store")
    return _origin


@pytest.fixture
def nginx(_nginx: Nginx, origin: Origin) -> Nginx:
    return _nginx


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    """A path of a native proof that no other test asks for."""
    return f"{PROOF}?of={request.node.name}".replace("[", "-").replace("]", "").replace(" ", "-")


def test_nginx_has_nothing_to_say_against_it(tmp_path: Path) -> None:
    main = written(tmp_path, "127.0.0.1:3100", "127.0.0.1:8080")
    program = nginx_program()
    judged = subprocess.run(
        [program, "-t", "-q", "-p", str(tmp_path), "-c", str(main), "-e", "stderr"], capture_output=True, text=True
    )
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


def test_its_limits_fit_those_of_the_server() -> None:
    text = CONFIGURATION.read_text()
    assert MAX_BODY_BYTES < 2100 * 1024
    assert f"larger than {MAX_BODY_BYTES} bytes" in text
    assert "keepalive_timeout 60s;" in text
    assert KEEP_ALIVE_S > 60
    assert "proxy_cache_lock_timeout 1s;" in text, "what may not be kept would be waited for in a row"


def test_what_may_be_kept_reaches_the_server_once(nginx: Nginx, origin: Origin, path: str) -> None:
    origin.tells(b'{"a":1}', "public, max-age=31536000, immutable", ETag='"a"')
    first, second = nginx.client.get(path), nginx.client.get(path)
    assert (first.status, second.status, second.body) == (200, 200, b'{"a":1}')
    assert len(origin.asked) == 1
    assert (first.headers["cache-status"], second.headers["cache-status"]) == ("nginx; fwd=uri-miss", "nginx; hit")
    assert second.headers["etag"] == '"a"'
    assert second.headers["date"] == first.headers["date"] == LONG_AGO
    unchanged = nginx.client.send("GET", path, headers={"If-None-Match": '"a"'})
    assert (unchanged.status, unchanged.body, len(origin.asked)) == (304, b"", 1)
    assert nginx.client.send("HEAD", path).headers["cache-status"] == "nginx; hit"


@pytest.mark.parametrize("control", ["no-store", "private, max-age=60", "public, max-age=0", "no-cache", "public"])
def test_what_may_not_be_kept_is_asked_for_each_time(nginx: Nginx, origin: Origin, path: str, control: str) -> None:
    origin.tells(b"{}", control)
    nginx.client.get(path)
    nginx.client.get(path)
    assert len(origin.asked) == 2


def test_nothing_stale_is_served_even_when_the_server_fails(nginx: Nginx, origin: Origin, path: str) -> None:
    origin.tells(b"1", "public, max-age=1", ETag='"1"')
    assert nginx.client.get(path).body == b"1"
    origin.tells(b"2", "no-store")
    origin.status = 503
    late = until(lambda: (answer := nginx.client.get(path)).status != 200 and answer, "the copy to run out")
    assert (late.status, late.body) == (503, b"2")
    assert origin.asked[0][2]["if-none-match"] == '"1"'


def test_what_ran_out_is_asked_for_by_its_tag(nginx: Nginx, origin: Origin, path: str) -> None:
    origin.tells(b"1", "public, max-age=1", ETag='"1"')
    nginx.client.get(path)
    asked_again = until(
        lambda: nginx.client.get(path).status == 200 and len(origin.asked) > 1 and origin.asked[1], "a second question"
    )
    assert asked_again[2]["if-none-match"] == '"1"'
    assert nginx.client.get(path).body == b"1"
    origin.headers = {**origin.headers, "ETag": '"2"'}
    origin.body = b"2"
    assert until(lambda: nginx.client.get(path).body == b"2", "what took its place")


def test_an_error_is_kept_no_longer_than_it_says(nginx: Nginx, origin: Origin, path: str) -> None:
    origin.tells(b"{}", "public, max-age=60")
    origin.status = 404
    assert [nginx.client.get(path).status for _ in range(2)] == [404, 404]
    assert len(origin.asked) == 1
    other = f"{path}-other"
    origin.tells(b"{}", "no-store")
    origin.status = 404
    assert [nginx.client.get(other).status for _ in range(2)] == [404, 404]
    assert len(origin.asked) == 2


@pytest.mark.parametrize(
    "usc", ["/api/v1/proof/1/100/0", "/api/v1/proof-by-tx/1/0x00", "/api/v1/proof-batch/1", "/api/v1/attested-height/1"]
)
def test_usc_answers_and_listings_are_never_kept(nginx: Nginx, origin: Origin, usc: str) -> None:
    origin.tells(b"{}", "public, max-age=60", ETag='W/"1"')
    nginx.client.get(usc)
    nginx.client.get(usc)
    assert len(origin.asked) == 2
    origin.asked.clear()
    nginx.client.send("GET", usc, headers={"If-None-Match": 'W/"1"'})
    assert origin.asked[0][2]["if-none-match"] == 'W/"1"'


KEYS = [{"Authorization": "Bearer canary"}, {"X-API-Key": "canary"}, {"X-API-Key": "0"}]


@pytest.mark.parametrize("key", KEYS, ids=["bearer", "own-header", "zero"])
@pytest.mark.parametrize("control", ["private, max-age=60", "max-age=60", "max-age=60, x=nonpublic"])
def test_what_was_answered_to_one_key_is_for_its_holder_alone(
    nginx: Nginx, origin: Origin, path: str, key: dict[str, str], control: str
) -> None:
    """RFC 9111, 3.5: unless the answer says that it is public."""
    origin.tells(b"{}", control)
    for headers in (key, {"X-API-Key": "another"}, key):
        assert nginx.client.send("GET", path, headers=headers).headers["cache-status"] == "nginx; fwd=uri-miss"
    assert len(origin.asked) == 3
    assert "canary" not in nginx.access_log.read_text()


@pytest.mark.parametrize("key", KEYS, ids=["bearer", "own-header", "zero"])
@pytest.mark.parametrize("control", ["public, max-age=60", "max-age=60, public"])
def test_what_is_public_is_kept_whoever_asked_first(
    nginx: Nginx, origin: Origin, path: str, key: dict[str, str], control: str
) -> None:
    origin.tells(b"{}", control)
    nginx.client.send("GET", path, headers=key)
    assert nginx.client.get(path).headers["cache-status"] == "nginx; hit"
    assert nginx.client.send("GET", path, headers={"X-API-Key": "another"}).headers["cache-status"] == "nginx; hit"
    assert len(origin.asked) == 1


def test_a_crowd_that_asks_for_one_proof_is_one_question(nginx: Nginx, origin: Origin, path: str) -> None:
    origin.tells(b"{}", "public, max-age=60")
    origin.holding = threading.Event()
    statuses: list[int] = []

    def ask() -> None:
        with_own = type(nginx.client)(nginx.port)
        statuses.append(with_own.get(path).status)
        with_own.close()

    crowd = [threading.Thread(target=ask) for _ in range(8)]
    for one in crowd:
        one.start()
    until(lambda: bool(origin.asked), "the first question")
    origin.holding.set()
    for one in crowd:
        one.join()
    origin.holding = None
    assert (statuses, len(origin.asked)) == ([200] * 8, 1)


def test_encodings_have_a_copy_each_and_spellings_do_not(nginx: Nginx, origin: Origin, path: str) -> None:
    squeezed = gzip.compress(b"{}")
    origin.tells(squeezed, "public, max-age=60", Content_Encoding="gzip")
    spellings = ("gzip, deflate, br", "gzip", "br;q=1.0, gzip;q=0.8, *;q=0.1", "deflate,gzip")
    for spelling in spellings:
        assert nginx.client.send("GET", path, headers={"Accept-Encoding": spelling}).body == squeezed
    assert [headers["accept-encoding"] for _, _, headers in origin.asked] == ["gzip"]
    origin.tells(b"{}", "public, max-age=60")
    for spelling in ("identity", "gzip;q=0", "gzip; q=0.0, br", "xgzip"):
        plain = nginx.client.send("GET", path, headers={"Accept-Encoding": spelling})
        assert (plain.body, plain.headers.get("content-encoding")) == (b"{}", None)
    assert [headers.get("accept-encoding") for _, _, headers in origin.asked] == [None]


def test_web_pages_of_several_origins_do_not_share_a_copy(nginx: Nginx, origin: Origin, path: str) -> None:
    for page in ("https://a.example", "https://b.example"):
        origin.tells(b"{}", "public, max-age=60", Access_Control_Allow_Origin=page)
        for _ in range(2):
            answer = nginx.client.send("GET", path, headers={"Origin": page})
            assert answer.headers["access-control-allow-origin"] == page
        assert len(origin.asked) == 1


def told_ids(nginx: Nginx, path: str) -> int:
    """How often the header stands in an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=60)
    connection.request("GET", path)
    names = [name.lower() for name, _ in connection.getresponse().getheaders()]
    connection.close()
    return names.count("x-request-id")


def test_every_answer_tells_the_id_of_its_own_request(nginx: Nginx, origin: Origin, path: str) -> None:
    origin.tells(b"{}", "public, max-age=60")
    for mine in ("first", "second"):
        assert nginx.client.send("GET", path, headers={"X-Request-Id": mine}).headers["x-request-id"] == mine
        assert told_ids(nginx, path) == 1
    assert origin.asked[0][2]["x-request-id"] == "first"
    made_up = nginx.client.send("GET", f"{path}2", headers={"X-Request-Id": "x" * 129}).headers["x-request-id"]
    assert (len(made_up), origin.asked[1][2]["x-request-id"]) == (32, made_up)

    def logged() -> set[str]:
        return {json.loads(line)["request_id"] for line in nginx.access_log.read_text().splitlines()}

    until(lambda: {"first", "second", made_up} <= logged(), "their lines in the log")


def test_what_a_client_was_told_of_its_rate_is_not_told_to_the_next(nginx: Nginx, origin: Origin, path: str) -> None:
    origin.tells(b"{}", "public, max-age=60", RateLimit='"a";r=1', RateLimit_Policy='"a";q=2')
    first, second = nginx.client.get(path), nginx.client.get(path)
    assert (first.headers["ratelimit"], first.headers["ratelimit-policy"]) == ('"a";r=1', '"a";q=2')
    assert not {"ratelimit", "ratelimit-policy"} & set(second.headers)


@pytest.mark.parametrize("request_head", [b"GET /x HTTP/1.0", b"GET /x HTTP/1.0\r\nHost: a.example:81"])
def test_the_server_is_told_one_host_in_any_case(nginx: Nginx, origin: Origin, request_head: bytes) -> None:
    """HTTP/1.0 may name none, as some health checks do; Copath is asked in HTTP/1.1, which has to."""
    with socket.create_connection(("127.0.0.1", nginx.port), timeout=60) as client:
        client.sendall(request_head + b"\r\n\r\n")
        assert client.recv(1024).startswith(b"HTTP/1.1 200")
    assert origin.asked[0][2]["host"] == (request_head.partition(b"Host: ")[2].decode() or "_")


def test_a_server_that_is_gone_is_tried_once_more() -> None:
    """As when a replica died: the address is that of all of them."""
    with socket.create_server(("127.0.0.1", 0)) as dying, running_nginx(dying.getsockname()[1]) as nginx:

        def live() -> None:
            dying.accept()[0].close()
            with dying.accept()[0] as second:
                second.recv(65536)
                second.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

        threading.Thread(target=live, daemon=True).start()  # waits for ever where nobody comes again
        answer = nginx.client.get(PROOF)
    assert (answer.status, answer.body) == (200, b"{}")


def test_the_server_is_told_who_asks(nginx: Nginx, origin: Origin) -> None:
    nginx.client.send("POST", "/api/v1/proofs/verify", b"{}", {"X-Forwarded-For": "198.51.100.7"})
    method, asked, headers = origin.asked[0]
    assert (method, asked, headers["x-forwarded-for"]) == ("POST", "/api/v1/proofs/verify", "198.51.100.7, 127.0.0.1")
    assert headers["host"] == f"127.0.0.1:{nginx.port}"


def test_connections_to_the_server_are_kept(nginx: Nginx, origin: Origin) -> None:
    nginx.client.get("/api/v1/chains")
    assert "connection" not in origin.asked[0][2]


def test_a_body_that_is_far_too_large_is_refused_as_the_server_would(nginx: Nginx, origin: Origin) -> None:
    just_above = nginx.client.send("POST", "/api/v1/proofs/verify", b"x" * (MAX_BODY_BYTES + 1))
    assert (just_above.status, len(origin.asked)) == (200, 1)  # the server's to refuse, in its own words
    far_above = nginx.client.send("POST", "/api/v1/proofs/verify", b"x" * (2100 * 1024 + 1))
    assert (far_above.status, far_above.code, far_above.json["retriable"]) == (413, "PayloadTooLarge", False)
    assert len(origin.asked) == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /x HTTP/1.1",
        b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b",
        b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000,
    ],
    ids=["no host", "two hosts", "a large head"],
)
def test_what_nginx_refuses_it_refuses_as_the_server_would(nginx: Nginx, origin: Origin, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", nginx.port), timeout=60) as client:
        client.sendall(head + b"\r\n\r\n")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        body = json.loads(answer.read())
    assert (answer.status, answer.headers["content-type"], origin.asked) == (400, "application/json", [])
    assert (body["code"], body["retriable"]) == ("InvalidParameter", False)


def test_metrics_are_not_shown_to_the_world(nginx: Nginx, origin: Origin) -> None:
    assert (nginx.client.get("/metrics").status, origin.asked) == (404, [])


def test_with_no_server_behind_it_says_so_in_the_servers_words() -> None:
    with running_nginx(9) as nginx:  # nobody listens on the discard port
        answer = nginx.client.send("GET", PROOF, headers={"X-Request-Id": "mine"})
        assert (answer.status, answer.code, answer.json["retriable"]) == (503, "Overloaded", True)
        assert int(answer.headers["retry-after"]) >= 1
        assert (answer.headers["cache-control"], answer.headers["x-request-id"]) == ("no-store", "mine")
