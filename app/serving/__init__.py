"""Running the application: behind a socket until a signal comes, or for one request without any socket.

A signal begins the shutdown: SIGTERM with a lame duck (probes say no, everything is still served, answers ask for the
connection back), SIGINT, which is Ctrl-C on a terminal, without one. Then the socket closes, what is in flight may end, and
the house is left. A second signal ends the process at once, its builder processes with it.

    exit code  means
    0          a signal came and everything ended, or the drain ran out and what was left was told to come back
    1          what the configuration names refuses or is in use: a port, a database (one line on standard error says why);
               it was forced to end by a second signal, something did not end in time after the drain, or a fault that
               nobody caught ended it
    2          the command line or the configuration has to change, files of TLS or anchors that it names included (one line
               says why)

A signal never shows as 143 or 130: being told to end and ending is success. Only one that comes while the program is still
loading does, or to another command. Whoever supervises this process has to give it longer than lame_duck_secs + drain_secs +
ENDING_S.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys

from app.asgi import create_app
from app.core.shutdown import Phase, Shutdown
from app.house import House, demo_examples, open_house, watch_loop
from app.serving.asking import ask_once, lifespan, until_anchored
from app.serving.departure import Departure
from app.serving.farewell import Farewell
from app.serving.listener import TURN_S, Listener
from app.settings import Settings

__all__ = ["ENDING_S", "ask_once", "serve"]

log = logging.getLogger(__name__)

ENDING_S = 10.0
"""How long background work, pools and connections to upstreams may take to end after the drain."""


def serve(settings: Settings, *, is_demo: bool) -> int:
    """Serves until a signal ends it; the exit code of the process, which is to end then. Raises `CannotStart`."""
    shutdown = Shutdown(settings.shutdown.lame_duck_secs, settings.drain_secs, ENDING_S)
    departure = Departure(shutdown)
    listener = Listener(Farewell(create_app(settings, open_house)), settings)
    with departure.owning_signals():
        try:
            with asyncio.Runner(loop_factory=listener.loop_factory) as runner:
                runner.run(_serve(listener, settings, departure, shutdown, is_demo=is_demo))
        except BaseExceptionGroup as group:
            raise _single(group) from None
        departure.finish()
        log.info("shutdown_complete", extra={"cut": shutdown.cut})
    assert shutdown.exit_code is not None
    return shutdown.exit_code


async def _serve(
    listener: Listener, settings: Settings, departure: Departure, shutdown: Shutdown, *, is_demo: bool
) -> None:
    await listener.bind()
    try:
        async with lifespan(listener.app) as state:
            house: House = state["house"]
            watch_loop(house)
            _spare_the_collector()
            await listener.accept(state)
            departure.somebody_must_be_told = True
            log.info("listening", extra={"url": listener.url})
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(listener.keep_date(), name="date")]
                if is_demo:
                    beside.append(group.create_task(_invite(house, listener.url), name="invitation"))
                name = await departure.first_signal()
                house.begin_draining()
                log.info("shutdown_started", extra={"signal": name})
                await departure.reach(Phase.DRAINING)
                house.close_doors()
                listener.close()
                await asyncio.sleep(TURN_S)  # what has reached the socket by now is read before it closes
                await departure.reach(Phase.ENDING, listener.dismiss)
                departure.watch_the_end(ENDING_S)
                if shutdown.cut:
                    await listener.cut()
                for task in beside:
                    task.cancel()
    finally:
        listener.close()


def _spare_the_collector() -> None:
    """What starting has made stays to the end: walking it for garbage again and again would stop the loop for 60 ms each time."""
    gc.collect()
    gc.freeze()


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception inside, where there is only one."""
    fault: BaseException = group
    while isinstance(fault, BaseExceptionGroup) and len(fault.exceptions) == 1:
        fault = fault.exceptions[0]
    return fault


async def _invite(house: House, base: str) -> None:
    """The lines for whoever reads the demo's terminal, once its examples work."""
    if not await until_anchored(house):
        log.warning("demo_anchors_not_ready")
    lines = [f"Copath serves its demo on {base} (documentation: {base}/docs). Try:", ""]
    for shows, path in demo_examples(first=True):
        lines += [f"  # {shows}", f"  curl -s '{base}{path}'", ""]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
