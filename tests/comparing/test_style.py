"""Figures in print: their size, fonts, symbols and colors."""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from dnasa.comparing import drawing, plots, style
from dnasa.comparing.statistics import curves
from dnasa.core import InputError
from dnasa.rules.registry import BUILT_IN, COMPARED, RULES, rule

pytestmark = pytest.mark.pictures
SIX = ["dsgd", "dsgt", "dasagt", "gt_hsgd", "adanasa", "dnasa"]


def history(rules: list[str], etas: tuple[float, ...] = (0.1,)) -> pd.DataFrame:
    """Noisy gradient norms of 3 seeds."""
    noise = np.random.default_rng(0)
    rows = [
        {"rule": rule, "schedule": "diminishing", "eta": eta, "seed": seed, "step": 10 * t, "consensus": 0.0}
        | {"grad_norm": noise.lognormal(0, 0.3) / (i + t + 1)}
        for i, rule in enumerate(rules)
        for eta in etas
        for seed in range(3)
        for t in range(40)
    ]
    return pd.DataFrame(rows)


def figure_of(rules: list[str], etas: tuple[float, ...] = (0.1,)) -> Any:
    table = curves(history(rules, etas), "grad_norm").assign(mb_per_node=lambda rows: rows.step / 9)
    return drawing.figure_of_curves(table, ["step", "mb_per_node"], "grad_norm")


def texts(figure: Any) -> dict[Text, Any]:
    """The texts that are drawn, with their boxes: an axis has labels beyond its limits, too, which are not."""
    found = {}

    def record(text: Text, renderer: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            found[text] = text.get_window_extent(renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.draw_without_rendering()
    return found


@pytest.mark.parametrize(
    ("name", "width", "count"),
    [("paper", 229.5 / 72.27, 6), ("paper:234pt", 234 / 72.27, 3), ("paper:5.5", 5.5, 5), ("paper:2.5", 2.5, 4)],
)
def test_printed_text_fits_the_column_in_7_or_8_points_and_nothing_overlaps(name: str, width: float, count: int) -> None:
    with style.context(name):
        figure = figure_of(SIX[:count])
        boxes = texts(figure)
    assert figure.get_figwidth() == pytest.approx(width)
    assert {text.get_fontsize() for text in boxes} == {7, 8}
    assert {text.get_fontname() for text in boxes} == {"STIXGeneral"}
    for (one, box), (other, second) in combinations(boxes.items(), 2):
        assert not box.overlaps(second), (one.get_text(), other.get_text())
    edge = figure.bbox.padded(2)
    assert all(edge.contains(*corner) for box in boxes.values() for corner in (box.min, box.max))


@pytest.mark.long
def test_text_remains_text_in_embedded_fonts() -> None:
    with style.context("paper"):
        pdf, svg = (plots.rendered(figure_of(SIX[:2]), kind) for kind in ("pdf", "svg"))
    assert b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert b"<text" in svg
    assert b"/MediaBox [ 0 0 228.6" in pdf  # 229.5 points of TeX


def test_symbols_stand_for_the_stepsize_and_the_gradient_norm() -> None:
    words = " ".join(text.get_text() for text in texts(figure_of(["dsgd"], (0.1, 0.3))))
    assert r"$\eta$ = 0.3" in words
    assert r"\nabla f" in words
    assert "eta =" not in words.replace(r"\eta$ =", "")
    assert "norm" not in words


def test_printed_labels_name_the_rule_alone_where_that_distinguishes_the_lines() -> None:
    with style.context("paper"):
        assert plots.names_of([("dsgd", "fixed", 0.1), ("dsgt", "fixed", 0.3)]) == ["D-SGD", "D-SGT"]
        same = plots.names_of([("dsgd", "fixed", 0.1), ("dsgd", "fixed", 0.3)])
    assert same == [rf"D-SGD (fixed), $\eta$ = {eta}" for eta in (0.1, 0.3)]


def test_printed_panels_have_whole_titles_and_nothing_overlaps() -> None:
    with style.context("paper"):
        figure, axes = plots.panel_list(4, 2)
        for axis in axes:
            axis.plot([0, 1], [0, 1], label="D-SGD")
            plots.finish(axis, r"stepsize $\eta$", "test loss" if axis is axes[3] else "test accuracy")
        drawing.finish_panels(figure, axes, ["digits, ring", "digits, exponential, dirichlet(0.3)", "long" * 15, "a9a"])
        assert axes[0].get_ylim() == axes[2].get_ylim()
        boxes = texts(figure)
    edge = figure.bbox.padded(1)
    assert all(edge.contains(*corner) for box in boxes.values() for corner in (box.min, box.max))
    for (one, box), (other, second) in combinations(boxes.items(), 2):
        assert not box.overlaps(second), (one.get_text(), other.get_text())
    words = [text.get_text() for text in boxes]
    assert (words.count("test accuracy (%)"), words.count("test loss")) == (2, 1)  # the first of a row, and another
    assert "digits, exponential\ndirichlet(0.3)" in words
    assert words.count(r"stepsize $\eta$") == 2  # below the lower panels


TO_XYZ = np.array([[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1094, 0.8729]])  # 1, 1, 1 is white


def lab(color: str) -> np.ndarray:
    """CIELAB, in which distances are those that are seen."""
    rgb = np.array(to_rgb(color))
    x, y, z = TO_XYZ @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    fx, fy, fz = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def lightness(color: str) -> float:
    """From 0 to 100: what remains in grey."""
    return float(lab(color)[0])


def distance(one: Any, other: Any) -> float:
    return float(np.linalg.norm(lab(one) - lab(other)))


def test_a_style_sets_size_and_looks_and_ends_with_its_context() -> None:
    import matplotlib

    before = matplotlib.rcParams["font.size"]
    with style.context("paper:487pt") as chosen:
        assert matplotlib.rcParams["font.size"] == 8
        assert chosen.size(1, 1, 6.4, 4.2) == pytest.approx((487 / 72.27, 3))  # a row is at most 3 inches high
        assert [chosen.size(2, rows, 4.6, 3.4)[1] for rows in (3, 5)] == [4.6, 6.0]  # fits the page with its caption
        common = plots.styles(COMPARED)
    assert (matplotlib.rcParams["font.size"], style.current()) == (before, style.Style())
    first = [lightness(look["color"]) for look in common]
    assert all(abs(a - b) > 10 for a, b in combinations(first, 2))  # they differ in grey


def test_built_in_rules_with_the_same_dash_differ_in_grey() -> None:
    """Those with dashes that differ in length alone may have the same grey, but not markers that look alike."""
    looks = dict(zip(sorted(BUILT_IN), plots.styles(sorted(BUILT_IN)), strict=True))
    triangles = {*"^v<>1234", (3, 1, 0), (3, 1, 180)}
    for (one, first), (other, second) in combinations(looks.items(), 2):
        greys = [255 * np.dot(to_rgb(look["color"]), [0.299, 0.587, 0.114]) for look in (first, second)]  # as printers do
        dashed = {str(look["linestyle"]) for look in (first, second)} == {str(style.DASHES[1]), str(style.DASHES[4])}
        close = dashed and {first["marker"], second["marker"]} <= triangles
        assert not (close or first["linestyle"] == second["linestyle"]) or abs(greys[0] - greys[1]) >= 25, (one, other)
    assert distance(looks["d2"]["color"], looks["dnasa"]["color"]) > 60  # both solid, in the paper's figures


@pytest.mark.parametrize("name", ["screen", "paper"])
def test_a_rule_always_has_its_color_dash_and_marker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built_in, own = sorted(BUILT_IN), ["mine", "clip:1+dsgt", "custom 2"]
    monkeypatch.setitem(RULES, "mine", RULES["dsgd"]._replace(color=None))
    on_screen = plots.styles(built_in)
    with style.context(name):
        looks = dict(zip(built_in, plots.styles(built_in), strict=True))
        assert [*looks.values()] == on_screen
        for rules in (COMPARED, [*SIX[::-1], "mine"], ["dadam"], [*own, "dsgd"]):
            assert all(look == looks.get(rule, look) for rule, look in zip(rules, plots.styles(rules), strict=True))
        others = plots.styles(own)
        assert [*others] == [plots.styles([rule])[0] for rule in own]
        first, second = plots.styles(["dsgd", "dsgd"])
    assert first["color"] == second["color"]
    assert first["linestyle"] != second["linestyle"]
    for many in (["dsgd", "dsgt", "dsgt", "gt_adam"], [*built_in, *["dsgd", "mine"] * 3], [f"custom {i}" for i in range(14)]):
        assert len({(str(look["linestyle"]), look["marker"]) for look in plots.styles(many)}) == len(many)
    assert len({look["marker"] for look in plots.styles(["dsgd", "dsgt", "dsgt", "gt_adam"])}) == 4
    assert len({look["color"] for look in looks.values()}) == len(built_in)
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks.values()}) == len(built_in)  # in grey
    assert max(lightness(look["color"]) for look in [*looks.values(), *others]) < 80  # on white
    for key in ("color", "marker"):
        assert not {look[key] for look in others} & {look[key] for look in looks.values()}


def test_rules_of_a_user_are_told_apart_from_the_default_rules_and_from_each_other() -> None:
    found: dict[str, Any] = {}
    for i in range(100):
        (look,) = plots.styles([f"custom {i}"])
        found[look["color"]] = look
    own, common = [*found.values()], plots.styles(COMPARED)
    assert len(own) == len(style.OWN_COLORS)
    assert len({(str(look["linestyle"]), look["marker"]) for look in own}) == len(own)
    for look in own:
        assert min(distance(look["color"], other["color"]) for other in common) > 35
        assert min(distance(look["color"], other["color"]) for other in own if other is not look) > 35
        assert min(distance(look["color"], RULES[name].color) for name in BUILT_IN) > 20
        grey = [lightness(other["color"]) for other in common if other["linestyle"] == look["linestyle"]]
        assert all(abs(lightness(look["color"]) - each) > 15 for each in grey)


def test_what_is_added_to_a_rule_of_a_user_does_not_change_its_look() -> None:
    """Whatever the hash of their names."""
    (alone,) = plots.styles(["hb_dsgt"])
    for i in range(30):
        look, added, _ = plots.styles(["hb_dsgt", f"clip:{i}+hb_dsgt", "dsgd"])
        assert look == alone
        assert added["color"] != look["color"]


def test_networks_differ_in_color_and_dash_and_look_the_same_in_every_study() -> None:
    some = plots.network_styles(style.NETWORKS)
    for key in ("color", "linestyle", "marker"):
        assert len({str(look[key]) for look in some.values()}) == len(some) == 8
    assert min(distance(one["color"], other["color"]) for one, other in combinations(some.values(), 2)) > 25
    for names in (["star", "own", "ring"], ["local", "exact", "grid"]):
        looks = plots.network_styles(names)
        assert all(look == some.get(name, look) for name, look in looks.items())
        assert len({look["color"] for look in looks.values()}) == len({str(look["linestyle"]) for look in looks.values()}) == 3
        assert looks == plots.network_styles(names[::-1])
    many = plots.network_styles(f"network {i}" for i in range(30))
    assert len({(look["color"], str(look["linestyle"])) for look in many.values()}) == 30


def test_rows_of_panels_are_named_once_above_whole_titles_and_fit_a_page() -> None:
    """Eight rows have room for titles of their panels, and nothing overlaps."""
    with style.context("paper:469pt"):
        figure, axes = plots.panel_rows([5] * 8, style.current().columns(5, 1.05))
        for axis in axes:
            axis.plot([1, 2], [1, 2], label="ring")
            plots.finish(axis, "steps", "test loss")
        names = [f"problem {i // 10}, an uncommon partition of its rows" for i in range(40)]
        titles = ["Momentum + D-SGT (constant)", "D-SGT-HB", "D-SGD", "D-NASA", "Clip 1 + D-SGT (diminishing)"] * 8
        drawing.finish_panels(figure, axes, titles, names, names)
        boxes = texts(figure)
    assert [axis.get_title("left").strip() for axis in axes] == [name * (i % 10 == 0) for i, name in enumerate(names)]
    assert axes[0].get_title() == "Momentum + D-SGT\n(constant)"
    assert figure.get_figheight() <= 8 * style.LOWEST
    edge = figure.bbox.padded(1)
    assert all(edge.contains(*corner) for box in boxes.values() for corner in (box.min, box.max))
    rest = [(text, box) for text, box in boxes.items() if text.get_fontweight() != "bold"]
    for (one, box), (other, second) in combinations(rest, 2):
        assert not box.overlaps(second), (one.get_text(), other.get_text())
    assert sum(text.get_text() == "test loss" for text in boxes) == 8


@pytest.mark.parametrize(
    "name", ["poster", "paper:", "paper:wide", "paper:0.5", "paper:nan", "paper:pt", "paper:72pt", "screen:3"]
)
def test_an_unknown_style_gets_one_clear_line(name: str) -> None:
    with pytest.raises(InputError, match=r"Unknown style|inches wide"), style.context(name):
        pass


def test_an_invalid_color_is_refused() -> None:
    with pytest.raises(InputError, match="The color of rule 'mine' must be written as #1f77b4, not 'redish'"):
        rule("mine", color="redish")(RULES["dsgd"].make)
