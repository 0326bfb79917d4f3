"""The page /docs: the OpenAPI document as HTML, without scripts and without files of other servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def documentation_page(document: Mapping[str, Any]) -> str:
    """The page for an OpenAPI document."""
    info = document["info"]
    schemas = document.get("components", {}).get("schemas", {})
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(info['title'])}: interface</title><link rel=stylesheet href=/page/docs.css>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('summary', ''))}</p>",
        "<p><a href=/openapi.json>The OpenAPI document</a></p>",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(method, path, operation)
    parts.append("<h2>Schemas</h2>")
    for name, schema in schemas.items():
        parts.append(f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(schema.get('description', ''))}</p>")
        parts += _fields(schema)
        parts += [f"<pre>{escape(json.dumps(example, indent=2))}</pre>" for example in schema.get("examples", [])]
    return "\n".join(parts) + "</html>\n"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>"
    yield f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>"
    content = operation.get("requestBody", {}).get("content", {})
    for media in content.values():
        yield f"<p>Body: {_type(media['schema'])}</p>"
    yield "<table><tr><th>status<th>response</tr>"
    for code, response in operation.get("responses", {}).items():
        types = [_type(media["schema"]) for media in response.get("content", {}).values() if media.get("schema")]
        yield f"<tr><td>{escape(code)}<td>{escape(response['description'])} {', '.join(types)}</tr>"
    yield "</table>"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        return
    yield "<table><tr><th>field<th>type<th>meaning</tr>"
    for name, field in schema["properties"].items():
        needed = " (required)" if name in schema.get("required", ()) else ""
        meaning = escape(field.get("description", ""))
        yield f"<tr><td><code>{escape(name)}</code>{needed}<td>{_type(field)}<td>{meaning}</tr>"
    yield "</table>"


def _type(schema: Mapping[str, Any]) -> str:
    """The type of a field, with links to schemas."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(_type(part) for part in schema[union])
    if "enum" in schema or "const" in schema:
        return " or ".join(
            f"<code>{escape(json.dumps(value))}</code>" for value in schema.get("enum", [schema.get("const")])
        )
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any value")))
