"""What can go wrong with what is meant to last. Never shown to a client: answers do not depend on a database."""

from __future__ import annotations


class StoreUnavailable(Exception):
    """The database cannot be had now, or did not answer in time. What was asked for was not done, or not known to be done."""


class AnchorContradiction(Exception):
    """Another digest is kept for a height that is to be anchored: one of the two is of another chain. Nothing was written."""
