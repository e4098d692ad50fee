"""The second opinion: bytes about to be sent are recomputed from the rules alone, sharing no module with the prover."""

from .verifier import Refused, check_native, check_trie, check_usc, check_usc_batch

__all__ = ["Refused", "check_native", "check_trie", "check_usc", "check_usc_batch"]
