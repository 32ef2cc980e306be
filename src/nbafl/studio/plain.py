"""A page of one sentence, for answers that need nothing of the studio: the door, and addresses that do not exist."""

from __future__ import annotations

from html import escape

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>nbafl studio</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>body{{font:1rem/1.5 system-ui,sans-serif;color:#14202e;background:#f3f5f8;display:grid;place-items:center;
min-height:90vh;margin:0}}main{{background:#fff;border:1px solid #dce2e9;border-radius:14px;padding:2rem;margin:1rem}}
h1{{margin:0 0 .6rem;font-size:1.3rem}}input,button{{font:inherit;padding:.45rem .7rem;border-radius:9px;
border:1px solid #aab4c0}}button{{background:#0072b2;color:#fff;border-color:#0072b2}}a{{color:#0072b2}}</style></head>
<body><main><h1>nbafl studio</h1><p>{sentence}</p>{more}</main></body></html>"""


def page(sentence: str, more: str = "") -> str:
    """The page; `more` is markup of ours that comes after the sentence."""
    return _PAGE.format(sentence=escape(sentence), more=more)
