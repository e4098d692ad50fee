"""The container image: its Dockerfile judged by hadolint, and what it does done, step by step, without a container engine."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.acceptance.server import free_port
from tests.acceptance.waiting import until
from tests.deploy import dockerfile

pytestmark = pytest.mark.xdist_group("image")  # installed once

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "Dockerfile"
BUILD, FINAL = dockerfile.stages(DOCKERFILE)
PREFIX = "/opt/copath"


def copied(stage: list[dockerfile.Instruction]) -> list[str]:
    """What a stage copies from the build context."""
    copies = [copy.text.split() for copy in dockerfile.of(stage, "COPY")]
    return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]


def sent() -> set[str]:
    """The files of the project that are sent to the builder: those that git tracks and .dockerignore lets through."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("this is no git work tree: what is sent to a builder cannot be told")
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*", "it says what is let through, not what is kept out"
    allowed = [rule[1:] for rule in rules[1:] if rule.startswith("!")]
    return {
        name
        for name in listed.stdout.splitlines()
        if any(name == rule or name.startswith(f"{rule}/") for rule in allowed)
        and not any(fnmatch.fnmatch(name, f"*{rule.removeprefix('**')}*") for rule in rules[1:] if rule[0] != "!")
    }


def test_hadolint_has_nothing_to_say() -> None:
    program = shutil.which("hadolint", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if program is None:
        pytest.skip("hadolint is not installed")
    judged = subprocess.run([program, "--no-color", str(DOCKERFILE)], capture_output=True, text=True)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


def test_everything_that_is_copied_is_there_and_nothing_else_is_sent() -> None:
    files = sent()
    wanted = [source.removeprefix("./") for source in copied(BUILD)]
    assert copied(FINAL) == []
    assert [source for source in wanted if not any(f == source or f.startswith(f"{source}/") for f in files)] == []
    assert {name.split("/")[0] for name in files} == {source.split("/")[0] for source in wanted}
    assert not [name for name in files if re.search(r"\.(env|pem|key|db)$|config.*\.ya?ml$", name)]


def test_both_stages_stand_on_the_same_python() -> None:
    """A wheel is for one version; and whoever reaches no public registry, or wants a digest, names it once."""
    assert [stage[0].text.split()[0] for stage in (BUILD, FINAL)] == ["${BASE}", "${BASE}"]
    base = dockerfile.arguments(DOCKERFILE)["BASE"]
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", base)
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert f"Programming Language :: Python :: {base.removeprefix('python:').partition('-')[0]}" in supported


def test_it_is_nobody_in_particular_and_gets_its_signals_itself() -> None:
    user, entry, command = (dockerfile.of(FINAL, name) for name in ("USER", "ENTRYPOINT", "CMD"))
    assert [one.text for one in user] == ["10001:10001"]
    assert (entry[0].words, command[0].words) == (["copath"], ["serve"])
    assert dockerfile.of(FINAL, "STOPSIGNAL")[0].text == "SIGTERM"
    assert "curl" not in DOCKERFILE.read_text()


def test_the_first_process_of_a_container_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """No signal ends it that it does not handle, so each command has to handle it; this one waits for a database."""
    nowhere = {"COPATH_DATABASE_URL": "postgresql+asyncpg://copath:made-up@127.0.0.1:9/copath"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "migrate", "--wait", "600"],
            cwd=ROOT,
            env={**os.environ, **nowhere},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "database_unavailable" in (tmp_path / "log").read_text(), "that it waits")
        process.terminate()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM, "ended by the signal itself it would be -15"
    finally:
        process.kill()
        process.wait()


def test_nothing_that_takes_long_is_loaded_before_it_can_be_told_to() -> None:
    program = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["copath"]
    module, _, name = program.partition(":")
    code = f"import sys\nfrom {module} import {name}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {one for one in loaded.stdout.split() if one.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == {"__main__", "app", module}


def copy(context: Path, sources: list[str], target: Path, *, into: bool) -> None:
    """COPY: of a folder its content, of a file itself."""
    for source in sources:
        if (context / source).is_dir():
            shutil.copytree(context / source, target, dirs_exist_ok=True)
        else:
            shutil.copy(context / source, target / Path(source).name if into else target)


def run(command: str, folder: Path) -> None:
    """RUN, but that what was fetched for an earlier run may be used again, and nothing is compiled that is not used."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    shell = ["sh", "-euc", command.replace("--no-cache-dir", "--no-compile")]
    done = subprocess.run(shell, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if "NewConnectionError" in done.stderr or "NameResolutionError" in done.stderr:
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The folder that the build stage leaves in the image, made by its very commands."""
    with tempfile.TemporaryDirectory(prefix="copath-image-") as folder:
        os.chmod(folder, 0o755)  # for whoever the image runs as
        place = Path(folder)
        context, building, prefix = place / "context", place / "build", place / "copath"
        building.mkdir()
        for name in sent():
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, context / name)
        for step in BUILD:
            if step.name == "COPY":
                *sources, target = step.text.split()
                copy(context, sources, building / target, into=target.endswith("/"))
            elif step.name == "RUN":
                run(step.text.replace(PREFIX, str(prefix)), building)
        shutil.rmtree(building)
        shutil.rmtree(context)  # what runs must not lean on it
        yield prefix


def test_nothing_that_builds_or_downloads_is_left(installed: Path) -> None:
    listing = (
        "from importlib.metadata import distributions as d; print(*(x.name.lower().replace('_', '-') for x in d()))"
    )
    listed = subprocess.run([installed / "bin/python", "-I", "-c", listing], capture_output=True, text=True, check=True)
    names = set(listed.stdout.split())
    assert {"copath", "fastapi", "uvicorn"} <= names
    assert not names & {"pip", "setuptools", "wheel", "hatchling", "editables", "uv", "pytest", "pathspec", "pluggy"}
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert names - {"copath"} <= locked


def test_what_is_left_misses_nothing(installed: Path) -> None:
    """Every command is imported before one of them is done."""
    done = subprocess.run(
        [installed / "bin/copath", "--version"], capture_output=True, text=True, cwd="/", env={"PATH": "/usr/bin:/bin"}
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_it_brings_a_database_up_to_date(installed: Path, tmp_path: Path) -> None:
    chain = {"chain_key": 1, "name": "ethereum", "eth_rpc_url": "http://127.0.0.1:9"}
    settings = {"database_url": f"sqlite+aiosqlite:///{tmp_path}/copath.db", "chains": [chain]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [installed / "bin/copath", "migrate", "--config", str(tmp_path / "config.yaml")],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "copath.db").exists()


def test_it_serves_is_healthy_and_ends_when_told_to(installed: Path, tmp_path: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="copath-home-"))
    user = int(dockerfile.of(FINAL, "USER")[0].text.split(":")[0]) if os.geteuid() == 0 else None
    try:
        subprocess.run([installed / "bin/python", "-c", ""], user=user, check=True)
    except OSError:  # this Python is its owner's alone
        user = None
    if user is not None:
        os.chown(home, user, user)
    port = str(free_port())
    written = dockerfile.environment(FINAL)
    environ = {
        "PATH": f"{installed}/bin:/usr/bin:/bin",
        **{name: value for name, value in written.items() if name not in ("PATH", "COPATH_GIT_SHA")},
        "COPATH_BIND_HOST": "127.0.0.1",  # the image listens everywhere; a test does not
        "COPATH_BIND_PORT": port,
        "COPATH_SHUTDOWN__LAME_DUCK_SECS": "0",
    }
    assert written["COPATH_BIND_HOST"] == "0.0.0.0"
    healthy = dockerfile.of(FINAL, "HEALTHCHECK")[0].text.partition("CMD ")[2]
    probe = dockerfile.Instruction("CMD", healthy).words

    def probed() -> int:
        return subprocess.run(probe, cwd=home, env=environ, user=user, capture_output=True).returncode

    log = tmp_path / "log"
    command = dockerfile.of(FINAL, "ENTRYPOINT")[0].words + dockerfile.of(FINAL, "CMD")[0].words
    assert probed() != 0
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=home, env=environ, user=user, group=user, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: probed() == 0 or process.poll() is not None, "health")
        assert process.poll() is None, log.read_text()
        process.send_signal(getattr(signal, dockerfile.of(FINAL, "STOPSIGNAL")[0].text))
        assert process.wait(timeout=60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        shutil.rmtree(home)
