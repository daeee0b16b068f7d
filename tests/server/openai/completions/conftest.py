"""A server with a fake engine client."""

import pytest
from fake_client import PretendClient, http, pretend_app


@pytest.fixture
def pretend():
    return PretendClient()


@pytest.fixture
async def client(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend)) as client:
        yield client
