"""Best whole numbers: against brute force, and what is said when there is no valley."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.theory.assumptions import Constants, Evaluation, TheoremSetting
from nbafl.theory.bounds import printed
from nbafl.theory.optimum import minimise, whole_numbers


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.integers(1, 900), st.floats(0.01, 10), st.integers(1, 950))
def test_gaps_are_filled_until_the_minimiser_is_exact(valley: int, steepness: float, limit: int) -> None:
    found = minimise("T", lambda t: Evaluation(steepness * abs(t - valley) ** 1.5), whole_numbers(limit))
    assert found.at == min(valley, limit)
    assert found.interior == (1 < valley < limit)


def test_the_printed_minimiser_is_that_of_brute_force() -> None:
    constants = Constants(rho=1.4, beta=0.4, polyak=0.05, dissimilarity=1.37, divergence=0.4, initial_gap=2.3)

    def value(rounds: int) -> Evaluation:
        return printed(TheoremSetting(50, 50, rounds, 1, 100, 60, 0.01, 5.0), constants)

    found = minimise("T", value, whole_numbers(2000))
    brute = {t: v for t in range(1, 2001) if (v := value(t).value) is not None}
    assert found.at == min(brute, key=lambda t: brute[t])
    assert found.interior
    assert found.curve[0].value is None  # T <= L sqrt(N) has no value and is no edge


def test_the_best_rounds_of_the_printed_form_grow_with_epsilon() -> None:
    constants = Constants(rho=1.4, beta=0.4, polyak=0.05, dissimilarity=1.37, divergence=0.4, initial_gap=2.3)
    best = [
        minimise(
            "T",
            lambda t, e=epsilon: printed(TheoremSetting(50, 50, t, 1, 100, e, 0.01, 5.0), constants),
            whole_numbers(3000),
        ).at
        for epsilon in (50, 60, 100)
    ]
    assert best == sorted(set(best))


def test_edges_and_empty_domains_are_said() -> None:
    rising = minimise("T", lambda t: Evaluation(float(t)), range(1, 20))
    assert (rising.at, rising.interior) == (1, False)
    assert "smallest T" in (rising.reason or "")
    falling = minimise("K", lambda k: Evaluation(-float(k)), range(1, 20))
    assert "largest K looked at, 19" in (falling.reason or "")
    nowhere = minimise("K", lambda _: Evaluation.refused("alpha_2 is not negative"), range(1, 5))
    assert nowhere.at is None
    assert "alpha_2" in (nowhere.reason or "")
    alone = minimise("T", lambda t: Evaluation(1.0) if t == 3 else Evaluation.refused("no"), range(1, 5))
    assert "only candidate" in (alone.reason or "")
