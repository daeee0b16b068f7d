"""What probes get: that the process lives, that requests are answered, which models are ready."""

import pytest
from fake_client import PretendClient, http, info, pretend_app

REASON = "The engine process was killed by signal 9. The models are being loaded."


@pytest.fixture
def pretend():
    return PretendClient(info("a", aliases=("a", "first")), info("b"))


async def test_health_is_a_503_that_says_why_while_requests_are_not_answered(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend)) as client:
        pretend.unavailable = REASON
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            answer = await client.request(method, path)
            assert answer.status_code == 503
            error = {"message": REASON, "type": "ServiceUnavailableError", "param": None, "code": 503}
            assert answer.json() == {"error": error}
        pretend.unavailable = None
        assert (await client.get("/health")).status_code == 200


async def test_the_process_lives_whatever_the_models_do(tmp_path, pretend):
    pretend.unavailable = REASON
    async with http(pretend_app(tmp_path, pretend)) as client:
        answer = await client.get("/health/live")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_readiness_names_every_model_and_its_state(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend)) as client:
        ready = await client.get("/health/ready")
        pretend.unavailable = REASON
        unavailable = await client.get("/health/ready")
    assert ready.status_code == 200
    states = [{"id": "a", "state": "ready"}, {"id": "b", "state": "ready"}]
    assert ready.json() == {"status": "ready", "models": states}
    assert unavailable.status_code == 503
    assert {row["state"] for row in unavailable.json()["models"]} == {"unavailable"}
    assert unavailable.json()["error"]["message"] == REASON


async def test_readiness_of_one_model_does_not_depend_on_the_others(tmp_path, pretend):
    app = pretend_app(tmp_path, pretend)
    pretend.infos = pretend.infos[:1]  # the second was unloaded
    async with http(app) as client:
        assert (await client.get("/health/ready")).json()["error"]["message"] == "Not ready: b."
        assert (await client.get("/health/ready", params={"model": "first"})).status_code == 200
        assert (await client.get("/health/ready", params={"model": "b"})).status_code == 503
        assert (await client.get("/health/ready", params={"model": "c"})).status_code == 404


async def test_a_server_that_shuts_down_is_not_healthy_but_lives(tmp_path, pretend):
    app = pretend_app(tmp_path, pretend)
    app.state.service.inflight.close()
    async with http(app) as client:
        assert "shutting down" in (await client.get("/health")).json()["error"]["message"]
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.get("/health/live")).status_code == 200
