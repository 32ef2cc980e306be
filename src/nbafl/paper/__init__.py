"""Figures 2 to 11 of the paper, reproduced, with a computed verdict on every claim.

`settings` holds the numbers, `runs` says which trainings the figures need and shares them, `data` computes those
(with torch and numpy alone), `fig*` turn them into pictures, `verdicts` tests the claims, `reproduce` does it all.
"""
