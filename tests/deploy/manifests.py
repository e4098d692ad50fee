"""What the shipped overlays come to, built by kubectl."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir() if path.is_dir())

Manifest = Mapping[str, Any]


def built(overlay: str) -> list[Manifest]:
    """Every manifest of an overlay, as `kubectl apply` would send it; skips the test that asks where kubectl is missing."""
    program = shutil.which("kubectl", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if program is None:
        pytest.skip("kubectl is not installed")
    return _built(program, KUBERNETES / "overlays" / overlay)


@functools.cache
def _built(program: str, folder: Path) -> list[Manifest]:
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The one of that kind and name; names of made ConfigMaps may end in a hash of their content."""
    found = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and re.fullmatch(rf"{name}(-[a-z0-9]{{10}})?", manifest["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} of kind {kind} are called {name}"
    return found[0]


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pod specification of every workload, by kind and name."""
    return {
        f"{manifest['kind']} {manifest['metadata']['name']}": manifest["spec"]["template"]["spec"]
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "Job")
    }


def copath_container(manifests: list[Manifest]) -> Manifest:
    """The container of the server."""
    container: Manifest = named(manifests, "Deployment", "copath")["spec"]["template"]["spec"]["containers"][0]
    return container


def quantity(text: str | int) -> float:
    """A quantity of Kubernetes: bytes, or cores."""
    number, unit = re.fullmatch(r"([\d.]+)(m|[KMGT]i)?", str(text)).groups()  # type: ignore[union-attr]
    return float(number) * {None: 1, "m": 0.001, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}[unit]
