"""The whole server over HTTP, judged from outside: real blocks in, proofs out, verifiers that others wrote."""
