"""The program as its users run it: one proof without a server, and its check offline."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sha3
from typer.testing import CliRunner

from app.cli import program
from tests import launching
from tests.checker.bodies import usc_chain

RECEIPT = "0x7cdcd8a640dd62ae6a697b8f7ed682bb151ba5b6e1abbff56e57af1afd52cc86"
BLOCK = "0x50985684c5e97edaf7a3f7e67ab3a74e21bcf18555ec7bfe4cef50f5464f63b5"
SEPOLIA_TX = "0x1af706d8ddec53878afd281aa0f12a731f7425a3a6789932240750e2aaf296a4"


def copath(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return launching.run(*arguments, stdin=stdin or "")


def verify(*arguments: str, stdin: str = "") -> Any:
    """The command in this process: starting the program takes longer than what it does."""
    return CliRunner().invoke(program, ["verify", *arguments], input=stdin)


@pytest.fixture(scope="module")
def receipt_proof() -> dict[str, Any]:
    done = copath("prove", RECEIPT, "--chain", "samples-ethereum")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_prove_prints_a_proof_and_nothing_else(receipt_proof: dict[str, Any]) -> None:
    assert (receipt_proof["kind"], receipt_proof["transactionHash"]) == ("receipt", RECEIPT)
    assert receipt_proof["blockHash"] == BLOCK


def test_verify_accepts_what_prove_printed(receipt_proof: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(receipt_proof))
    done = copath("verify", str(file), "--block-hash", BLOCK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"valid: receipt {receipt_proof['transactionIndex']} is in block 22869878")
    assert copath("verify", stdin=json.dumps(receipt_proof)).returncode == 0


def test_verify_refuses_another_block_and_a_flipped_byte(receipt_proof: dict[str, Any]) -> None:
    whole = json.dumps(receipt_proof)
    other = verify("--block-hash", "0x" + "11" * 32, stdin=whole)
    assert (other.exit_code, other.stdout) == (1, "")
    assert "refused" in other.stderr
    value = receipt_proof["value"]
    flipped = json.dumps(receipt_proof | {"value": value[:-1] + ("0" if value[-1] != "0" else "1")})
    assert copath("verify", stdin=flipped).returncode == 1
    assert verify(stdin='{"continuityProof": 1}').exit_code == 1, "a proof, whose fields are not what they must be"


@pytest.mark.parametrize("text", ["", "[]", "{}", "no json", '"0x"', '{"proof": {}}'])
def test_what_is_no_proof_was_not_checked(text: str) -> None:
    done = verify(stdin=text)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("no proof: ")


def test_one_that_does_not_hold_outweighs_those_that_were_not_checked(
    receipt_proof: dict[str, Any], tmp_path: Path
) -> None:
    for name, body in (("bad", receipt_proof | {"value": "0x"}), ("none", {}), ("good", receipt_proof)):
        (tmp_path / name).write_text(json.dumps(body))
    bad, none, good, missing = (str(tmp_path / name) for name in ("bad", "none", "good", "missing"))
    for files, code in (((none, missing, bad, good), 1), ((none, good), 2), ((missing, good), 2), ((good, good), 0)):
        done = verify(*files)
        assert done.exit_code == code
        assert done.stdout.count(f"{good}: valid") == files.count(good), "each is looked at"


def test_a_usc_proof_is_verified_under_a_named_anchor() -> None:
    done = copath("prove", SEPOLIA_TX, "--chain", "sepolia", "--kind", "usc")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert "anchor" in copath("verify", stdin=done.stdout).stderr
    # The anchor's digest, recomputed here from the proof itself: whether it is an anchor is what its user knows.
    digest = bytes.fromhex(body["continuityProof"]["lowerEndpointDigest"][2:])
    height = body["headerNumber"] - 1
    for root in body["continuityProof"]["roots"]:
        height += 1
        digest = sha3.keccak_256(height.to_bytes(8, "big") + bytes.fromhex(root[2:]) + digest).digest()
    anchor = ("--anchor-height", str(height), "--anchor-digest", "0x" + digest.hex())
    assert copath("verify", *anchor, stdin=done.stdout).returncode == 0
    wrong = ("--anchor-height", str(height), "--anchor-digest", "0x" + "22" * 32)
    assert copath("verify", *wrong, stdin=done.stdout).returncode == 1


def test_what_is_wrong_is_said_below_the_verdict(receipt_proof: dict[str, Any]) -> None:
    nodes = receipt_proof["nodes"]
    broken = [*nodes[:-1], nodes[-1][:-2] + ("00" if nodes[-1][-2:] != "00" else "01")]
    done = verify(stdin=json.dumps(receipt_proof | {"nodes": broken}))
    assert (done.exit_code, done.stdout) == (1, "")
    first, message, place, expected, found = done.stderr.splitlines()
    assert first == "refused: NodeHashMismatch in nodes"
    assert message == "  the node is not the one that its parent commits to"
    assert place.startswith(f"  at node {len(nodes) - 1} from the root, ")
    assert expected == "  expected  0x" + sha3.keccak_256(bytes.fromhex(nodes[-1][2:])).hexdigest()
    assert found.startswith("  found     0x")
    other = verify("--block-hash", "0x" + "11" * 32, stdin=json.dumps(receipt_proof))
    assert other.stderr.splitlines()[0] == "refused: HeaderMismatch in blockHash"


def test_many_proofs_are_verified_at_once_each_by_its_name(receipt_proof: dict[str, Any], tmp_path: Path) -> None:
    raw = {"kind": "trie", **{name: receipt_proof[name] for name in ("root", "key", "value", "nodes")}}
    bodies = {
        "good": receipt_proof,
        "raw": raw,
        "wrapped": {"proof": receipt_proof},
        "bad": receipt_proof | {"value": "0x"},
    }
    for name, body in bodies.items():
        (tmp_path / name).write_text(json.dumps(body))
    paths = {name: str(tmp_path / name) for name in bodies}
    sound = verify(*(paths[name] for name in ("good", "raw", "wrapped")))
    assert (sound.exit_code, sound.stderr) == (0, "")
    assert [line.split(": ")[:2] for line in sound.stdout.splitlines()] == [
        [paths[name], "valid"] for name in ("good", "raw", "wrapped")
    ]
    mixed = verify(paths["good"], paths["bad"], "-", stdin="{}")
    assert mixed.exit_code == 1
    assert mixed.stdout.startswith(f"{paths['good']}: valid")
    assert f"{paths['bad']}: refused: ValueMismatch in value" in mixed.stderr
    assert "-: no proof:" in mixed.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-file",), "no-such-file: No such file or directory"),
        (("--anchor-height", "5"), "together"),
        (("--anchor-height", "5", "--anchor-digest", "0x00"), "--anchor-digest"),
        (("--block-hash", "0x00"), "--block-hash"),
    ],
)
def test_what_cannot_be_checked_at_all_is_another_exit_code(arguments: tuple[str, ...], said: str) -> None:
    done = verify(*arguments, stdin="{}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_an_anchor_beside_the_proof_is_not_one_that_is_trusted() -> None:
    height, digest = usc_chain().anchor
    named = ("--anchor-height", str(height), "--anchor-digest", "0x" + digest.hex())
    bodies = [usc_chain().single(9), usc_chain().batch({103: [0, 9], 107: [128]})]
    for body in bodies:
        beside = json.dumps(body | {"anchor": {"height": height, "digest": "0x" + digest.hex()}})
        refused = verify(stdin=beside)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "--anchor-height" in refused.stderr
        for given in (beside, json.dumps(body), json.dumps({"proof": body})):
            assert verify(*named, stdin=given).exit_code == 0
    wrong = verify(*named[:2], "--anchor-digest", "0x" + "11" * 32, stdin=json.dumps(bodies[1]))
    assert (wrong.exit_code, wrong.stderr.splitlines()[0]) == (1, "refused: AnchorMismatch in continuityProof")


def test_prove_says_in_one_line_why_not() -> None:
    unknown = copath("prove", "0x" + "ab" * 32, "--chain", "samples-ethereum")
    assert unknown.returncode == 1
    assert json.loads(unknown.stderr)["code"] == "TxHashNotFound"
    kind = copath("prove", RECEIPT, "--chain", "samples-ethereum", "--kind", "uncle")
    assert (kind.returncode, kind.stdout) == (2, "")
    assert kind.stderr.count("\n") == 1
    for tx_hash, chain in (("0x00", "samples-ethereum"), (RECEIPT, "nowhere")):
        meant = copath("prove", tx_hash, "--chain", chain)
        assert (meant.returncode, meant.stdout, json.loads(meant.stderr)["status"]) == (2, "", 400)


def test_version_and_help_need_no_configuration() -> None:
    assert copath("--version").stdout.strip()
    assert "serve" in copath("--help").stdout


def test_a_configuration_error_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "chains:\n  - chain_key: 1\n    eth_rpc_url: https://user:sesame@node.example.org/v3/hidden\n    colour: red\n"
    )
    done = copath("serve", "--config", str(file))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "colour" in done.stderr
    assert "sesame" not in done.stderr
    assert "hidden" not in done.stderr


def test_backfill_fills_a_range_of_the_demo_and_sums_it_up() -> None:
    done = copath("backfill", "--chain", "sepolia", "--from", "175840", "--to", "175859")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("filled 20, known 0, refused 0, failed 0 of 20 blocks in ")
    assert "20/20" in done.stderr


def test_backfill_says_what_it_could_not_fill() -> None:
    done = copath("backfill", "--chain", "2", "--from", "175839", "--to", "175840")
    assert (done.returncode, done.stdout.splitlines()[1:]) == (1, ["HistoryUnavailable: 175839"])
    assert done.stdout.startswith("filled 1, known 0, refused 0, failed 1 of 2 blocks in ")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("--chain", "sepolia", "--from", "175900", "--to", "175904"), 1, "block 175904 is not finalized"),
        (("--chain", "nowhere", "--from", "1", "--to", "2"), 2, "no chain is called nowhere; there are mainnet-early,"),
        (("--chain", "sepolia", "--from", "2", "--to", "1"), 2, "--from: must not be above --to"),
    ],
)
def test_backfill_refuses_a_range_that_it_cannot_fill_in_one_line(
    arguments: tuple[str, ...], code: int, line: str
) -> None:
    done = copath("backfill", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert line in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [" ", "x" * 65, "two\nlines", "\udcff\udcfe"])
def test_a_key_is_for_somebody_with_a_name_that_fits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPATH_CONSUMERS__PEPPER", "a pepper of tests, long enough")
    monkeypatch.setenv("COPATH_DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path / 'keys.db'}")
    done = copath("keys", "create", name)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "copath: the name of a key has 1 to 64 characters that can be printed\n",
    )


def test_what_cannot_be_the_id_of_a_key_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPATH_CONSUMERS__PEPPER", "a pepper of tests, long enough")
    monkeypatch.setenv("COPATH_DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path / 'keys.db'}")
    done = copath("keys", "revoke", "\udcff")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "no key that counts has this id\n")


def test_keys_of_another_pepper_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPATH_DATABASE_URL", f"sqlite:///{tmp_path / 'keys.db'}")
    monkeypatch.setenv("COPATH_CONSUMERS__PEPPER", "the pepper that it was made under")
    assert copath("keys", "create", "first").stderr.startswith("id ")
    assert "counts" in copath("keys", "list").stdout
    monkeypatch.setenv("COPATH_CONSUMERS__PEPPER", "a pepper that was mistyped later on")
    listed = copath("keys", "list")
    assert "  does not count: made under another pepper  first" in listed.stdout
    assert listed.stderr.startswith(
        "warning: keys of other peppers: 1: these keys were made under another consumers.pepper"
    )
    assert copath("keys", "create", "second").stderr.startswith("warning: keys of other peppers: 1: ")
    assert "pepper that was mistyped" not in listed.stdout + listed.stderr


def test_no_key_is_made_where_none_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPATH_CONSUMERS__PEPPER", "a pepper of tests, long enough")
    done = copath("keys", "create", "lost")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("copath: database_url is in memory, where no key lasts: name the configuration ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--chain-key", "1"], "copath: option --chain-key: give --eth-rpc-url too, the node of that chain"),
        (["serve", "--port", "99999"], "copath: option --port: bind_port: must be less than or equal to 65535"),
        (["serve", "--log-level", "loud"], "copath: option --log-level: logging.level: must be 'debug', 'info', "),
        (
            ["serve", "--eth-rpc-url", "localhost:8545"],
            "copath: option --eth-rpc-url: chains[chain_key 1].eth_rpc_url: must",
        ),
        (
            ["serve", "--eth-rpc-url", "http://a!b"],
            "copath: option --eth-rpc-url: chains[chain_key 1].eth_rpc_url: names a",
        ),
        (["serve", "--config", "/nowhere.yaml"], "copath: /nowhere.yaml: cannot be read: No such file or directory"),
        (["check", "--chain", "nope"], "--chain: no chain is called nope; there are "),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_command_line_that_cannot_be_meant_is_one_line_and_code_2(arguments: list[str], said: str) -> None:
    done = copath(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


def test_the_demo_says_that_a_configuration_beside_it_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    done = launching.run("check", "--chain", "samples-ethereum", "--blocks", "1", cwd=tmp_path)
    assert "note: config.yaml is not read: name it with --config; this is the demo" in done.stderr, done.stderr
