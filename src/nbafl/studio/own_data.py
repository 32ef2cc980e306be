"""Data of one's own: a folder with a table for each party is looked at, told about, and becomes fields of the plan.

The folder is read in a process of its own, on this machine; what is shown comes straight from the records, so it is for
their owner's eyes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nicegui import ui

from nbafl.data.schema import SCHEMA_FILE
from nbafl.errors import DataError, NbaflError, UsageError
from nbafl.presets import OF_MNIST, PRESETS
from nbafl.studio import layout
from nbafl.studio.background import Background
from nbafl.studio.wording import SCROLL, escape

LOOKED_WITHIN = 120.0
ASKED = {
    "dataset": "Folder with one CSV or Parquet file per party",
    "target": "Column to predict (empty: as schema.toml says)",
    "test": "File with test records (empty: none)",
    "person": "Column that says whose row it is (empty: each row is its own)",
}


def look(dataset: str, target: str | None, test: str | None, person: str | None) -> dict[str, Any]:
    """What `nbafl data check --json` says; runs in the background."""
    from nbafl.data.description import describe

    return describe(dataset, target, test, None, (), person).to_dict()


def write_schema(dataset: str, target: str | None, test: str | None, person: str | None) -> str:
    """What `nbafl data schema` does, as a sentence; never over a schema that is there. Runs in the background."""
    from nbafl.data.description import write_draft
    from nbafl.data.inference import Wanted

    if target is None:
        raise UsageError("target", None, "the name of the column to predict")
    try:
        drafted = write_draft(dataset, Wanted(target, None, (), person), test)
    except OSError as error:
        raise DataError(f"{dataset} cannot be written to: {error.strerror}.") from error
    out = "; ".join(map(str, drafted.left_out))
    told = f" Left out: {out}." if out else ""
    return (
        f"{drafted.sentence}{told} Read it, correct it from what is known in public, then set public = true."
    )


class OwnData:
    """The dialog that asks for a folder."""

    def __init__(self, background: Background, start: Callable[[dict[str, Any]], None]) -> None:
        self.background = background
        self.start = start

    def ask(self) -> None:
        """Open it."""
        with (
            ui.dialog(value=True).props('aria-label="My own data"') as self.dialog,
            ui.card().classes("start-dialog data-dialog"),
        ):
            layout.heading("My own data")
            self.texts = {
                name: ui.input(label).props(f"outlined dense data-field=own-{name}")
                for name, label in ASKED.items()
            }
            self.problem = ui.label("").classes("field-error").props('role="alert" data-error=own-data')
            self.written = ui.label("").classes("notice note").props('role="status" data-own-schema')
            self.written.visible = False
            self.told = layout.markup("").props("data-own-data")
            with ui.row():
                self.check = ui.button("Look at it", on_click=self._look)
                self.check.props("unelevated no-caps data-action=look")
                self.write = ui.button("Write schema.toml", on_click=self._write)
                self.write.props("outline no-caps data-action=write-schema").disable()
                self.use = ui.button("Plan with it", on_click=self._use)
                self.use.props("outline no-caps data-action=use-data").disable()
                ui.button("Cancel", on_click=self.dialog.close).props("flat no-caps")

    def _asked(self) -> dict[str, str | None]:
        return {name: str(text.value or "").strip() or None for name, text in self.texts.items()}

    async def _look(self) -> None:
        asked = self._asked()
        self.problem.text, self.told.content = "", ""
        self.write.disable()
        if asked["dataset"] is None:
            self.problem.text = "dataset must be a folder of tables, got nothing."
            return
        self.check.disable()
        try:
            found = await self.background.make(look, *asked.values(), limit=LOOKED_WITHIN)
        except NbaflError as error:
            self.problem.text = str(error)
            return
        finally:
            self.check.enable()
        if found is not None:
            self._tell(found, asked)

    async def _write(self) -> None:
        """Write the schema and look again, since it says how the tables are read from now on."""
        self.problem.text, self.written.visible = "", False
        self.write.disable()
        try:
            said = await self.background.make(write_schema, *self._asked().values(), limit=LOOKED_WITHIN)
        except NbaflError as error:
            self.problem.text = str(error)
            return
        self.written.text, self.written.visible = str(said), True
        await self._look()

    def _tell(self, found: dict[str, Any], asked: dict[str, str | None]) -> None:
        self.told.content = describe(found, str(asked["dataset"]))
        self.write.set_enabled(not (Path(str(asked["dataset"])) / SCHEMA_FILE).exists())
        if found["problems"]:
            self.use.disable()
            return
        self.fields = fields_of(found, asked)
        self.use.enable()

    def _use(self) -> None:
        self.dialog.close()
        self.start(self.fields)


def fields_of(found: dict[str, Any], asked: dict[str, str | None]) -> dict[str, Any]:
    """The plan's fields that follow from a folder, beside those of the preset whose guarantee holds."""
    sizes = [int(size) for size in found["clients"].values()]
    fields = {name: value for name, value in PRESETS["private"].items() if name not in OF_MNIST}
    fields |= {name: value for name, value in (asked | {"test": found["test"]}).items() if value is not None}
    fields["clients"] = len(sizes)
    return fields | ({"samples": sizes[0]} if len(set(sizes)) == 1 else {"sizes": tuple(sizes)})


def describe(found: dict[str, Any], folder: str) -> str:
    """A folder in words: who, which columns, the schema, and what is wrong with it."""
    clients, total = found["clients"], sum(found["clients"].values())
    rows = "".join(
        f'<tr><th scope="row">{escape(each["name"])}</th><td>{escape(each["kind"])}</td>'
        f"<td>{escape(each['remark'])}</td></tr>"
        for each in found["columns"]
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("column", "kind", ""))
    problems = "".join(f'<p class="notice error">{escape(each)}</p>' for each in found["problems"])
    remarks = "".join(f'<p class="soft">{escape(each)}</p>' for each in found["remarks"])
    schema = (
        f"<p>Schema: {escape(found['schema'])}. To write one for its owners to declare public, press <i>Write "
        f"{SCHEMA_FILE}</i> below, or: <code>nbafl data schema {escape(folder)} --target COLUMN</code></p>"
    )
    return (
        f"<p><b>{len(clients)} parties with {total:,} records.</b></p>{problems}{remarks}{schema}"
        f'{SCROLL}<table class="compare"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
