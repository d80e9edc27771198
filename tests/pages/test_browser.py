"""The page of a run in a real browser."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browsing import browser, opened
from command_line import succeed

pytestmark = pytest.mark.xdist_group("browser")  # one process starts the browser
PHONE: dict[str, Any] = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Path:
    """Two finished runs and the pages of one and of both."""
    folder = tmp_path_factory.mktemp("browser")
    common = "train --steps 20 --nodes 5 --quiet --out".split()
    succeed(*common, folder / "star", "--topology", "star", "--seeds", 2)
    wide = ["--topology", "directed_exponential", "--rule", "sgp", "--eta", 0.1]
    succeed(*common, folder / "directed", *wide)
    for path in (folder / "star", folder):
        succeed("report", path, "--html")
    return folder


def address(folder: Path) -> str:
    return (folder / "report.html").as_uri()


def test_a_page_shows_every_part_of_a_run(chromium: Any, home: Path) -> None:
    with opened(chromium, address(home / "star")) as page:
        titles = page.locator("h2").all_inner_texts()
        assert titles == ["Results", "Settings", "Timeline", "Training", "Curves"]
        assert "done step 20 of 20, digits" in page.locator("header").inner_text()
        metrics = page.locator(".charts figure").evaluate_all("all => all.map(one => one.dataset.metric)")
        assert {"train_loss", "test_loss", "test_accuracy", "grad_norm", "consensus"} <= {*metrics}
        counts = [int(text or 0) for text in page.locator(".matrix td").all_inner_texts()]
        stored = json.loads((home / "star" / "evaluation.json").read_text())
        assert counts == [count for row in stored["common"]["confusion"] for count in row]
        assert page.locator("[aria-label=Curves]").is_visible()
        page.emulate_media(media="print")
        assert not page.locator("[aria-label=Curves]").is_visible(), "which print would leave empty"


def test_hovering_shows_the_value_that_is_in_the_csv(chromium: Any, home: Path) -> None:
    history = pd.read_csv(home / "star" / "history.csv").set_index(["run", "step"])
    with opened(chromium, address(home / "star")) as page:
        page.locator("figure[data-metric=test_loss] .u-over").scroll_into_view_if_needed()
        box = page.locator("figure[data-metric=test_loss] .u-over").bounding_box()
        seen = set()
        for share in (0.1, 0.35, 0.5, 0.8):
            for height in (0.1, 0.9):
                page.mouse.move(box["x"] + share * box["width"], box["y"] + height * box["height"])
                text = page.locator("figure[data-metric=test_loss] output").inner_text()
                number, step, value = re.search(r"seed (\d), step (\d+): ([\d.]+)", text).groups()  # type: ignore[union-attr]
                assert float(value) == pytest.approx(history.test_loss[int(number), int(step)], rel=1e-5)
                seen.add((number, step))
        assert len(seen) >= 4


def test_a_name_in_the_legend_hides_its_curves(chromium: Any, home: Path) -> None:
    with opened(chromium, address(home)) as page:
        entries = page.locator(".legend button")
        assert entries.all_inner_texts() == ["directed: SGP (diminishing), eta = 0.1", "star: D-NASA (2 seeds)"]
        entries.nth(1).click()
        shown = "plots[0].series.map((series) => series.show)"
        assert page.evaluate(shown)[1:] == [True, False, False]


def test_curves_can_be_drawn_against_time_and_traffic(chromium: Any, home: Path) -> None:
    history = pd.read_csv(home / "star" / "history.csv")
    with opened(chromium, address(home)) as page:
        for axis in ("seconds", "bytes"):
            page.locator("#axis").select_option(label=axis)
            assert page.evaluate("plots[0].scales.x.max") >= history[axis].max() * (1 - 1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_a_phone_needs_no_horizontal_scrolling(several: bool, chromium: Any, home: Path) -> None:
    with opened(chromium, address(home if several else home / "star"), **PHONE) as page:
        sizes = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert sizes[0] <= sizes[1] == 390
        assert page.locator(".plot").first.bounding_box()["width"] > 300


def test_sites_have_their_names_and_results(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for name, limit in (("bonn", 60), ("köln", 60), ("ulm", 80)):
        rows = pd.DataFrame({"a": [i / 2 for i in range(120)], "b": [i % 11 for i in range(120)]})
        rows["kind"] = ["no" if a < limit / 2 else "yes" for a in rows.a]
        rows.to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    words = ["--shard-dir", tmp_path / "sites", "--target", "kind", "--nodes", 3, "--steps", 30, "--model", "linear"]
    succeed("train", *words, "--no-early-stopping", "--quiet", "--out", tmp_path / "run")
    succeed("report", tmp_path / "run", "--html")
    with opened(chromium, address(tmp_path / "run")) as page:
        assert page.locator("h2").first.inner_text() == "Results"
        assert page.locator("h1").inner_text() == "Prediction of kind"
        lead = page.locator("header").inner_text()
        trained = "The linear model predicts kind (event: yes); it was trained on 288 rows with about 130 events at 3 sites."
        assert f"{trained} On 72 held-out rows with " in lead
        assert "of the same sites (internal validation): AUC" in lead
        sizes = page.locator(".scroll").evaluate_all("all => all.map(one => [one.scrollHeight, one.clientHeight])")
        assert max(inner for inner, _ in sizes) > 416, "a table that was cut"
        assert all(inner <= outer for inner, outer in sizes)
        heads = page.locator("table").first.locator("th").all_inner_texts()
        assert heads == ["", "all", "bonn", "köln", "ulm"]
        assert page.locator("svg").count() == 5, "one for the sites"
        assert page.locator("#cohort-1").count() == 1
        page.get_by_role("link", name="20b").click()
        assert page.evaluate("location.hash") == "#cohort-1"
        line = page.locator("#cohort-1 tbody tr").nth(3).inner_text()
        assert [cell.split()[0] for cell in line.split("\t")[1:]] == ["46", "46", "66", "158"], "48, 48, 64"


def test_a_text_in_a_run_folder_is_never_html(chromium: Any, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "star", tmp_path / "run")
    attack = "</script><img src=x onerror=document.title='owned'>"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["options"] |= {"data": attack, attack: attack}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    (tmp_path / "run" / "log.txt").write_text(f"2026-01-01 10:00:00 Lost nodes {attack}\n")
    history = (tmp_path / "run" / "history.csv").read_text().replace("dnasa", attack)
    (tmp_path / "run" / "history.csv").write_text(history)
    succeed("report", tmp_path / "run", "--html")
    with opened(chromium, address(tmp_path / "run")) as page:
        assert page.locator("img").count() == 0
        assert page.title() == "run – dnasa"
        assert attack in page.locator(".failures").inner_text()
