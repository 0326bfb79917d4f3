"""The page /docs: the OpenAPI document as HTML, without scripts and without files of other servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def documentation_page(document: Mapping[str, Any]) -> str:
    """The page for an OpenAPI document."""
    info = document["info"]
    schemas = document.get("components", {}).get("schemas", {})
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'><link rel=icon href=page/icon.svg>",
        f"<title>{escape(info['title'])}: interface</title><link rel=stylesheet href=page/docs.css></head><body>",
        "<header><nav aria-label='Other pages'><a href='./'>Try a model</a> <a href=openapi.json>OpenAPI document</a>",
        f"</nav><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{_prose(info.get('summary', ''))}</p></header><main>",
    ]
    operations = [
        (method, path, operation) for path, group in document["paths"].items() for method, operation in group.items()
    ]
    parts.append("<h2>Addresses</h2><table class=contents><tr><th scope=col>address<th scope=col>what it does</tr>")
    for method, path, operation in operations:
        link = f"<a href='#{_anchor(method, path)}'><code>{_address(method, path)}</code></a>"
        parts.append(f"<tr><td>{link}<td>{_meaning(operation)}</tr>")
    parts.append("</table>")
    for method, path, operation in operations:
        parts += _operation(method, path, operation, schemas)
    parts.append("<h2>Schemas</h2>")
    for name, schema in schemas.items():
        parts.append(f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{_prose(schema.get('description', ''))}</p>")
        parts += _fields(schema)
        parts += [_code(json.dumps(example, indent=2)) for example in schema.get("examples", [])]
    return "\n".join(parts) + "</main></body></html>\n"


def _address(method: str, path: str) -> str:
    return f"{escape(method.upper())} {escape(path)}"


def _anchor(method: str, path: str) -> str:
    return escape(re.sub(r"\W+", "-", f"{method}{path}").strip("-"))


def _meaning(operation: Mapping[str, Any]) -> str:
    return _prose(operation.get("description") or operation.get("summary", ""))


def _prose(text: str) -> str:
    """A text whose parts between backticks are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _code(text: str) -> str:
    return f"<pre tabindex=0>{escape(text)}</pre>"


def _operation(
    method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    yield f"<h2 id='{_anchor(method, path)}'><code>{_address(method, path)}</code></h2><p>{_meaning(operation)}</p>"
    content = operation.get("requestBody", {}).get("content", {})
    for kind, media in content.items():
        yield f"<p>Body: {_type(media['schema'])}, such as</p>"
        for example in schemas.get(media["schema"].get("$ref", "").rpartition("/")[2], {}).get("examples", [])[:1]:
            body = json.dumps(example).replace("'", "'\\''")
            yield _code(f"curl ADDRESS{path} \\\n  -H 'Content-Type: {kind}' \\\n  -d '{body}'")
    yield "<table class=responses><tr><th scope=col>status<th scope=col>response</tr>"
    for code, response in operation.get("responses", {}).items():
        types = [_type(media["schema"]) for media in response.get("content", {}).values() if media.get("schema")]
        yield f"<tr><td>{escape(code)}<td>{_prose(response['description'])} {', '.join(types)}</tr>"
    yield "</table>"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        return
    yield "<table><tr><th scope=col>field<th scope=col>type<th scope=col>meaning</tr>"
    for name, field in schema["properties"].items():
        needed = " (required)" if name in schema.get("required", ()) else ""
        meaning = _prose(field.get("description", ""))
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
