"""Putting the studio up: pages, files, the guard in front of them, and the server that listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import HTTPException, Request
from fastapi.responses import HTMLResponse
from nicegui import Client, app, ui

from nbafl.errors import Refused
from nbafl.studio import figures_page, files, layout, plain
from nbafl.studio.background import Background
from nbafl.studio.draft import Draft
from nbafl.studio.guard import Guard, check_exposure
from nbafl.studio.launcher import Launcher
from nbafl.studio.plan_page import PlanPage
from nbafl.studio.predictions import Source, known_sources
from nbafl.studio.predictions_card import PredictionsCard
from nbafl.studio.run_folders import RunFolders
from nbafl.studio.run_table import View
from nbafl.studio.runs_page import RunsPage

PATIENCE = 30.0
"""Seconds a page may take to read thousands of run folders, or a busy machine to answer, before a page is given up."""
ANSWERED_AT_ONCE = 3
"""Plans that are being looked at at the same time."""


@dataclass(frozen=True)
class Studio:
    """What the studio shows and to whom."""

    runs: Path
    figures: Path
    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    constants: str | None = None
    run_folders: RunFolders = field(init=False)
    launcher: Launcher = field(init=False)
    answers: Background = field(init=False)
    """Where pages' questions about a plan are answered."""
    background: Background = field(init=False)
    sources: tuple[Source, ...] = field(init=False)

    def __post_init__(self) -> None:
        check_exposure(self.host, self.token)
        object.__setattr__(self, "run_folders", RunFolders(self.runs, apart=self.figures))
        object.__setattr__(self, "launcher", Launcher(self.runs))
        object.__setattr__(self, "answers", Background(ANSWERED_AT_ONCE))
        object.__setattr__(self, "background", Background())
        object.__setattr__(self, "sources", known_sources(self.constants))


def serve(studio: Studio, open_browser: bool = False) -> None:
    """Listen until interrupted."""
    _check_port(studio.host, studio.port)
    layout.serve_static()
    _pages(studio)
    files.serve(studio.run_folders, studio.figures)
    _say_what_went_wrong()
    app.on_startup(studio.answers.warm_up)
    app.on_shutdown(studio.answers.close)
    app.on_shutdown(studio.background.close)
    app.add_middleware(Guard, token=studio.token)
    print(f"nbafl studio on {_address(studio)} (Ctrl-C ends it; runs go on).", flush=True)
    ui.run(
        host=studio.host,
        port=studio.port,
        title="nbafl studio",
        favicon=layout.LOGO,
        language="en-US",
        reload=False,
        show=open_browser,
        tailwind=False,
        dark=None,
        show_welcome_message=False,
        binding_refresh_interval=None,
        reconnect_timeout=PATIENCE,
    )


def _pages(studio: Studio) -> None:
    @ui.page("/")
    def plan_page(request: Request, client: Client) -> None:
        with layout.page("Plan", "/", where=_where(studio)):
            outlook = PredictionsCard(client, studio.background, studio.sources)
            draft = Draft.from_query(request.query_params)
            PlanPage(client, draft, studio.launcher, studio.answers, outlook).build()

    @ui.page("/runs", response_timeout=PATIENCE)
    async def runs_page(request: Request, client: Client) -> None:
        with layout.page("Runs", "/runs", where=_where(studio)):
            chosen, view = request.query_params.getlist("run"), View.from_query(request.query_params)
            await RunsPage(client, studio.run_folders, studio.launcher, chosen, view).build()

    @ui.page("/figures")
    def figures() -> None:
        with layout.page("Figures", "/figures", where=f"folder {_short_path(studio.figures)}"):
            figures_page.build(studio.figures)


def _say_what_went_wrong() -> None:
    """Addresses that do not exist and mistakes of ours are answered with a sentence; the details go to the terminal."""

    @app.exception_handler(404)
    async def not_found(_request: Request, error: HTTPException) -> HTMLResponse:
        known = error.detail if error.detail != "Not Found" else "There is no such page."
        return HTMLResponse(plain.page(known, '<a href="/">To the Plan page</a>'), 404)

    @app.on_page_exception
    def broken_page() -> None:
        layout.markup("The studio could not show this page; the terminal it was started in says why.")


def _address(studio: Studio) -> str:
    host = f"[{studio.host}]" if ":" in studio.host else studio.host
    return f"http://{host}:{studio.port}/"


def _where(studio: Studio) -> str:
    return f"folder {_short_path(studio.runs)}"


def _short_path(path: Path) -> str:
    """A folder as the person at the terminal would name it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _check_port(host: str, port: int) -> None:
    """A port that is taken is said in a sentence, before anything else starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Refused(
                f"The studio cannot listen on {host} port {port}: {error.strerror}; try another --port."
            ) from None
