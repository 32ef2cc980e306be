"""Tables of one client: a CSV file, a Parquet file or a data frame, all as columns of text.

Text is the common form on purpose: a number is then parsed in one place, so the same table gives the same model bit for
bit whichever way it came. Separators and encodings of CSV files are found out, and a note says so where there was doubt.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nbafl.errors import DataError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "nat", "<na>", "?"})
"""Values read as missing, in any case."""
TEXT_FILES = (".csv", ".tsv")
PARQUET_FILES = (".parquet", ".pq")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass(frozen=True)
class Table:
    """One client's rows as text, column by column; a missing value is the empty text."""

    name: str
    """The file's path, or what a message should call the table."""
    columns: dict[str, list[str]]
    rows: Sequence[int]
    """The row of the file each record stands in, as a spreadsheet counts them."""
    notes: tuple[str, ...] = ()
    """Where reading the file took a guess."""

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, record: int) -> str:
        """Where a record stands, for a message."""
        return f"row {self.rows[record]} of {self.name}"

    def missing(self, column: str) -> np.ndarray:
        """Which records have no value in a column."""
        return np.array([value == "" for value in self.columns[column]], dtype=bool)


def read_table(path: str | Path) -> Table:
    """One file, by its ending: Parquet, or text with separators."""
    path = Path(path)
    return _read_parquet(path) if path.suffix.lower() in PARQUET_FILES else _read_text(path)


def table_files(folder: Path) -> list[Path]:
    """The tables of a folder, sorted by name."""
    endings = (*TEXT_FILES, *PARQUET_FILES)
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() in endings and path.is_file())
    except OSError as error:
        raise DataError(f"The data folder {folder} cannot be read ({error.strerror}).") from None


def from_frame(frame: Any, name: str) -> Table:
    """A pandas or polars frame (or a mapping of columns), as if it had been read from a file."""
    keys = list(frame.columns) if hasattr(frame, "columns") else list(frame)
    names = [str(key).strip() for key in keys]
    _check_header(name, names)
    columns = {label: [_text(value) for value in frame[key]] for label, key in zip(names, keys, strict=True)}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1 or not max(lengths):
        raise DataError(f"{name} has no records, or columns of different lengths.")
    return Table(name, columns, range(1, lengths.pop() + 1))


def _read_text(path: Path) -> Table:
    content, notes = _decoded(path)
    separator = _separator(content)
    try:
        reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator, strict=True)
        rows = [(number, row) for number, row in enumerate(reader, 1) if row]
    except csv.Error as error:
        raise DataError(f"The file {path} cannot be read as CSV ({error}).") from None
    if not rows:
        raise DataError(f"The file {path} is empty; its first row must name the columns.")
    if separator != ",":
        notes.append(f"{path} is read with {SEPARATORS[separator]} between its values.")
    header = [name.strip() for name in rows[0][1]]
    _check_header(str(path), header)
    if len(rows) == 1:
        raise DataError(f"The file {path} has a header but no records; it needs at least one.")
    wrong = [(number, row) for number, row in rows[1:] if len(row) != len(header)]
    if wrong:
        more = f" ({len(wrong)} such rows)" if len(wrong) > 1 else ""
        raise DataError(
            f"Row {wrong[0][0]} of {path} has {len(wrong[0][1])} values, its header {len(header)}{more}."
        )
    columns = zip(*(row for _, row in rows[1:]), strict=True)
    values = {name: [_clean(value) for value in column] for name, column in zip(header, columns, strict=True)}
    if separator == ";":
        _read_decimal_commas(path, values, notes)
    return Table(str(path), values, [number for number, _ in rows[1:]], tuple(notes))


def _decoded(path: Path) -> tuple[str, list[str]]:
    """The file's text and a note where its encoding is a guess."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"The file {path} does not exist.") from None
    except OSError as error:
        raise DataError(f"The file {path} cannot be read ({error.strerror}).") from None
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return _strictly(content, "utf-16", path), []
    if b"\0" in content:
        raise DataError(f"The file {path} is not text (it holds zero bytes).")
    try:
        return content.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        note = f"{path} is not UTF-8 text (byte {error.start}); it is read as Windows-1252."
        return _strictly(content, "cp1252", path), [note]


def _strictly(content: bytes, encoding: str, path: Path) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"The file {path} is neither UTF-8 nor {encoding} text (byte {error.start})."
        ) from None


def _separator(content: str) -> str:
    """The separator that gives most of the first rows the header's number of values, at least two; else a comma."""
    head = content.splitlines(keepends=True)[:200]
    best, score = ",", (0, 0)
    for separator in SEPARATORS:
        rows = [row for row in csv.reader(head, delimiter=separator) if row]
        width = len(rows[0]) if rows else 0
        fitting = sum(len(row) == width for row in rows)
        if width > 1 and (fitting, width) > score:
            best, score = separator, (fitting, width)
    return best


def _read_decimal_commas(path: Path, values: dict[str, list[str]], notes: list[str]) -> None:
    """`1,5` means 1.5 in a file whose values are separated by semicolons."""
    for name, column in values.items():
        commas = [bool(_DECIMAL_COMMA.fullmatch(value)) for value in column]
        plain = [value == "" or number(value) is not None for value in column]
        if any(commas) and all(c or p for c, p in zip(commas, plain, strict=True)):
            values[name] = [value.replace(",", ".") for value in column]
            notes.append(
                f"Numbers such as {column[commas.index(True)]} in {name!r} of {path} are read with a decimal comma."
            )


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise DataError(f"Reading {path} needs pyarrow: pip install 'nbafl[tables]'.") from None
    try:
        read = parquet.read_table(path)
    except FileNotFoundError:
        raise DataError(f"The file {path} does not exist.") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"The file {path} cannot be read as Parquet ({error}).") from None
    names = [name for name in read.column_names if name != "__index_level_0__"]
    _check_header(str(path), [name.strip() for name in names])
    if not read.num_rows:
        raise DataError(f"The file {path} has a header but no records; it needs at least one.")
    columns = {name.strip(): [_text(value) for value in _values(read[name])] for name in names}
    return Table(str(path), columns, range(2, read.num_rows + 2))


def _values(column: Any) -> Any:
    """float32 stays float32, so that its text is the short one a CSV file would hold."""
    if str(column.type) in ("float", "halffloat") and not column.null_count:
        return column.to_numpy()
    if str(column.type) == "float":
        return [None if value is None else np.float32(value) for value in column.to_pylist()]
    return column.to_pylist()


def _text(value: Any) -> str:
    """A value as a CSV file would hold it; missing values are the empty text."""
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else str(value)
    return _clean(str(value))


def _clean(value: str) -> str:
    stripped = value.strip()
    return "" if stripped.lower() in MISSING else stripped


def _check_header(name: str, header: list[str]) -> None:
    for position, column in enumerate(header):
        if not column:
            raise DataError(f"Column {position + 1} of {name} has no name in the header.")
        if column in header[:position]:
            raise DataError(f"The column {column!r} appears twice in the header of {name}.")


def values_of(tables: Sequence[Table], name: str) -> list[str]:
    """All values of a column that are there."""
    return [value for table in tables for value in table.columns[name] if value]


def number(value: str) -> float | None:
    """The number a text stands for, or None."""
    try:
        return float(value)
    except ValueError:
        return None


def label(value: str) -> str:
    """One name per class: `1`, `1.0` and `01` are the same number."""
    parsed = number(value)
    return str(int(parsed)) if parsed is not None and parsed.is_integer() else value


def listed(names: Sequence[Any]) -> str:
    """Names for a message, the first twenty of them."""
    return ", ".join(repr(name) for name in names[:20]) + (" …" if len(names) > 20 else "")
