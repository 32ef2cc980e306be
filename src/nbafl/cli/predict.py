"""`nbafl predict`: use the model of a run on new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nbafl.errors import UsageError

HELP = """Use the model of a run on new rows: a CSV or Parquet file in, probabilities or numbers out.

\b
Examples:
  nbafl predict runs/NAME new.csv -o answers.csv
  nbafl predict runs/NAME --onnx model.onnx
      # the numeric part, with its schema beside it
"""


def predict(
    run: Annotated[str, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    rows: Annotated[
        str | None, typer.Argument(help="Table without the target, or records as .npy.", metavar="FILE")
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Where the answers go. [printed]", metavar="FILE")
    ] = None,
    onnx: Annotated[
        str | None, typer.Option(help="Export the model as ONNX instead.", metavar="FILE")
    ] = None,
) -> None:
    from nbafl.durable import check_file, write_text
    from nbafl.run import Run

    if (rows is None) == (onnx is None):
        raise UsageError("rows", rows, "a file of rows to answer, or --onnx FILE alone")
    check_file("out", out)
    check_file("onnx", onnx)
    found = Run.load(run)
    if onnx is not None:
        print(f"Wrote {found.export_onnx(onnx)}")
        return
    answers = found.predict(Path(str(rows)))
    for remark in answers.remarks:
        print(f"Note: {remark}", file=sys.stderr)
    if out is None:
        sys.stdout.write(answers.to_csv())
    else:
        write_text(out, answers.to_csv())
        print(f"Wrote {len(answers.values):,} answers to {out}")
