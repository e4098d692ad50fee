"""Runs one situation against a real server and judges what leaves.

Beyond what a situation wants, every answer is judged: a proof must hold for outsiders (header hash, root, trie library), an error
has a code, 500 is none, and what may be retried says when.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rlp

from tests.acceptance.judging import TrieProof, integer, to_bytes, transaction_hashes
from tests.acceptance.made_blocks import make_block
from tests.acceptance.server import Answer, Client, Copath, free_port, running_copath
from tests.acceptance.waiting import PATIENCE_S, until
from tests.corpus_files import files, load
from tests.launching import Launched
from tests.oracles import trie_library
from tests.oracles.signing import keccak
from tests.reports.node import Fault, PlayedNode, PlayedNodes

Json = Any
_ROOT = Path(__file__).parent.parent.parent
_READY_S = 15.0
_ENOUGH_S = 60.0


# --- situations of chains -------------------------------------------------------------------------------------------


class Played:
    """One situation on a server: its nodes, and its chain keys as that server has them."""

    def __init__(self, name: str, told: Json, nodes: PlayedNodes, first_key: int = 1) -> None:
        self.name = name
        self.told = told
        self.nodes: dict[str, PlayedNode] = {}
        self.keys = {each["chain_key"]: first_key + at for at, each in enumerate(told["chains"])}
        self.chains = []
        for path, upstream in told["upstream"].items():
            faults = [each for each in told.get("faults", []) if each["path"].strip("/") == path]
            self.nodes[path] = nodes.nodes[f"{name}/{path}"] = PlayedNode.of(upstream, faults)
        for each in told["chains"]:
            chain = dict(each)
            key = self.keys[chain["chain_key"]]
            chain |= {"chain_key": key, "name": f"{each['name']}-{key}"}
            upstreams = chain.pop("upstreams", None) or [chain.pop("upstream")]
            chain["eth_rpc_url"], *others = [nodes.url(f"{name}/{path}") for path in upstreams]
            chain["eth_rpc_fallback_urls"] = others
            chain.setdefault("cache", {"merkle_backfill_enabled": False})
            self.chains.append(chain)

    @property
    def alone(self) -> bool:
        """Whether it needs a server for itself: it asks about the whole server, or wants it before it is ready."""
        asked = [each["get"] for each in self.told["requests"] if "get" in each]
        whole = any(not path.startswith("/api/v1/") or path == "/api/v1/chains" for path in asked)
        return whole or "log_grep" in self.told or not self.told.get("wait_ready", True)

    @property
    def waits(self) -> bool:
        """Whether it lets time pass."""
        return "settle" in self.told or any("sleep" in each for each in self.told["requests"])

    def run(self, copath: Copath) -> None:
        """Sends its requests in order and judges every answer."""
        client = Client(copath.port)
        try:
            time.sleep(self.told.get("settle", 0))
            for at, step in enumerate(self.told["requests"]):
                self._step(client, f"{self.name}, step {at + 1}", step)
        finally:
            client.close()
        if "log_grep" in self.told:
            log = copath.log.read_text(errors="replace")
            assert re.search(self.told["log_grep"], log), f"{self.name}: no log line has {self.told['log_grep']}"

    def _step(self, client: Client, where: str, step: Json) -> None:
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "reset" in step:
            self.nodes[step["reset"]].faults = []
        elif "faults" in step:
            for fault in step["faults"]:
                self.nodes[fault["path"].strip("/")].faults.append(Fault.of(fault))
        elif "stats" in step:
            hits = self.nodes[step["stats"]].hits
            for method, most in step.get("max", {}).items():
                assert hits[method] <= most, f"{where}: {method} was called {hits[method]} times, at most {most} wanted"
            for method, least in step.get("min", {}).items():
                assert hits[method] >= least, f"{where}: {method} was called {hits[method]} times, at least {least}"
        else:
            self._request(client, where, step)

    def _request(self, client: Client, where: str, step: Json) -> None:
        path = self._path(step.get("post") or step["get"])
        answer = client.post(path, step["body"]) if "post" in step else client.get(path)
        where = f"{where}: {step.get('get') or step.get('post')}"
        judge(where, answer, self._hashes(), step["want"])

    def _path(self, path: str) -> str:
        def ours(found: re.Match[str]) -> str:
            return f"{found[1]}{self.keys[int(found[2])]}"

        return re.sub(r"^(/api/v1/(?:proofs|chains)/)(\d+)(?=/|$)", ours, path)

    def _hashes(self) -> set[str]:
        return {entry["block"]["hash"] for node in self.nodes.values() for entry in node.blocks}


@contextmanager
def serving(played: list[Played], *, wait_ready: bool = True) -> Iterator[Copath]:
    """A server that has the chains of these situations."""
    chains = [chain for each in played for chain in each.chains]
    with running_copath(*chains) as copath:
        if wait_ready:
            deadline = time.monotonic() + _READY_S
            while copath.get("/readyz").status != 200 and time.monotonic() < deadline:
                time.sleep(0.05)  # polling another process from outside
        yield copath


def judge(where: str, answer: Answer, hashes: set[str], want: Json) -> None:
    """One answer: what is wanted of it, and what is always wanted."""
    seen = f"{where} gave {answer.status} {answer.body[:400]!r}"
    wanted = want.get("status")
    assert wanted is None or answer.status in (wanted if isinstance(wanted, list) else [wanted]), seen
    body = answer.json if answer.body.startswith((b"{", b"[")) else {}
    if answer.status >= 400 and "/api/" in where:
        assert answer.status != 500, seen
        assert isinstance(body.get("code"), str), seen
        assert isinstance(body.get("retriable"), bool), seen
        if answer.status == 503 and body["retriable"]:
            assert int(answer.headers["retry-after"]) >= 0, seen
    if "code" in want:
        assert body.get("code") in (want["code"] if isinstance(want["code"], list) else [want["code"]]), seen
    if "retriable" in want:
        assert body.get("retriable") is want["retriable"], seen
    fields = [want["field"]] if "field" in want else []
    for path, value in [*fields, *want.get("fields", {}).items()]:
        found: Json = body
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        assert found == value, f"{path} is {found!r}, {value!r} wanted: {seen}"
    for text in want.get("contains", []):
        assert text in answer.body.decode(), f"{text!r} is missing: {seen}"
    if answer.status == 200 and isinstance(body, dict) and body.get("format") == "copath/1" and "nodes" in body:
        assert body["blockHash"] in hashes, seen
        hold(body)


def hold(body: Json) -> None:
    """Asserts that a proof of one item holds, with nothing of ours."""
    header_rlp = to_bytes(body["headerRlp"])
    assert keccak(header_rlp) == to_bytes(body["blockHash"])
    header = rlp.decode(header_rlp)
    proof = TrieProof.of(body)
    assert integer(body["blockNumber"]) == int.from_bytes(header[8], "big")
    assert proof.root == header[4 if body["kind"] == "transaction" else 5]
    assert proof.key == rlp.encode(body["transactionIndex"])
    assert trie_library.accepts(proof.root, proof.key, proof.value, proof.nodes)
    if body["kind"] == "transaction":
        assert keccak(proof.value) == to_bytes(body["transactionHash"])


# --- situations of bytes --------------------------------------------------------------------------------------------


def run_raw(told: Json, copath: Copath) -> None:
    """Sends bytes segment by segment, then asks once more over the same connection."""
    want = told["want"]
    with socket.create_connection(("127.0.0.1", copath.port), timeout=_ENOUGH_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at, segment in enumerate(told["segments"]):
            if at:
                time.sleep(told.get("pause", 0.1))  # a segment of its own: the server reads what came before first
            connection.sendall(segment.encode())
        status, _, body = _read_response(connection, want.get("method", "POST"))
        seen = f"{status} {body[:300]!r}"
        assert status == want["status"], seen
        assert want.get("contains", "") in body.decode(), seen
        if told.get("again"):
            connection.sendall(told["again"].encode())
            status, _, _ = _read_response(connection, "GET")
            assert status == 200


def _read_response(connection: socket.socket, method: str) -> tuple[int, Mapping[str, str], bytes]:
    """The next final response; what 1xx responses came before it is left out."""
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()  # reads over any 100 Continue
    headers = {name.lower(): value for name, value in response.getheaders()}
    return response.status, headers, response.read()


# --- situations of a start ------------------------------------------------------------------------------------------


def run_start(told: Json, nodes: PlayedNodes, name: str) -> None:
    """Starts the program with a configuration, an environment and a secret file; sees whether it serves."""
    want = told["want"]
    heard = nodes.nodes[name] = PlayedNode(1, [_lone_block()])
    with tempfile.TemporaryDirectory(prefix="copath-test-") as folder:
        place, port = Path(folder), free_port()
        file = place / "secret"
        text = told.get("file", "").replace("http://127.0.0.1:{UP}/", nodes.url(name))
        file.write_bytes(bytes.fromhex(told["file_hex"]) if "file_hex" in told else text.encode())
        environment = {key: value for key, value in os.environ.items() if not key.startswith("COPATH_")}
        environment |= {"PYTHONPATH": str(_ROOT), "COPATH_BIND_PORT": str(port), **told["env"]}
        if "tmpdir" in told:
            environment["TMPDIR"] = str(_folder_of_length(place / told.get("tmpdir_name", "t"), told["tmpdir"]))
        for key in told.get("unset", []):
            environment.pop(key, None)
        arguments = ["serve"]
        if not told.get("demo"):
            config = told["config"]
            filled = {"PORT": port, "DB": f"sqlite+aiosqlite:///{place / 'copath.db'}", "FILE": file}
            for key, value in filled.items():
                config = config.replace("{" + key + "}", str(value))
            config = re.sub(r"http://127\.0\.0\.1:\{UP\}/?", nodes.url(name), config)
            (place / "config.yaml").write_text(config, encoding="utf-8")
            arguments += ["--config", str(place / "config.yaml")]
        log = place / "log"
        with log.open("wb") as output, open(os.devnull, "rb") as nothing:
            surroundings: Any = {"cwd": place, "stdin": nothing, "stdout": output, "stderr": output, "env": environment}
            # Where temporary files go is settled once per interpreter: that needs one of its own.
            plain = "config" in told and "TMPDIR" not in environment
            command = [sys.executable, "-m", "app", *arguments]
            process = Launched(arguments, **surroundings) if plain else subprocess.Popen(command, **surroundings)
        copath = Copath(port, process, log)
        try:
            started = _starts(copath)
            assert want["starts"] in (None, started), copath.tail()
            if started and want.get("proof"):
                _demo_proves(copath)
            if started and "echo" in told:
                seen = until(lambda: heard.headers, "a call at the node")[0]
                assert told["echo"].items() <= seen.items(), seen
        finally:
            copath.client.close()
            process.kill()
            process.wait()
        said = log.read_text(errors="replace")
        _judge_words(told, want, said, started)


def _starts(copath: Copath) -> bool:
    """Whether it listens before it ends."""

    def decided() -> str | None:
        if copath.process.poll() is not None:
            return "ended"
        try:
            return "listens" if copath.get("/livez").status == 200 else None
        except OSError:
            copath.client.close()
            return None

    return until(decided, "the program serves or ends", patience_s=3 * PATIENCE_S) == "listens"


def _judge_words(told: Json, want: Json, said: str, started: bool) -> None:
    if want.get("no_traceback") or want.get("no_unhandled") or not started:
        assert "Traceback" not in said, said
        assert "unhandled" not in said.lower(), said
    if "names" in want:
        assert want["names"] in said, said
    if not started:
        assert len([line for line in said.strip().splitlines() if '"level": "info"' not in line]) == 1, said
    for secret in told.get("secrets", []):
        assert secret not in said, said


def _demo_proves(copath: Copath) -> None:
    records = [load(path) for path in files("contiguous") if path.name.startswith("sepolia")]
    tx_hash = next(hashes[0] for hashes in map(transaction_hashes, records) if hashes)
    path = f"/api/v1/proofs/sepolia/receipts/{tx_hash}"
    until(lambda: copath.get(path).status == 200, "the demo gives a proof")
    hold(copath.get(path).json)


def _folder_of_length(place: Path, length: int) -> Path:
    """A folder whose path is that long (or longer, where the way to it is)."""
    folder = place
    while len(str(folder)) < length:
        folder /= "t" * max(1, min(50, length - len(str(folder)) - 1))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _lone_block() -> Json:
    return make_block(1, bytes(32), [])
