"""The OpenAPI document says what the API does: schemathesis tries to prove it wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client

from tests.integration.payments.api import Api
from tests.plugins.gateway import GatewayProcess

ROOT = Path(__file__).resolve().parents[3]
REQUESTS = 2000


@pytest.mark.django_db(transaction=True)
def test_no_request_gets_a_server_error_or_an_undocumented_answer(
    live_server: Any, acme: Api, globex: Api, bank: GatewayProcess
) -> None:
    """All checks of schemathesis, on at least 2,000 requests, the same ones every time.

    Run it by hand without `--generation-deterministic` for other requests: see schemathesis.toml.
    """
    acme.fund(10**15)
    program = str(Path(sys.executable).with_name("schemathesis"))
    command = [program, "--no-color", "run", f"{live_server.url}/api/schema/", "--workers", "2"]
    command += ["--checks", "all", "--continue-on-failure", "--generation-deterministic"]
    environment = os.environ | {
        "SCHEMATHESIS_API_KEY": acme.secret,
        "SCHEMATHESIS_ACCOUNT": globex.merchant.public_id,
    }
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    generated = re.search(r"(\d+) generated", run.stdout)
    assert generated is not None, run.stdout
    assert int(generated[1]) >= REQUESTS


def schema() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(Client().get("/api/schema/").content)
    return document


@pytest.mark.parametrize("version", ["9", "a%0d%0aSet-Cookie:x", "%00", "%22;x"])
def test_a_version_that_there_is_not_gets_into_no_header(version: str) -> None:
    answer = Client().get(f"/api/schema/?version={version}")
    assert (answer.status_code, answer["Content-Disposition"]) == (
        200,
        'inline; filename="Payments.yaml"',
    )


def test_every_route_of_the_api_is_in_the_document() -> None:
    assert set(schema()["paths"]) == {
        "/healthz",
        "/readyz",
        "/v1/balance",
        "/v1/charges",
        "/v1/charges/{charge_id}",
        "/v1/charges/{charge_id}/refunds",
        "/v1/gateway-events",
        "/v1/idempotency-keys/{key}",
        "/v1/refunds/{refund_id}",
        "/v1/transfers",
        "/v1/transfers/{transfer_id}",
        "/v1/webhook-endpoints/{endpoint_id}",
    }


def test_every_body_of_a_merchants_is_offered_in_three_media_types_and_closed() -> None:
    document = schema()
    bodies = [
        (operation["requestBody"]["content"], path)
        for path, methods in document["paths"].items()
        for operation in methods.values()
        # The gateway's are what it makes them.
        if "requestBody" in operation and path != "/v1/gateway-events"
    ]
    assert len(bodies) == 5
    for content, path in bodies:
        assert len(content) == 3, path
        for body in content.values():
            name = body["schema"]["$ref"].rsplit("/", 1)[1]
            assert document["components"]["schemas"][name]["additionalProperties"] is False


def test_every_error_is_a_problem_document() -> None:
    for methods in schema()["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"]
