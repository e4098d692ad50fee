"""Shifts the monotonic clock of a Python process, for machines that let nobody make a time namespace.

The same offset in every process: their clocks stay comparable, as on one machine.
"""

import os
import time

if offset := os.environ.get("COPATH_TESTS_CLOCK_OFFSET"):
    offset_s, real, real_ns = float(offset), time.monotonic, time.monotonic_ns
    offset_ns = int(offset_s * 1e9)
    time.monotonic = lambda: real() + offset_s
    time.monotonic_ns = lambda: real_ns() + offset_ns
