"""`nbafl studio`: the local web page to plan with sliders, watch runs and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbafl.errors import UsageError

HELP = """Open the studio: plan with sliders, watch runs while they train, compare them, see the paper's figures.

\b
Examples:
  nbafl studio   # then open http://127.0.0.1:8080
  nbafl studio --port 9000 --runs /data/runs
  nbafl studio --host 0.0.0.0 --token SECRET   # for others on the network
"""


def studio(
    port: Annotated[int, typer.Option(help="Port to listen on. [8080]", show_default=False)] = 8080,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; any but this machine's own needs --token. [127.0.0.1]",
            show_default=False,
        ),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            help="Secret required of every request; or in NBAFL_STUDIO_TOKEN.",
            envvar="NBAFL_STUDIO_TOKEN",
            show_envvar=False,
        ),
    ] = None,
    runs: Annotated[
        str, typer.Option(help="Folder with the run folders. [runs]", metavar="DIR", show_default=False)
    ] = "runs",
    figures: Annotated[
        str | None,
        typer.Option(help="Folder that nbafl reproduce wrote. [reproduce, among the runs]", metavar="DIR"),
    ] = None,
    constants: Annotated[
        str | None, typer.Option(help="Constants of the loss from an earlier pilot.", metavar="FILE")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    if not 1 <= port <= 65535:
        raise UsageError("port", port, "between 1 and 65535")
    if Path(runs).exists() and not Path(runs).is_dir():
        raise UsageError("runs", runs, "a folder, there or to be made")
    from nbafl.studio.server import Studio, serve

    folder = Path(runs).resolve()
    pictures = Path(figures).resolve() if figures else folder / "reproduce"
    serve(Studio(folder, pictures, host, port, token, constants), open_browser)
