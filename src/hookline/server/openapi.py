"""Builds the OpenAPI document from the declared endpoints, so it always matches them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hookline.server import blob_api
from hookline.server.access import ADMIN_PATHS, LOGIN_PATH, Access, LoggedIn, Login
from hookline.server.actions import HEADER, ActionEndpoint
from hookline.server.endpoint import Endpoint, Parameter, WriteEndpoint
from hookline.server.limits import MAX_NAME_LENGTH


class Failure(msgspec.Struct):
    """Why a request was refused, for people."""

    error: str


_READ_ERRORS = {
    "400": "A parameter is not accepted.",
    "404": "There is no such run or name.",
    "503": "The query took too long.",
}
_ACCESS_ERRORS = {
    "401": "The token is missing, wrong or expired.",
    "403": "The token has another role, or is for other projects.",
}
_WRITE_ERRORS = {
    "400": "A name, a parameter or the body is not accepted.",
    "404": "There is no such path.",
    "405": "The path needs another method.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "415": "The content type or encoding is not supported.",
    "503": "Too much is being sent at once.",
    "507": "The disk is full.",
}
_STREAM = {
    "summary": "Changes of runs as server-sent events.",
    "responses": {
        "200": {
            "description": "Events `runs` with changed and removed runs, and `beat` when nothing changes. The first "
            "one has all runs (`whole`). In later ones, a known run has its id and the fields that changed.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        "503": {"description": "Every stream is in use."},
    },
}
_Schemas = dict[Any, dict[str, Any]]


def openapi(
    endpoints: Sequence[Endpoint],
    version: str,
    write_endpoints: Sequence[WriteEndpoint] = (),
    access: Access | None = None,
    actions: Sequence[ActionEndpoint] = (),
) -> dict[str, Any]:
    """The document.

    Args:
        access: The access rules; without them everyone may read and no one may write.
    """
    replies = [*(endpoint.reply for endpoint in endpoints), *(endpoint.reply for endpoint in write_endpoints)]
    replies += [kind for action in actions for kind in (action.reply, action.body)]
    kinds = [*dict.fromkeys(replies), Failure]
    kinds += [Login, LoggedIn] if access else []
    bodies = [each["schema"] for endpoint in write_endpoints for each in endpoint.body.values()]
    kinds += [kind for kind in bodies if isinstance(kind, type) and kind not in kinds]
    made, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, made, strict=True))
    paths: dict[str, Any] = {each.path: {"get": _read_operation(each, schemas, access)} for each in endpoints}
    responses = blob_api.DOCUMENT["responses"] | _errors(_READ_ERRORS, schemas)
    paths[blob_api.PATH] = {"get": _with_access(blob_api.DOCUMENT | {"responses": responses}, schemas, access)}
    paths["/api/stream"] = {"get": _with_access(_STREAM, schemas, access)}
    for endpoint in write_endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _write_operation(endpoint, schemas)
    for action in actions:
        paths[action.path] = {"post": _action_operation(action, schemas, access)}
    if access is not None:
        paths[LOGIN_PATH] = {"post": _login_operation(schemas)}
    description = "Recorded runs." if access is None else "Recorded and received runs."
    return {
        "openapi": "3.1.0",
        "info": {"title": "hookline", "version": version, "description": description},
        "paths": paths,
        "components": {"schemas": components} | ({"securitySchemes": _security_schemes(access)} if access else {}),
    }


def _read_operation(endpoint: Endpoint, schemas: _Schemas, access: Access | None) -> dict[str, Any]:
    operation = {
        "summary": endpoint.summary,
        "parameters": [parameter.document() for parameter in endpoint.parameters],
        "responses": {"200": _response(endpoint.summary, schemas[endpoint.reply]), **_errors(_READ_ERRORS, schemas)},
    }
    operation = _with_access(operation, schemas, access)
    return operation | ({"security": [{"admin": []}]} if endpoint.path in ADMIN_PATHS else {})


def _with_access(operation: dict[str, Any], schemas: _Schemas, access: Access | None) -> dict[str, Any]:
    if access is None:
        return operation
    security: list[Any] = [] if access.is_open else [{"read": []}, {"cookie": []}]
    return operation | {"responses": operation["responses"] | _errors(_ACCESS_ERRORS, schemas), "security": security}


def _write_operation(endpoint: WriteEndpoint, schemas: _Schemas) -> dict[str, Any]:
    errors = _ACCESS_ERRORS | _WRITE_ERRORS | dict(endpoint.refusals)
    content = {}
    for kind, each in endpoint.body.items():
        content[kind] = {"schema": schemas[each["schema"]]} if isinstance(each["schema"], type) else dict(each)
    return {
        "summary": endpoint.summary,
        "parameters": [*map(_path_parameter, endpoint.names), *(each.document() for each in endpoint.parameters)],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": _response(endpoint.summary, schemas[endpoint.reply]), **_errors(errors, schemas)},
        "security": [{"write": []}],
    }


def _action_operation(action: ActionEndpoint, schemas: _Schemas, access: Access | None) -> dict[str, Any]:
    errors = {code: _WRITE_ERRORS[code] for code in ("400", "408", "413", "415", "503")}
    errors |= {"403": "Nothing can be changed here, or by this token or page.", "404": "There is no such run."}
    errors |= {"401": _ACCESS_ERRORS["401"]} if access else {}
    header = {"name": HEADER, "in": "header", "required": True, "schema": {"type": "string", "const": "1"}}
    return {
        "summary": action.summary,
        "parameters": [header | {"description": "Shows that no other site makes the request."}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schemas[action.body]}}},
        "responses": {"200": _response(action.summary, schemas[action.reply]), **_errors(errors, schemas)},
    } | ({"security": [{"write": []}]} if access else {})


def _login_operation(schemas: _Schemas) -> dict[str, Any]:
    errors = {code: _WRITE_ERRORS[code] for code in ("400", "408", "413", "415", "503")}
    errors["401"] = "This is not a token that may read."
    return {
        "summary": "Exchange a token that may read for a cookie.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schemas[Login]}}},
        "responses": {"200": _response("The cookie is set.", schemas[LoggedIn]), **_errors(errors, schemas)},
        "security": [],
    }


def _path_parameter(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH}
    return parameter.document() | {"in": "path", "schema": schema}


def _security_schemes(access: Access) -> dict[str, Any]:
    schemes: dict[str, Any] = {
        role: {"type": "http", "scheme": "bearer", "description": f"A token with the role {role}."}
        for role in ("write", "admin")
    }
    if not access.is_open:
        schemes["read"] = {"type": "http", "scheme": "bearer", "description": "A token with the role read or admin."}
        schemes["cookie"] = {"type": "apiKey", "in": "cookie", "name": access.cookie_name}
    return schemes


def _errors(descriptions: Mapping[str, str], schemas: _Schemas) -> dict[str, Any]:
    return {code: _response(text, schemas[Failure]) for code, text in descriptions.items()}


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
