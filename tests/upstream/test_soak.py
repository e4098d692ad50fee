"""The long runs of `bench/soak`, for a second each: what has to hold after a minute holds here too."""

from __future__ import annotations

import pytest

from bench.soak import brown_out, churn


@pytest.mark.parametrize("websocket", [False, True], ids=["http", "websocket"])
async def test_B55_fetches_given_up_lose_nothing(websocket: bool) -> None:
    found = await churn.soak(1.0, websocket=websocket)
    assert found.given_up > 0.5 * found.fetches > 50
    assert (found.lost, found.failed, found.served_afterwards) == (0, 0, churn.AFTERWARDS)


async def test_row_27_a_brown_out_beside_a_good_node_costs_hardly_more_than_the_need() -> None:
    found = await brown_out.soak(brown_out.made(400), 2, 1.5, every_s=0.01)
    assert (found.failed, found.refetched) == (0, 0)
    assert found.amplification <= 1.25, "the first few failures weigh more in so short a run"
    assert found.recovered_s is not None
