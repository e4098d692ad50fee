"""The launcher: imports the program once, and is copied for every run of it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from typing import Any

from app.cli import main


def _next_run(requests: socket.socket) -> dict[str, Any]:
    """Returns in a copy of this process, which is to run the program as it says; between the two stands who tells of its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests decide what becomes of what they started
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who tell
    while True:
        _, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
        if not descriptors:
            sys.exit()
        if os.fork() == 0:
            break
        for each in descriptors:
            os.close(each)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told = socket.socket(fileno=descriptors[0])
    with told.makefile("rb") as lines:
        wanted: dict[str, Any] = json.loads(lines.readline())
    if (pid := os.fork()) != 0:
        told.sendall(b"%d\n" % pid)
        told.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    told.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, given in enumerate(descriptors[1:]):
        os.dup2(given, standard)
        os.close(given)
    return wanted


if __name__ == "__main__":
    gc.freeze()  # or every copy walks, and so copies, all that was imported
    run = _next_run(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(run["cwd"])
    os.environ.clear()
    os.environ.update(run["environment"])
    sys.argv[:] = ["copath", *run["arguments"]]
    main()
