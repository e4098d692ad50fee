"""A served house for every test that speaks HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from app.api.observe import Observe
from app.api.visit import RouteTable
from app.asgi import create_app
from app.settings import Settings
from app.settings.models import CorsSettings
from tests.api.fakes import RecordedHouse, anchored_chain, plain_chain
from tests.api.serving import serving


@pytest.fixture
def house() -> RecordedHouse:
    """Chain 2, `mainnet-early`: anchored, thirty blocks in a row. Chain 11, `modern`: three single blocks, no
    anchors."""
    return RecordedHouse([plain_chain(), anchored_chain()])


@pytest.fixture
async def client(house: RecordedHouse) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of that house's application."""
    async with serving(house) as speaking:
        yield speaking


@pytest.fixture
def route_table() -> RouteTable:
    """Every route of the application."""
    app = create_app(Settings.model_construct(cors=CorsSettings()))
    assert isinstance(app, Observe)
    return app.table
