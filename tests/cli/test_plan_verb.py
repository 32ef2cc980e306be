"""`nbafl plan`: the reference values through the command line, and bad input of every kind."""

from __future__ import annotations

import json
import re

import pytest
from tests.paper_setting import OPTIONS

from nbafl.cli import run_command

# math.md, section 13, reference values: delta=0.01, N=50, T=25, L=1, C=10, m=100. epsilon: (sigma_U, sigma_D, sigma_A)
PAPER = {
    50: (0.01243, 0.00596124, 0.00621502),
    60: (0.0103584, 0.0049677, 0.00517919),
    100: (0.00621502, 0.00298062, 0.00310751),
}
EAVESDROPPER = {
    50: (0.0310612, 0.00152168, 0.00464881),
    60: (0.027849, 0.00136432, 0.00416806),
    100: (0.0206542, 0.00101185, 0.00309124),
}
SEPARATE = {50: 0.0249202, 60: 0.0223431, 100: 0.0165708}
TARGETED = {50: 0.0303168, 60: 0.0271816, 100: 0.0201593}
# claimed epsilon: uplink requirement, broadcast, targeted, eavesdropper, curious server
REALLY = {
    50: (165.943, 11.9182, 171.624, 171.644, 3422.29),
    60: (230.374, 15.6626, 238.385, 238.414, 4883.61),
    100: (591.676, 34.8333, 612.982, 613.057, 13317.8),
}
REALLY_K20 = {
    50: (112.383, 247.038, 379.938),
    60: (157.94, 347.781, 535.967),
    100: (420.801, 927.878, 1433.83),
}


def planned(capsys, *arguments) -> dict:
    assert run_command(["plan", "--json", *OPTIONS, *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def scales(summary) -> tuple:
    noise = summary["noise"]
    return noise["sigma_uplink"], noise["sigma_downlink"], noise["sigma_aggregate"]


def epsilons(summary, *names) -> tuple:
    return tuple(summary["guarantee"][name]["epsilon"] for name in names)


@pytest.mark.parametrize("epsilon", [50, 60, 100])
def test_the_papers_noise_and_what_it_is_worth(capsys, epsilon):
    summary = planned(capsys, "--calibration", "paper", "--epsilon", epsilon)
    assert scales(summary) == pytest.approx(PAPER[epsilon], rel=5e-6)
    real = (summary["paper_requirement"]["uplink"], *epsilons(summary, *GUARANTEES))
    assert real == pytest.approx(REALLY[epsilon], rel=5e-6)


GUARANTEES = ("broadcast", "targeted", "eavesdropper", "curious_server")


@pytest.mark.parametrize("epsilon", [50, 60, 100])
def test_k_random_gives_the_papers_noise_no_amplification(capsys, epsilon):
    summary = planned(capsys, "--calibration", "paper", "--epsilon", epsilon, "--per-round", 20)
    assert summary["noise"]["sigma_downlink"] == 0
    assert epsilons(summary, *GUARANTEES[:3]) == pytest.approx(REALLY_K20[epsilon], rel=5e-6)
    assert any("does not exist" in warning for warning in summary["warnings"])


@pytest.mark.parametrize("epsilon", [50, 60, 100])
def test_separate_calibration(capsys, epsilon):
    summary = planned(capsys, "--calibration", "separate", "--epsilon", epsilon)
    assert scales(summary)[:2] == pytest.approx((SEPARATE[epsilon], 0), rel=5e-6)
    if epsilon == 50:
        assert epsilons(summary, "eavesdropper")[0] == pytest.approx(107.592, rel=5e-6)


@pytest.mark.parametrize("epsilon", [50, 60, 100])
def test_exact_calibration(capsys, epsilon):
    summary = planned(capsys, "--epsilon", epsilon)
    assert scales(summary) == pytest.approx(EAVESDROPPER[epsilon], rel=5e-6)
    assert epsilons(summary, "eavesdropper")[0] == pytest.approx(epsilon, rel=1e-6)
    targeted = planned(capsys, "--epsilon", epsilon, "--adversary", "targeted")
    assert scales(targeted)[:2] == pytest.approx((TARGETED[epsilon], 0), rel=5e-6)


def test_the_contracts_fields_are_all_there(capsys):
    summary = planned(capsys)
    assert set(summary) >= {
        "sensitivity",
        "noise",
        "claimed",
        "paper_requirement",
        "guarantee",
        "conditional",
        "unconditional",
        "assumptions",
        "warnings",
        "bound",
        "best",
    }
    assert set(summary["claimed"]) == {"epsilon", "delta", "adversary", "unit", "adjacency"}
    assert set(summary["guarantee"]) == {*GUARANTEES, "colluders_1"}
    assert summary["sensitivity"] == pytest.approx({"uplink": 0.2, "downlink": 0.004})


def test_a_person_gets_a_table_with_warnings(capsys):
    assert run_command(["plan", *OPTIONS, "--calibration", "paper", "--per-round", "20"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for phrase in (
        "sigma_U",
        "eavesdropper",
        "conditional",
        "epsilon below 1 only",
        "not below 1/m",
        "sigma_D = 0",
    ):
        assert phrase in said


def test_every_epsilon_of_the_tables_says_whom_it_protects_from_whom(capsys):
    words = [
        "--clients",
        10,
        "--rounds",
        4,
        "--samples",
        50,
        "--sensitivity",
        "gradient",
        "--model",
        "softmax",
    ]
    secure = ["--features", "raw", "--aggregation", "secure", "--adversary", "broadcast", "--min-answers", 8]
    assert run_command(["plan", *map(str, [*words, *secure])]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "against broadcast (L=1), per record (replace), while no client works with the server;" in said
    assert "uploads are masked, and only sums of at least 8 open" in said.partition("Claim")[0]
    assert re.search(r"both ways of aggregation: epsilon at delta=\S+, per record \(replace\)", said)


def test_options_beat_the_config_file_which_beats_the_preset(capsys, tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text("version = 2\nepsilon = 7.0\nrounds = 9\n")
    assert (
        run_command(["plan", "--json", "--preset", "paper", "--config", str(config), "--epsilon", "3"]) == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["claimed"]["epsilon"] == 3
    same = planned(capsys, "--calibration", "paper", "--epsilon", 3, "--rounds", 9, "--mu", 0)
    assert same["noise"] == summary["noise"]


def test_without_any_option_the_guarantee_holds(capsys):
    assert run_command(["plan", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["claimed"] == {
        "epsilon": 1.0,
        "delta": 1e-5,
        "adversary": "eavesdropper",
        "unit": "record",
        "adjacency": "replace",
    }
    assert summary["guarantee"]["eavesdropper"]["epsilon"] == pytest.approx(1, rel=1e-6)
    assert not summary["conditional"]


def test_a_config_file_of_the_first_release_keeps_its_defaults_and_says_so(capsys, caplog, tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text("epsilon = 60\n")
    assert run_command(["plan", "--json", "--config", str(config)]) == 0
    assert scales(json.loads(capsys.readouterr().out)) == pytest.approx(EAVESDROPPER[60], rel=5e-6)
    assert "has no version key: what it leaves out keeps the defaults of nbafl 0.1.0" in caplog.text
    assert "sensitivity paper" in caplog.text


@pytest.mark.parametrize("version", ["3", "'two'"])
def test_a_config_file_of_another_version_is_refused(capsys, tmp_path, version):
    config = tmp_path / "plan.toml"
    config.write_text(f"version = {version}\n")
    assert run_command(["plan", "--config", str(config)]) == 2
    assert "this nbafl reads version 2" in capsys.readouterr().err


def test_a_saved_plan_gives_the_same_answers(capsys, tmp_path):
    path = tmp_path / "plan.toml"
    first = planned(capsys, "--epsilon", 4, "--per-round", 7, "--save", path)
    assert run_command(["plan", "--json", "--config", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_unequal_sizes_from_a_file(capsys, tmp_path):
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("10\n20\n70\n")
    summary = planned(capsys, "--sizes", sizes, "--epsilon", 2, "--delta", "1e-3")
    assert len(summary["noise"]["sigma_uplink"]) == 3
    assert epsilons(summary, "eavesdropper")[0] == pytest.approx(2, rel=1e-6)


NONSENSE = [
    ("--epsilon", "0"),
    ("--epsilon", "-1"),
    ("--epsilon", "nan"),
    ("--epsilon", "abc"),
    ("--delta", "0"),
    ("--delta", "1"),
    ("--per-round", "51"),
    ("--rounds", "0"),
    ("--rounds", "25", "--exposures", "26"),
    ("--clients", "0"),
    ("--clients", "2.5"),
    ("--calibration", "magic"),
    ("--adversary", "nobody"),
    ("--sensitivity", "gradient", "--local-steps", "2"),
    ("--sensitivity", "proximal", "--model", "mlp"),
    ("--preset", "unknown"),
    ("--config", "missing.toml"),
    ("--sizes", "missing.txt"),
    ("--dataset", "missing-folder", "--target", "y"),
    ("--colour", "red"),
    ("surplus",),
]


@pytest.mark.parametrize("arguments", NONSENSE, ids=" ".join)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_nonsense_ends_in_one_sentence_and_exit_code_2(verb, arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command([verb, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("nbafl: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []
