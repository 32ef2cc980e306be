"""What the noise is worth: sensitivity, adversaries, calibration, accounting, secure noise, ledger,
statement.

Read the modules in this order: `gaussian` (one number for a Gaussian release), `sensitivity` (how far one
record or client can move an upload), `adversary` (who sees what, and what a run costs against them),
`calibration` (claim to noise), `accounting` and `subsampling` (noise to guarantee), `statement`
(guarantee to plain words). Nothing here knows of torch or of models, and this file imports nothing, so
that `ledger` and `noise` stay quick to load.
"""
