"""The OpenAPI document, made from the table and from the types that decode and encode (§16.10)."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.access import Scope
from holdfast.api.bodies import Body, NoQuery, Problem
from holdfast.api.table import ROUTES, Route
from holdfast.core import bounds

REF = "#/components/schemas/{name}"
_ERRORS = {
    "400": "The server does not answer under the name in the Host header",
    "401": "No token, or one that is unknown, expired or revoked",
    "403": "The token, a policy, a link, or the site that the request comes from does not allow it",
    "404": "It does not exist, or this token may not see it",
    "409": "Another request was first, or the state of the run does not allow it",
    "412": "The run has changed since the version that If-Match names, or the request is about no run",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "422": "Something in the request is not right",
    "429": "Too much is queued",
    "503": "The store cannot be reached, or the server is shutting down",
}
_MAKES = ("/v1/runs", "/v1/runs/{run_id}/replay", "/v1/runs/{run_id}/fork", "/v1/schedules/{schedule_id}/trigger")
"""POSTs that create a run."""
_ALONE = ("/v1/health", "/v1/openapi.json")
"""Paths that are answered without the store."""
EXAMPLES: dict[str, Any] = {
    "Submit": {"skill_id": "release-notes", "input": {"repo": "."}, "thread_id": "t1"},
    "Approve": {"note": "looks fine", "actor": "ada"},
    "Deny": {"reason": "not on a Friday"},
    "Decide": {"action": "approve", "actor": "ada"},
    "Answer": {"action": "approve"},
    "Resume": {"acknowledge": "step_failed"},
    "Cancel": {"reason": "no longer wanted"},
    "Signal": {"name": "paid", "payload": {"amount": 3}, "key": "invoice-7"},
    "Replay": {"from_step": 1},
    "Fork": {"set": {"draft": "another text"}, "reason": "the first one was too long"},
    "Repair": {"apply": False},
    "Redrive": {"reason": "the receiver is up again"},
    "Settle": {"as": "sent", "reason": "found in the receiver's log"},
    "Empty": {},
}


def document(version: str) -> dict[str, Any]:
    """Returns the document, in OpenAPI 3.1."""
    kinds: list[Any] = [Problem]
    for route in ROUTES:
        kinds += [k for k in (route.body, route.answers) if _has_name(k)]
    unique = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(unique, ref_template=REF)
    for name, example in EXAMPLES.items():
        if name in components:
            components[name]["examples"] = [example]
    refs = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version, "summary": "A durable execution runtime, over HTTP."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": f"Scopes: {', '.join(Scope)}"}}},
    }


def _has_name(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _errors(route: Route) -> dict[str, str]:
    """Returns the error statuses that an operation may answer with, and the description of each."""
    acts = route.method == "POST"
    may = {
        "400": True, "401": route.scope is not None, "403": route.scope is not None or acts, "404": "{" in route.path or (route.path in _MAKES and acts),
        "409": acts or "{run_id}" in route.path, "412": acts, "413": acts, "415": acts, "422": True, "429": acts and route.path in _MAKES, "503": route.path not in _ALONE,
    }
    return {code: text for code, text in _ERRORS.items() if may[code]}


def _operation(route: Route, refs: dict[Any, Any]) -> dict[str, Any]:
    answer = refs.get(route.answers, {"type": "object"}) if route.media == "application/json" else {"type": "string"}
    told = {str(route.status): {"description": "Done", "content": {route.media: {"schema": answer}}}}
    if route.path == "/v1/runs" and route.method == "POST":
        told["200"] = {"description": "The run that was created under this key before", "content": {route.media: {"schema": answer}}}
    if route.path == "/v1/runs/{run_id}" and route.method == "GET":
        told["304"] = {"description": "The run has not changed"}
        answer = {"type": "object"}  # fields= selects some fields, and view=legacy has another shape
        told["200"]["content"] = {route.media: {"schema": answer}}
    if route.path == "/v1/runs" and route.method == "GET":
        told["200"]["content"] = {route.media: {"schema": {"type": "object"}}}
    problem = {"application/problem+json": {"schema": refs[Problem]}}
    made: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.does,
        "parameters": [*_path(route), *_query(route.query)],
        "responses": {**told, **{code: {"description": text, "content": problem} for code, text in _errors(route).items()}},
    }
    if route.scope is not None:
        made["security"] = [{"token": []}]
        made["x-scope"] = str(route.scope)
    if route.body is not None:
        made["requestBody"] = {"required": False, "content": {"application/json": {"schema": refs[route.body]}}}
        made["parameters"].append(_header("Idempotency-Key", "A request with the same key and body gets the first answer again", bounds.ID_BYTES))
    if route.matches:
        made["parameters"].append(_header("If-Match", "The ETag of the run as you saw it"))
    return made


def _operation_id(route: Route) -> str:
    words = re.sub(r"[{}]", "", route.path.removeprefix("/v1")).strip("/").replace("/", "_").replace(".", "_") or "root"
    return f"{route.method.lower()}_{words}"


def _header(name: str, text: str, most: int | None = None) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string", **({"maxLength": most} if most is not None else {})}}


def _path(route: Route) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", route.path)
    return [{"name": n, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for n in names]


def _query(kind: type[Body]) -> list[dict[str, Any]]:
    if kind is NoQuery:
        return []
    _, components = msgspec.json.schema_components([kind], ref_template=REF)
    schema = components[kind.__name__]
    required = set(schema.get("required", ()))
    return [{"name": n, "in": "query", "required": n in required, "schema": _flat(s)} for n, s in schema["properties"].items()]


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a parameter without null: a query cannot contain null, so an optional parameter has one type."""
    options = [s for s in schema.get("anyOf", ()) if s.get("type") != "null"]
    return dict(options[0]) if options else {k: v for k, v in schema.items() if k != "default"}


__all__ = ["EXAMPLES", "document"]
