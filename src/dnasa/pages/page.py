"""The page: styles, scripts and contents in one HTML file that loads nothing else."""

import json
from importlib.resources import files
from typing import Any

STYLES = ("uPlot.css", "page.css")
SCRIPTS = ("uPlot.js", "elements.js", "charts.js", "details.js", "page.js")


def render(contents: dict[str, Any], live: bool = False) -> str:
    """Render the page; with `live`, it asks its server for what is new."""
    data = to_json({"live": live, **contents})
    parts = {
        "STYLE": "\n".join(map(_static, STYLES)),
        "SCRIPT": "\n".join(map(_static, SCRIPTS)),
        "CONTENTS": data.replace("<", "\\u003c"),  # nothing in it can end the element
    }
    html = _static("page.html")
    for name, content in parts.items():
        html = html.replace(f"<!--{name}-->", content)
    return html


def to_json(contents: dict[str, Any]) -> str:
    return json.dumps(contents, separators=(",", ":"), allow_nan=False)


def _static(name: str) -> str:
    return (files("dnasa.pages") / "static" / name).read_text(encoding="utf-8")
