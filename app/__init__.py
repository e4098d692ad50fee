"""Copath: inclusion proofs of EVM transactions, receipts and logs, each checked before it leaves."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("copath")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"
