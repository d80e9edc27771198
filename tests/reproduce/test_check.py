"""`dnasa reproduce --check`: what it lists is published, what it finds is measured, and a difference fails."""

import re
from pathlib import Path

import pytest
from test_cli import refused

from dnasa import cli
from dnasa.reproduce import check
from dnasa.reproduce.check import Claim

DOCS = Path(__file__).parents[2] / "docs"
FAST = "least_squares, ring: D-NASA"  # a second


def claim(text: str) -> Claim:
    (found,) = (claim for claim in check.claims() if claim.text == text)
    return found


def checked(some: list[Claim], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    monkeypatch.setattr(check, "claims", lambda: some)
    monkeypatch.setattr("sys.argv", ["dnasa", "reproduce", "--check"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().out


@pytest.mark.parametrize("one", check.claims(), ids=lambda claim: claim.text)
def test_claims_are_published_and_can_fail(one: Claim) -> None:
    printed = set(re.findall(r"-?\d+\.\d+", (DOCS / one.page).read_text()))
    assert one.published in map(float, printed)
    assert 0 < one.tolerance < 0.01 * abs(one.published)
    assert one.reason


def test_a_number_that_is_found_again_is_ok(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = checked([claim(FAST)], monkeypatch, capsys)
    assert not code
    assert "1 numbers: 1 ok." in out


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_number_that_differs_fails(
    factor: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = claim(FAST)
    monkeypatch.setattr(check, "measure", lambda **where: factor * one.published)
    code, out = checked([one], monkeypatch, capsys)
    assert code == 1
    assert "1 numbers: 1 differs." in out


def test_what_lacks_its_data_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "missing", lambda name: "There is no a9a.")
    code, out = checked([claim("Figure 3: a9a, D-NASA")], monkeypatch, capsys)
    assert not code
    assert "skipped: There is no a9a." in out


@pytest.mark.parametrize("words", [[], ["fig1", "--check"]])
def test_a_figure_or_the_check_is_needed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "Give the name of a figure, or --check" in refused(["reproduce", *words], monkeypatch, capfd)
