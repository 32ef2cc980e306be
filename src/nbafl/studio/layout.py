"""What every page of the studio shares: the bar at the top, the styles, and how pieces of text are put on a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nicegui import app, ui
from nicegui.element import Element

STATIC = Path(__file__).with_name("static")
STATIC_URL = "/studio-static"
PAGES = (("Plan", "/"), ("Runs", "/runs"), ("Figures", "/figures"))

LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">'
    '<rect width="32" height="32" rx="8" fill="#0072b2"/>'
    '<path d="M5 20l3-3 3 5 4-14 4 15 3-7 2 3h3" fill="none" stroke="#fff" stroke-width="2.3" '
    'stroke-linecap="round" stroke-linejoin="round"/></svg>'
)

AWAY = "The studio does not answer. What you see may be old, and nothing can be changed until it is back."


def serve_static() -> None:
    """Styles come from this machine, as everything does."""
    app.add_static_files(STATIC_URL, STATIC, max_cache_age=0)


@contextmanager
def page(title: str, active: str, where: str = "") -> Iterator[None]:
    """A page of the studio; its content goes inside."""
    ui.page_title(f"{title} · nbafl studio")
    ui.add_head_html(f'<link rel="stylesheet" href="{STATIC_URL}/studio.css">')
    ui.add_head_html(f'<script type="module" src="{STATIC_URL}/studio.js"></script>')
    ui.on_exception(
        lambda: notify_error("Something went wrong in the studio; the terminal it was started in says what.")
    )
    ui.colors(primary="#0072b2", negative="#b84a00", positive="#00795a")
    with ui.element("header").classes("top"):
        markup(f'<a class="brand" href="/">{LOGO}nbafl <span>studio</span></a>')
        with ui.element("nav").props('aria-label="Pages"'):
            for name, address in PAGES:
                link = ui.link(name, address)
                if address == active:
                    link.props('aria-current="page"')
        ui.label(where).classes("where")
        theme = ui.button(icon="contrast").props(
            'flat round dense aria-label="Light or dark" data-action=theme'
        )
        theme.classes("theme").on("click", js_handler="() => window.studioTheme()")
    markup(AWAY).classes("away-note").props('hidden role="alert"')
    with ui.element("main").classes("content"):
        yield


def markup(html: str, tag: str = "div") -> ui.html:
    """A piece of HTML made by this package; whatever came from outside was escaped by its maker."""
    return ui.html(html, sanitize=False, tag=tag)


def heading(text: str, level: int = 2) -> ui.html:
    """A heading of the page."""
    return markup(text, tag=f"h{level}")


def card(*classes: str) -> Element:
    """A white box."""
    return ui.element("section").classes("card " + " ".join(classes))


def notify_error(sentence: str) -> None:
    """A sentence about something that did not happen; it stays until it was read."""
    ui.notify(sentence, type="negative", multi_line=True, close_button="Close", timeout=0)
