"""The OpenAPI document, made of what the endpoints declare, so that it says what is."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hookline.server.endpoint import Endpoint


class Failure(msgspec.Struct):
    """Why a request was refused, for people."""

    error: str


_STREAM = {
    "summary": "What changes, as server-sent events.",
    "responses": {
        "200": {
            "description": "Events `runs` with the runs that changed or were removed, and `beat` when nothing did.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
}


def openapi(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The document."""
    kinds = [*dict.fromkeys(endpoint.reply for endpoint in endpoints), Failure]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths = {endpoint.path: {"get": _operation(endpoint, by_kind)} for endpoint in endpoints}
    return {
        "openapi": "3.1.0",
        "info": {"title": "hookline", "version": version, "description": "Recorded runs, read-only."},
        "paths": paths | {"/api/stream": {"get": _STREAM}},
        "components": {"schemas": components},
    }


def _operation(endpoint: Endpoint, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    refused = {"400": "A parameter is not accepted.", "404": "There is no such run or name."}
    failures = {code: _response(words, schemas[Failure]) for code, words in refused.items()}
    return {
        "summary": endpoint.summary,
        "parameters": [parameter.document() for parameter in endpoint.parameters],
        "responses": {"200": _response(endpoint.summary, schemas[endpoint.reply]), **failures},
    }


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
