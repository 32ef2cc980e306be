"""How far training gets: the paper's convergence theorems, a bound that holds, and the best T and K.

`bounds` evaluates both forms, `optimum` minimises them over whole numbers, `constants` and `planner` measure what
they need in a short pilot, and `planning` puts it together for a plan. Only `repaired` may be called a bound.
"""

from nbafl.theory.assumptions import Constants, Evaluation, TheoremSetting

__all__ = ["Constants", "Evaluation", "TheoremSetting"]
