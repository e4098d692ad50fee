"""Benchmarks as ratios to a floor that is measured in the same run: absolute times belong to a machine, ratios travel.

make bench                    all of them but those that take minutes
make bench ARGS="build"       some of them
make bench ARGS="overload"    offered load beyond capacity, eight minutes; writes bench/overload/results.md and results.svg
make bench ARGS="soak"        minutes of failing nodes and killed servers, ten and more; scenarios: soak.churn, ...
"""

from __future__ import annotations

import importlib
import sys

NAMES = ("backfill", "build", "consumers", "fills", "large", "layers", "money", "serving", "takes")
LONG = ("overload", "soak", "soak.churn", "soak.brown_out", "soak.kills", "soak.outage")


def main(wanted: list[str]) -> int:
    """Runs the named benchmarks, or all short ones, and prints one table each."""
    unknown = [name for name in wanted if name not in NAMES + LONG]
    if unknown:
        sys.stderr.write(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES + LONG)}\n")
        return 2
    for name in wanted or NAMES:
        module = importlib.import_module(f"bench.{name}")
        sys.stdout.write(f"\n{str(module.__doc__).strip().splitlines()[0]}\n\n")
        sys.stdout.flush()
        for line in table(module.run()):
            sys.stdout.write(line + "\n")
    return 0


def table(rows: list[tuple[str, str, str]]) -> list[str]:
    """Markdown rows: what, figure, ratio to the floor."""
    shown = [("what", "measured", "ratio to floor"), ("---", "---", "---"), *rows]
    return ["| " + " | ".join(row) + " |" for row in shown]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
