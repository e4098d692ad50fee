"""Asks one URL again and again from a process of its own, and prints the latencies in seconds as a JSON list."""

from __future__ import annotations

import http.client
import json
import signal
import sys
import time
from urllib.parse import urlsplit


def main(url: str, seconds: float, every_s: float) -> None:
    """One keep-alive connection, a question every so often, for `seconds`; anything but a 200 ends it with an error."""
    parts = urlsplit(url)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=10)
    latencies = []
    ends_at = time.monotonic() + seconds
    try:
        while time.monotonic() < ends_at:
            started = time.perf_counter()
            connection.request("GET", parts.path)
            response = connection.getresponse()
            response.read()
            latencies.append(time.perf_counter() - started)
            assert response.status == 200, f"{url} answered {response.status}"
            time.sleep(every_s)
    finally:
        sys.stdout.write(json.dumps(latencies))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
