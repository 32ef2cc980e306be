"""Each bug of the list, planted into a copy of the source: some test must fail.

    python tests/secure/planted.py [words of a bug's name ...]        # a table: bug, acceptance test, what caught it

Outside CI, because it runs whole test files once for each bug. CI has the same bugs one by one, as subclasses and
patches inside the tests named here (`test_planted_bugs_are_found`, `test_a_missing_tag_is_found`, ...); this shows
that they are found in the source itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).parents[2]
CLIENT, MESSAGES, MASKS = "secure/client.py", "secure/messages.py", "secure/masks.py"
INTEGERS, MEMBER = "privacy/integers.py", "flower/secure_member.py"
TEXT = 'return join(b"nbafl-secure-1", kind, number(who), context.run, number(context.round), *body)'
SAVE = """        self._save(
            after, self._after_upload(request, headers, secrets), Charge(request.round, commitment, message)
        )
        return message"""
LATE = """        self._late = (
            after, self._after_upload(request, headers, secrets), Charge(request.round, commitment, message)
        )
        return message"""
ANOTHER = "            if state.commitment != commitment:"
SHARES = "mask_shares=mask_shares"
NEXT = """    def _in_run(self) -> tuple[State, Secrets]:
"""
WRITES_LATE = (
    NEXT
    + """        late, self._late = getattr(self, "_late", None), None
        if late:
            self._save(*late)
"""
)


@dataclass(frozen=True)
class Bug:
    """What is changed where, the acceptance test that is about it, and the files that hold that test."""

    name: str
    about: str
    edits: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...]


def _tag(name: str, left: str) -> Bug:
    return Bug(f"a tag missing: {name}", "6", ((MESSAGES, TEXT, left),), ("secure/test_messages.py",))


BUGS = (
    Bug(
        "-4 left out", "1",
        ((INTEGERS, "variance = honest * grid.spread**2 - 4", "variance = honest * grid.spread**2"),),
        ("privacy/test_integers.py",),
    ),
    Bug(
        "square root of d left out", "1",
        ((INTEGERS, "rounded = math.sqrt(self.dimension) *", "rounded = 0 *"),),
        ("privacy/test_integers.py",),
    ),
    Bug(
        "sign of a mask", "3",
        ((MASKS, "plus=other > who", "plus=other < who"),),
        ("secure/test_sums.py",),
    ),
    Bug(
        "byte order", "3",
        (("secure/encoding.py", '4: np.dtype("<u4")', '4: np.dtype(">u4")'),),
        ("secure/test_sums.py",),
    ),
    Bug(
        "t from those present", "4",
        ((
            "secure/terms.py", "return threshold(self.clients, self.accomplices)",
            "return threshold(self.fewest, self.accomplices)",
        ),),
        ("secure/test_sums.py", "secure/test_lawless_server.py"),
    ),
    Bug(
        "t of a certificate from its set", "4",
        ((
            CLIENT, "for who, _ in request.certificate}) < self.terms.threshold:",
            "for who, _ in request.certificate}) < (len(read_names(request.members, self.terms)) + "
            "self.terms.accomplices) // 2 + 1:",
        ),),
        ("secure/test_sums.py", "secure/test_lawless_server.py"),
    ),
    Bug(
        "M < t", "4",
        (("secure/counts.py", "if not needed <= fewest <= clients:", "if not 1 <= fewest <= clients:"),),
        ("secure/test_sums.py",),
    ),
    Bug(
        "a second train", "4, 7",
        (
            (CLIENT, f"        if state.commitment:\n{ANOTHER}", f"        if state.commitment == commitment:\n{ANOTHER}"),
            (CLIENT, f'replace(secrets, mask=b"", seed=b"", {SHARES}', f"replace(secrets, {SHARES}"),
        ),
        ("secure/test_lawless_server.py", "secure/test_crashes.py"),
    ),
    Bug(
        "duplicate signatures counted", "4",
        ((CLIENT, "len({who for who, _ in request.certificate})", "len(request.certificate)"),),
        ("secure/test_lawless_server.py", "secure/test_sums.py"),
    ),
    Bug(
        "reveal without certificate", "4",
        ((CLIENT, "        self._check_certificate(request, state)\n", ""),),
        ("secure/test_lawless_server.py", "secure/test_sums.py"),
    ),
    Bug(
        "no numbers in the HKDF", "5",
        ((
            MASKS, "return number(first), number(second), key_first, key_second",
            "return tuple(sorted((key_first, key_second)))",
        ),),
        ("secure/test_keys.py",),
    ),
    _tag("kind", TEXT.replace("kind, ", "")),
    _tag("number", TEXT.replace("number(who), ", "")),
    _tag("run", TEXT.replace("context.run, ", "")),
    _tag("round", TEXT.replace("number(context.round), ", "")),
    Bug(
        "written after sent", "7",
        ((CLIENT, SAVE, LATE), (CLIENT, NEXT, WRITES_LATE)),
        ("secure/test_crashes.py",),
    ),
    Bug(
        "fixed nonce", "8",
        (("secure/primitives.py", "nonce = os.urandom(NONCE)", "nonce = bytes(NONCE)"),),
        ("secure/test_secrets.py",),
    ),
    Bug(
        "secrets kept after the round", "8",
        ((CLIENT, "replace(secrets, mask_shares={}, seed_shares={}),", "secrets,"),),
        ("secure/test_secrets.py",),
    ),
    Bug(
        "price of one accomplice too few", "9",
        (("privacy/secure_sums.py", "return max(1, fewest - adversary.accomplices)", "return max(1, fewest)"),),
        ("test_aggregation.py",),
    ),
    Bug(
        "one client's noise left out", "10",
        ((
            MEMBER, "integers + SecureGaussian().integers(grid.spread, len(integers))",
            "integers + (SecureGaussian().integers(grid.spread, len(integers)) if client else 0)",
        ),),
        ("flower/test_secure_member.py",),
    ),
    Bug(
        "one client's noise left out of the simulation", "9",
        (("protocol/aggregation.py", "spread * math.sqrt(len(weights))", "spread * math.sqrt(len(weights) - 1)"),),
        ("test_aggregation.py",),
    ),
    Bug(
        "no hash of the seed", "10",
        (("secure/server.py", "return masks.seed_hash(secret) == seed_hash if seed else", "return True if seed else"),),
        ("secure/test_liars.py",),
    ),
)  # fmt: skip


def plant(bug: Bug, folder: Path) -> Path:
    """A copy of the source with the bug in it."""
    source = folder / "src"
    shutil.copytree(TREE / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in bug.edits:
        file = source / "nbafl" / name
        text = file.read_text()
        assert text.count(before) == 1, f"{bug.name}: {name} holds {before!r} {text.count(before)} times"
        file.write_text(text.replace(before, after))
    return source


def caught_by(bug: Bug) -> list[str]:
    """The tests that fail on it."""
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "PYTHONPATH": str(plant(bug, Path(place)))}
        files = [str(TREE / "tests" / name) for name in bug.tests]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--maxfail=3",
            "-p",
            "no:cacheprovider",
            "--no-header",
            *files,
        ]
        done = subprocess.run(command, env=environment, cwd=TREE, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stdout[-2000:]
        return re.findall(r"^FAILED \S*::(\w+)", done.stdout, re.MULTILINE)


def main(words: list[str]) -> int:
    missed = 0
    print("| bug | acceptance test | caught by |\n| --- | --- | --- |")
    for bug in (each for each in BUGS if not words or any(word in each.name for word in words)):
        found = list(dict.fromkeys(caught_by(bug)))
        missed += not found
        print(
            f"| {bug.name} | ({bug.about}) | {', '.join(f'`{name}`' for name in found) or 'NOBODY'} |",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
