"""Judges of our proofs that are not ours: Solidity, a second trie library, a client SDK, a real node."""
