"""The OpenAPI document, made of what the endpoints declare, so that it says what is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hookline.server.access import LOGIN, Access, LoggedIn, Login
from hookline.server.endpoint import Endpoint, WriteEndpoint
from hookline.server.limits import LONGEST_NAME
from hookline.server.parameters import Parameter


class Failure(msgspec.Struct):
    """Why a request was refused, for people."""

    error: str


_REFUSED = {
    "400": "A parameter is not accepted.",
    "404": "There is no such run or name.",
    "503": "It takes too long to answer.",
}
_UNKNOWN = {"401": "There is no token, or another one.", "403": "The token is for something else."}
_SENT = {
    "400": "A name, a parameter or the body is not accepted.",
    "404": "There is no such address.",
    "405": "Another method is needed there.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "415": "The body is packed, or of a type, that is not known.",
    "503": "Too much is being sent at a time.",
    "507": "There is no room left.",
}
_STREAM = {
    "summary": "What changes, as server-sent events.",
    "responses": {
        "200": {
            "description": "Events `runs` with the runs that changed or were removed, and `beat` when nothing did.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        "503": {"description": "Every stream is in use."},
    },
}


def openapi(
    endpoints: Sequence[Endpoint],
    version: str,
    writing: Sequence[WriteEndpoint] = (),
    access: Access | None = None,
) -> dict[str, Any]:
    """The document.

    Args:
        writing: Where something can be sent.
        access: Who may do what, where not everybody may read and nobody write.
    """
    replies = [*(endpoint.reply for endpoint in endpoints), *(endpoint.reply for endpoint in writing)]
    kinds = [*dict.fromkeys(replies), Failure]
    kinds += [Login, LoggedIn] if access else []
    kinds += [kind for endpoint in writing for kind in _types(endpoint) if kind not in kinds]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(kinds, schemas, strict=True))
    reading = _Reading(by_kind, access)
    paths: dict[str, Any] = {endpoint.path: {"get": reading.operation(endpoint)} for endpoint in endpoints}
    paths["/api/stream"] = {"get": reading.guarded(_STREAM)}
    for endpoint in writing:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _writing(endpoint, by_kind)
    if access is not None:
        paths[LOGIN] = {"post": _login(by_kind)}
    description = "Recorded runs, read-only." if access is None else "Recorded runs, also of other machines."
    return {
        "openapi": "3.1.0",
        "info": {"title": "hookline", "version": version, "description": description},
        "paths": paths,
        "components": {"schemas": components} | ({"securitySchemes": _schemes(access)} if access else {}),
    }


@dataclass(frozen=True, slots=True)
class _Reading:
    """Describes what can be read."""

    schemas: dict[Any, dict[str, Any]]
    access: Access | None

    def operation(self, endpoint: Endpoint) -> dict[str, Any]:
        made = {
            "summary": endpoint.summary,
            "parameters": [parameter.document() for parameter in endpoint.parameters],
            "responses": {
                "200": _response(endpoint.summary, self.schemas[endpoint.reply]),
                **_failures(_REFUSED, self.schemas),
            },
        }
        return self.guarded(made)

    def guarded(self, operation: dict[str, Any]) -> dict[str, Any]:
        """With what is asked of those who read."""
        if self.access is None:
            return operation
        failures = _failures(_UNKNOWN, self.schemas)
        security: list[Any] = [] if self.access.tokens.read is None else [{"read": []}, {"cookie": []}]
        return operation | {"responses": operation["responses"] | failures, "security": security}


def _writing(endpoint: WriteEndpoint, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    words = _UNKNOWN | _SENT | dict(endpoint.refusals)
    content = {kind: {"schema": schemas.get(each["schema"], each["schema"])} if isinstance(each["schema"], type)
               else dict(each) for kind, each in endpoint.body.items()}  # fmt: skip
    return {
        "summary": endpoint.summary,
        "parameters": [*map(_in_path, endpoint.names), *(each.document() for each in endpoint.parameters)],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": _response(endpoint.summary, schemas[endpoint.reply]), **_failures(words, schemas)},
        "security": [{"write": []}],
    }


def _login(schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    words = {code: _SENT[code] for code in ("400", "408", "413", "415", "503")}
    words["401"] = "This is not the read token."
    return {
        "summary": "Show the read token, and get a cookie for it.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schemas[Login]}}},
        "responses": {"200": _response("The cookie is set.", schemas[LoggedIn]), **_failures(words, schemas)},
        "security": [],
    }


def _types(endpoint: WriteEndpoint) -> list[Any]:
    return [each["schema"] for each in endpoint.body.values() if isinstance(each["schema"], type)]


def _in_path(parameter: Parameter) -> dict[str, Any]:
    described = parameter.document() | {"in": "path"}
    described["schema"] = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}
    return described


def _schemes(access: Access) -> dict[str, Any]:
    schemes: dict[str, Any] = {"write": {"type": "http", "scheme": "bearer", "description": "The write token."}}
    if access.tokens.read is not None:
        schemes["read"] = {"type": "http", "scheme": "bearer", "description": "The read token."}
        schemes["cookie"] = {"type": "apiKey", "in": "cookie", "name": access.cookie_name}
    return schemes


def _failures(words: Mapping[str, str], schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    return {code: _response(text, schemas[Failure]) for code, text in words.items()}


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
