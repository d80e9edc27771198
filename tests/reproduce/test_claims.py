"""`experiments/check.py`: what it lists is published, what it finds is measured, and a difference fails."""

import re
from pathlib import Path

import pytest
from experiments import check
from experiments.check import Claim

DOCS = Path(__file__).parents[2] / "docs"
FAST = "least_squares, ring: D-NASA"  # a second


def claim(text: str) -> Claim:
    (found,) = (claim for claim in check.claims() if claim.text == text)
    return found


@pytest.mark.parametrize("one", check.claims(), ids=lambda claim: claim.text)
def test_claims_are_published_and_can_fail(one: Claim) -> None:
    printed = set(re.findall(r"-?\d+\.\d+", (DOCS / one.page).read_text()))
    assert one.published in map(float, printed)
    assert 0 < one.tolerance < 0.01 * abs(one.published)
    assert one.reason


def test_a_number_that_is_found_again_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([claim(FAST)])
    assert "1 numbers: 1 ok." in capsys.readouterr().out


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_changed_number_fails(factor: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    one = claim(FAST)
    monkeypatch.setattr(check, "measure", lambda **where: factor * one.published)
    assert not check.main([one])
    assert "1 numbers: 1 differs." in capsys.readouterr().out


def test_what_lacks_its_data_is_skipped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "missing", lambda name: "There is no a9a.")
    assert check.main([claim("Figure 3: a9a, D-NASA")])
    assert "skipped: There is no a9a." in capsys.readouterr().out
