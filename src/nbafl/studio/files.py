"""The files the studio hands out: reports of runs, and pictures of `nbafl reproduce`.

A run folder may come from somebody else, so what lies in it is shown without any right to run scripts or to load
anything, and only files of the expected names are served at all.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import HTTPException
from fastapi.responses import FileResponse
from nicegui import app

from nbafl.folders import audits
from nbafl.studio.run_folders import RunFolders

HARMLESS = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
PICTURES = (".png", ".svg", ".csv")


def serve(run_folders: RunFolders, figures: Path) -> None:
    """Register the addresses."""

    @app.get("/files/runs/{name:path}/report")
    def report(name: str, download: bool = False) -> FileResponse:
        entry = run_folders.find(name)
        if entry is None or not entry.has_report:
            raise HTTPException(404, f"The run {name!r} has no report.")
        disposition = "attachment" if download else "inline"
        return _file(entry.path / "report.html", f"{entry.path.name}.html", disposition)

    @app.get("/files/runs/{name:path}/picture/{file}")
    def audit_picture(name: str, file: str) -> FileResponse:
        entry = run_folders.find(name)
        if entry is None or file not in audits.PICTURES or not (entry.path / file).is_file():
            raise HTTPException(404, f"The run {name!r} has no such picture.")
        return _file(entry.path / file, file, "inline")

    @app.get("/files/runs/{name:path}/sweep")
    def sweep(name: str) -> FileResponse:
        entry = run_folders.find(name)
        if entry is None or not (entry.path / "index.html").is_file():
            raise HTTPException(404, f"The sweep {name!r} has no page yet.")
        return _file(entry.path / "index.html", f"{entry.path.name}.html", "inline")

    @app.get("/files/figures/{name}")
    def picture(name: str) -> FileResponse:
        path = figures / name
        if path.suffix not in PICTURES or path.name != name or not path.is_file():
            raise HTTPException(404, f"There is no figure {name!r}.")
        return _file(path, name, "attachment" if path.suffix == ".csv" else "inline")


def _file(path: Path, name: str, disposition: str) -> FileResponse:
    headers = {
        "Content-Security-Policy": HARMLESS,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return FileResponse(path, filename=name, content_disposition_type=disposition, headers=headers)
