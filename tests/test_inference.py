"""Regressions over sites against statsmodels on the rows of all sites in one place."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from command_line import refused
from statsmodels.duration.hazard_regression import PHReg
from thread_network import run_threads

import dnasa
from dnasa.cli import app
from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.data.agreement import unclear_event
from dnasa.data.ledger import Ledger
from dnasa.data.recoding import as_recode
from dnasa.inference import Fit, fit
from dnasa.networks import dry_run
from dnasa.pages import regression

INPUTS = ["age", "ward", "dose"]
TARGETS = {"logistic": "died", "linear": "pressure", "poisson": "visits", "cox": "died"}


def hospitals() -> dict[str, pd.DataFrame]:
    """Tables with gaps, text, tied times and a column far from 0."""
    frames, rng = {}, np.random.default_rng(0)
    for name, rows in {"bonn": 150, "lyon": 120, "oslo": 90}.items():
        frame = pd.DataFrame({"age": rng.normal(60, 10, rows), "ward": rng.choice(["icu", "er", "home"], rows)})
        frame["dose"] = 1e4 + rng.exponential(20, rows)
        risk = 0.05 * (frame.age - 60) + 0.5 * (frame.ward == "icu") + 0.01 * (frame.dose - 1e4)
        frame["died"] = np.where(rng.random(rows) < 1 / (1 + np.exp(0.5 - risk)), "yes", "no")
        frame["pressure"] = 120 + 3 * risk + rng.normal(size=rows)
        frame["visits"] = rng.poisson(np.exp(2 + 0.2 * risk))
        frame["days"] = np.ceil(rng.exponential(10 * np.exp(-risk)))
        frames[name] = frame.mask(rng.random(frame.shape) < 0.02)
    return frames


def of(kind: str, frames: dict[str, pd.DataFrame], network: Network | None = None) -> Fit:
    time = "days" if kind == "cox" else None
    columns = [*INPUTS, TARGETS[kind], *([time] if time else [])]
    return fit(kind, {name: frame[columns] for name, frame in frames.items()}, TARGETS[kind], time, network)


def pooled(kind: str, frames: dict[str, pd.DataFrame]) -> Any:
    """The twin: complete rows of all sites in one place."""
    rows = pd.concat([frame.assign(site=name) for name, frame in frames.items()])
    rows = rows.dropna(subset=[*INPUTS, TARGETS[kind], *(["days"] if kind == "cox" else [])])
    X = pd.DataFrame({"age": rows.age, "home": rows.ward == "home", "icu": rows.ward == "icu", "dose": rows.dose - 1e4})
    X, died = X.astype(float), (rows.died == "yes").astype(int)
    if kind == "cox":
        return PHReg(rows.days, X, status=died, strata=rows.site, ties="efron").fit()
    if kind == "linear":
        return sm.OLS(rows.pressure, sm.add_constant(X)).fit()
    families = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson()}
    return sm.GLM(died if kind == "logistic" else rows.visits, sm.add_constant(X), family=families[kind]).fit(tol=1e-12)


@pytest.mark.parametrize("kind", TARGETS)
def test_estimates_are_those_of_all_rows_in_one_place(kind: str) -> None:
    frames = hospitals()
    found, twin, slopes = of(kind, frames), pooled(kind, frames), slice(None if kind == "cox" else 1, None)
    table = found.table[slopes]
    assert list(table.input) == ["age", "ward=home", "ward=icu", "dose"], "the first category is the reference"
    intervals = np.asarray(twin.conf_int())[slopes]
    np.testing.assert_allclose(table.filter(regex="coefficient_"), intervals, rtol=2e-5)
    for name, expected in {"coefficient": twin.params, "standard_error": twin.bse, "p": twin.pvalues}.items():
        np.testing.assert_allclose(table[name], np.asarray(expected)[slopes], rtol=2e-5, err_msg=name)
    if kind in ("logistic", "cox"):
        assert f"Log likelihood {twin.llf:.2f}, AIC {2 * (len(twin.params) - twin.llf):.2f}." in found.notes
    if kind != "linear":
        np.testing.assert_allclose(table[found.ratio.replace(" ", "_")], np.exp(table.coefficient))


def test_notes_say_what_makes_estimates_doubtful() -> None:
    frames = hospitals()
    frames = {name: frame.assign(site=name) for name, frame in frames.items()}
    frames["oslo"] = frames["oslo"].assign(died=np.where(np.arange(len(frames["oslo"])) < 25, "yes", "no"))
    found = fit("logistic", frames, "died", drop_columns="days,visits,pressure")
    notes = " ".join(found.notes)
    assert re.search(r"Fewer than 10 events for each input at .*oslo: their own", notes)
    for words in ("site=lyon", "one value only"):
        assert words not in notes, "intercepts of sites are no surprise"
    assert "where counts vary more than their mean" in " ".join(of("poisson", hospitals()).notes)


def test_fits_without_a_site_and_their_random_effects_are_those_of_twins() -> None:
    frames, own = hospitals(), []
    found = of("cox", frames)
    for name, some in found.sites.groupby("site"):
        alone, others = (pooled("cox", {k: frames[k] for k in frames if (k == name) == is_own}) for is_own in (True, False))
        np.testing.assert_allclose(some[["coefficient", "coefficient_without"]].T, [alone.params, others.params], rtol=1e-4)
        np.testing.assert_allclose(some.standard_error_without, others.bse, rtol=1e-4)
        own.append((alone.params, alone.bse))
    b, errors = np.array(own).swapaxes(0, 1)
    w = 1 / errors**2
    q = (w * (b - (w * b).sum(0) / w.sum(0)) ** 2).sum(0)
    tau2 = np.maximum(0, (q - 2) / (w.sum(0) - (w**2).sum(0) / w.sum(0)))
    weights = 1 / (1 / w + tau2)
    assert 0 < (tau2 > 0).sum() < 4
    mean, width = ((weights * b).sum(0) / weights.sum(0))[3], 1.96 * (weights.sum(0) ** -0.5)[3]
    ends = np.exp([mean, mean - width, mean + width])
    assert found.texts()["random effects"][3] == "{:.3f} ({:.3f} to {:.3f})".format(*ends)
    assert f"with {pooled('cox', frames).model.status.sum():.0f} events at 3 sites" in found.title
    np.testing.assert_allclose(found.table.random_effects, (weights * b).sum(0) / weights.sum(0), rtol=1e-3)
    np.testing.assert_allclose(found.table.random_effects_standard_error, weights.sum(0) ** -0.5, rtol=1e-3)


def test_processes_get_the_result_of_one_process() -> None:
    frames = hospitals()

    def work(network: Network) -> Fit:
        return of("logistic", {name: frames[name] for name in [*frames][network.rank : network.rank + 1]}, network)

    expected = of("logistic", frames)
    for found in run_threads(dnasa.topology.complete(3), work):
        pd.testing.assert_frame_equal(found.table, expected.table, rtol=1e-8)
        assert found.title == expected.title


def test_nothing_about_few_rows_or_events_leaves_a_site() -> None:
    frame, sent = hospitals()["bonn"][[*INPUTS, "died"]], list[str]()
    network = dnasa.connect(dnasa.topology.complete(1), "simulated")
    spying = replace(network, processes=replace(network.processes, allgather_text=lambda text: sent.append(text) or [text]))  # type: ignore[func-returns-value]
    found = of("logistic", {"bonn": frame.assign(ward=frame.ward.where(frame.index >= 4, "hospice"))}, spying)
    assert "hospice" not in sent[0]
    rows = len(frame[4:].dropna())
    assert json.loads(sent[0])[1][0][0] == rows
    assert f"bonn leaves out {len(frame) - rows} of {len(frame)} rows: " in found.notes[1]
    few = pd.DataFrame({"age": np.arange(99) / 2, "ward": "er", "dose": 1.0, "died": ["yes"] * 4 + ["no"] * 95})
    for named in ({}, {"labels": {"yes": "yes", "no": "no"}}):
        with pytest.raises(
            InputError, match="The 99 complete rows have 4 with died = yes: a site needs 5 of each value of 'died'"
        ):
            fit("logistic", {"bonn": few}, "died", network=spying, recode=named)
    with pytest.raises(InputError, match="have one value of 'died' only"):
        of("logistic", {"bonn": few.assign(died="no")}, spying)
    assert len(sent) == 1


def test_a_target_with_a_third_value_gets_the_remedy_that_works() -> None:
    frames = {name: frame[["age", "dose", "died"]].dropna() for name, frame in hospitals().items()}
    for third, written in ((3, "3"), ("dead", '"dead"')):
        died = (frames["oslo"].died == "yes").astype(int) if third == 3 else frames["oslo"].died
        wrong = {"oslo": frames["oslo"].assign(died=died.where(np.arange(len(died)) != 7, third))}
        for kind in ("logistic", "cox"):
            with pytest.raises(
                InputError, match=f"value {written} in fewer than 5 rows: correct it, or write .*recode"
            ) as refused:
                fit(kind, wrong, "died", time="age" if kind == "cox" else None)
        recode = tomllib.loads(str(refused.value).split("write ")[1].split(" into")[0])
        assert fit("logistic", wrong, "died", recode=recode).title.startswith("Logistic regression of died")
    with pytest.raises(InputError, match=r"must have two values, event or not, and has \d+: fit linear, or map them to two"):
        fit("logistic", frames, "age")


def test_the_event_is_asked_for_where_words_do_not_say_it() -> None:
    frames = {name: frame[["age", "dose", "died"]].dropna() for name, frame in hospitals().items()}
    words = {name: frame.replace({"died": {"no": "survived", "yes": "died"}}) for name, frame in frames.items()}
    with pytest.raises(InputError, match=r"Which value of column 'died' is the event\? --labels died,survived makes survived"):
        fit("cox", words, "died", time="age")
    named = fit("logistic", words, "died", recode=as_recode(None, "survived,died"))
    assert named.title.startswith("Logistic regression of died = died, ")
    pd.testing.assert_frame_equal(named.table, fit("logistic", frames, "died").table)
    assert "Events at each site, rounded to 5, the largest class so that the sum is right: bonn" in " ".join(named.notes)
    sites = {"bonn": {"labels": {"0": "survived", "1": "died"}}}
    coded = {**words, "bonn": frames["bonn"].replace({"died": {"no": "0", "yes": "1"}})}
    both = fit("logistic", coded, "died", recode=as_recode({"sites": sites}, "survived,died"))
    pd.testing.assert_frame_equal(both.table, named.table)

    def together(network: Network) -> Fit:
        name = [*words][network.rank]
        order = {"order": ["survived", "died"]} if name != "oslo" else {"order": ["died", "survived"]}
        return fit(
            "logistic",
            {name: words[name]},
            "died",
            network=network,
            recode=order | {"labels": {name: name for name in ("died", "survived")}},
        )

    with pytest.raises(InputError, match="Sites order the classes differently"):
        run_threads(dnasa.topology.complete(3), together)
    pairs = {("no", "yes"): True, ("Alive", "Dead"): True, ("ja", "nein"): False, ("a", "b"): False, (0, 1): True}
    assert {pair: not unclear_event(pair) for pair in pairs} == pairs


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_site_without_an_estimate_of_its_own_takes_part(nodes: int) -> None:
    frames = {name: frame[["age", "ward", "died"]].dropna() for name, frame in [*hospitals().items()][:nodes]}
    name, frame = [*frames.items()][-1]
    frames[name] = frame.assign(died=frame.died.where(frame.ward != "icu", "yes"))  # separated there

    def work(network: Network) -> Fit:
        return fit("logistic", {"own": frames[[*frames][network.rank]]}, "died", network=network)

    found = run_threads(dnasa.topology.complete(nodes), work)[0]
    estimates = found.sites.coefficient.to_numpy().reshape(nodes, -1)
    assert np.isnan(estimates).any(1).tolist() == [False] * (nodes - 1) + [True]
    assert np.isfinite(found.table.coefficient).all()
    assert any(re.search(r"Left out of random effects and I2, .*: own \(.*ward=icu", note) for note in found.notes)
    silent = dry_run.connect(dnasa.topology.complete(3), None, None, [name, "rome", "turin"])
    fit("logistic", {name: frames[name]}, "died", network=silent)  # the other sites may have what is missing here


def test_messy_tables_are_recoded_first_and_a_dry_run_sends_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clean = {name: frame[[*INPUTS, "died"]] for name, frame in hospitals().items()}
    messy = clean | {
        "lyon": clean["lyon"].assign(dose=clean["lyon"].dose * 1e3, died=clean["lyon"].died.replace({"yes": "dead"}))
    }
    recode = {
        "sites": {"lyon": {"units": {"dose": {"factor": 1e-3}}, "labels": {"dead": "yes"}}},
        "labels": {"no": "no", "yes": "yes"},
    }
    expected = fit("logistic", clean, "died")
    pd.testing.assert_frame_equal(fit("logistic", messy, "died", recode=recode).table, expected.table)
    with pytest.raises(InputError, match="names rome, which is no site"):
        fit("logistic", clean, "died", recode={"sites": {"rome": {}}})
    for name, frame in messy.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    shared = ["fit", "logistic", "--shard-dir", str(tmp_path), "--target", "died", "--labels", "no=no,yes=yes,dead=yes"]
    app([*shared, "--dry-run"], standalone_mode=False)
    out = capfd.readouterr().out
    assert "Nothing was sent" in out
    assert "odds ratio" not in out


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.filterwarnings("error")
def test_a_dry_run_gives_no_warning_of_numpy(kind: str) -> None:
    graph = dnasa.topology.complete(3)
    of(kind, {"bonn": hospitals()["bonn"]}, dry_run.connect(graph, None, None, ["bonn", "lyon", "oslo"]))


def test_a_site_sends_no_sums_of_few_rows() -> None:
    frames = {name: frame[["age", "dose", "died"]].dropna() for name, frame in hospitals().items()}
    for values in ([1] + [0] * 200, [2] * 4 + [0] * 40 + [1] * 157):
        rare = frames["oslo"].assign(rare=values[: len(frames["oslo"])])
        with pytest.raises(InputError, match="oslo: Column 'rare' has one value in all but fewer than 5 rows, or at"):
            fit("logistic", frames | {"oslo": rare}, "died")
    small = frames["oslo"].sort_values("died")[::6].head(14)
    with pytest.raises(InputError, match="oslo has 14 complete rows for 3 coefficients: it needs 5 for each"):
        fit("logistic", frames | {"oslo": small}, "died")
    dose = frames["oslo"].dose.where(np.arange(len(frames["oslo"])) != 7, 1e9)
    with pytest.raises(InputError, match=r"There is no estimate for .*: .* or a value is far from all others"):
        fit("logistic", frames | {"oslo": frames["oslo"].assign(dose=dose)}, "died")
    with pytest.raises(InputError, match="are --target and --time exchanged"):
        fit("cox", {"oslo": hospitals()["oslo"][["age", "died", "days"]]}, "days", time="age")


def test_sites_send_sums_at_shared_points_and_their_own_estimates() -> None:
    frames, sent = {name: frame[["age", "dose", "died"]] for name, frame in hospitals().items()}, list[np.ndarray]()

    def work(network: Network) -> Fit:
        def mean(a: np.ndarray) -> np.ndarray:
            if network.rank == 0:
                sent.append(a[..., 0, :])
            return network.mean(a)

        return fit("logistic", {"bonn": frames[[*frames][network.rank]]}, "died", network=replace(network, mean=mean))

    found = run_threads(dnasa.topology.complete(3), work)[0]
    alone = found.sites[["coefficient", "standard_error"]][:3]
    np.testing.assert_allclose(sent[-1][0], [*alone.to_numpy().ravel(), *[1] * 6], rtol=1e-9)
    assert not sent[-1][1:].any()
    for sums in sent[:-1]:
        assert len(sums) in (1, 3)  # of all sites, or of all but one
        if len(sums) == 3:
            assert not sums[0].any(), "a site takes no part where it is left out"


def test_two_fits_of_a_site_differ_in_no_row_or_in_five(tmp_path: Path) -> None:
    frame, sent = hospitals()["bonn"][["age", "dose", "died"]].dropna().reset_index(drop=True), list[str]()
    network = dnasa.connect(dnasa.topology.complete(1), "simulated")

    def fitted(changed: pd.DataFrame, **ledger: Any) -> Fit:
        spying = replace(network.processes, allgather_text=lambda text: sent.append(text) or [text])  # type: ignore[func-returns-value]
        there = replace(network, processes=spying)
        return fit("logistic", {"bonn": changed}, "died", network=there, ledger=Ledger(tmp_path, **ledger))

    def lab(missing: int) -> pd.DataFrame:
        return frame.assign(dose=frame.dose.where(frame.index >= missing))

    fitted(lab(2), sends=False)  # a dry run
    assert not [*tmp_path.iterdir()]
    fitted(frame)
    assert (
        tmp_path / "told.json"
    ).stat().st_mode & 0o777 == 0o600  # the hashes of guessed values are known to whoever reads it
    begun = len(sent)
    for few in (
        frame[1:],
        pd.concat([frame, frame[:2]]),
        frame.assign(age=frame.age.where(frame.index > 0, 50)),
        frame[1:][["dose", "died", "age"]],
        frame[1:].assign(other=np.arange(len(frame) - 1) / 7),
        frame[1:].assign(dose=2 * frame.dose),  # in other units
    ):
        with pytest.raises(InputError, match=r"differ from those that an earlier run or fit told of in [1-4]: ") as refused:
            fitted(few)
        assert refused.value.kind == "rows that differ from those of an earlier run in fewer than 5"
    assert len(sent) == begun
    for missing in (1, 4, 5):  # as many are left out, or others would learn how many are missing from the number of all rows
        assert any(f"leaves out 5 of {len(frame)} rows: " in note for note in fitted(lab(missing)).notes)
    fitted(frame.sample(frac=1, random_state=0))  # the same rows
    with pytest.raises(InputError, match="in 2: "):
        fitted(lab(7))  # compared with the second
    fitted(lab(7), again=True)
    frame["days"] = np.arange(len(frame)) + 1.0
    ledger = Ledger(tmp_path)
    fit("cox", {"bonn": frame}, "died", "days", network=network, ledger=ledger)
    with pytest.raises(InputError, match="in 1: "):
        fit("cox", {"bonn": frame.assign(days=frame.days.where(frame.index > 0, 99))}, "died", "days", ledger=ledger)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"twice": lambda f: 2 * f.age - 1}, "no estimate for age, twice: "),
        ({"same": 1}, "no estimate for same: "),
        ({"ward": lambda f: np.where((f.died == "yes") & (f.index % 2 == 0), "morgue", "er")}, "no estimate for ward=morgue: "),
    ],
)
def test_columns_without_an_estimate_are_named(change: Any, message: str) -> None:
    frames = {name: frame.assign(**change)[[*INPUTS, "died", *({*change} - {*INPUTS})]] for name, frame in hospitals().items()}
    with pytest.raises(InputError, match=message):
        fit("logistic", frames, "died")


def test_names_in_the_page_of_a_fit_are_text() -> None:
    name = "<script>alert(1)</script>"
    page = regression.render(of_named(name))
    assert name not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;</figcaption>" in page


def of_named(name: str) -> Fit:
    """A linear regression with an input of this name."""
    frames = {site: frame[["age", "pressure"]].rename(columns={"age": name}) for site, frame in hospitals().items()}
    return fit("linear", frames, "pressure")


def test_a_forest_plot_has_squares_by_weight_and_arrows_at_intervals_that_are_cut() -> None:
    names, half = np.array(["bonn", "lyon", "oslo", "random effects", "all rows"]), np.array([0.2, 0.4, 9, 0.2, 0.1])
    ends = np.column_stack([0.5 - half, [0.5] * 5, 0.5 + half])
    lines = regression._forest(names, ends, 3, "odds ratio")["lines"]
    sizes, cut = ([line[i] for line in lines[:3]] for i in (3, 4))
    assert sizes == [regression.SQUARE, regression.SQUARE / 2, 2]
    assert cut[2] == [True, True]
    assert not any(cut[0])


def test_the_command_writes_tables(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sites").mkdir()
    for name, frame in hospitals().items():
        frame.to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    words = ["--shard-dir", tmp_path / "sites", "--target", "died", "--drop-columns", "pressure,visits"]
    app([str(word) for word in ["fit", "cox", *words, "--time", "days", "--out", tmp_path / "out"]], standalone_mode=False)
    assert "hazard ratio" in capfd.readouterr().out
    expected = of("cox", hospitals())
    written = [pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("coefficients", "sites")]
    pd.testing.assert_frame_equal(written[0], expected.table, rtol=1e-6)
    pd.testing.assert_frame_equal(written[1], expected.sites, rtol=1e-6)
    written_tex = (tmp_path / "out" / "coefficients.tex").read_text()
    assert r"$<$0.001" in written_tex
    assert "Reference of ward: er." in written_tex
    page = (tmp_path / "out" / "report.html").read_text()
    for _, row in expected.sites[expected.sites.input == "age"].iterrows():  # in the forest plot
        assert f">{row.site} ({row.rows})</text>" in page
        assert f">{np.exp(row.coefficient):.3f} (" in page
    assert page.count("<figure>") == 4
    assert "a stratum for each site and Efron&#39;s ties" in page
    again = "fit", "cox", *words, "--time", "days", "--out", tmp_path / "out"
    assert "holds a fit already: choose another folder, or replace it with --force." in refused(*again)
    app([*map(str, again), "--force"], standalone_mode=False)
    assert (tmp_path / "out" / "coefficients.tex").read_text() == written_tex
    for words_of_report in ((), ("--html",)):
        assert "holds a regression: open its report.html" in refused("report", tmp_path / "out", *words_of_report)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sites.csv").touch()
    assert "sites.csv was not written by dnasa" in refused(*again[:-1], tmp_path / "mine", "--force")
    assert re.search(r"age & \d\.\d{3} & \d\.\d{3} to \d\.\d{3} &", written_tex)
    for wrong, message in {"cox": "needs --time", "logit": "Did you mean logistic?", "poisson": "must hold counts"}.items():
        assert message in refused("fit", wrong, *words[:2], "--target", "pressure", "--out", tmp_path / "no")
    assert not (tmp_path / "no").exists()
