"""Requests that load and unload models."""


def error_of(answer):
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    return error["code"], error["message"], error["param"]


async def load(client, folder, name="late", **more):
    return await client.post("/v1/load_model", json={"name": name, "model": str(folder), **more})


async def unload(client, name, **more):
    return await client.post("/v1/unload_model", json={"name": name, **more})
