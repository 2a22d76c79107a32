"""Evidence comes back from a report folder as it was; merged reports equal the report on all of their files."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import rollout_audit as ra
from rollout_audit.audit import merge, passes
from rollout_audit.audit.plan import Audit, Options
from rollout_audit.audit.states import STATES_VERSION
from rollout_audit.audit.sweep import default_grid, sweep_scope
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.errors import ReportError, UsageError
from rollout_audit.reports.saved import read_saved
from rollout_audit.statistics.native import native_metrics
from rollout_audit.statistics.stages import correction_stages

PRESETS = ["decoupled_token_is", "decoupled_geo_rs_token_tis", "bypass_pg_is"]
GRID = ra.sweep_grid(upper="1.3,2", rules={"seq_mean_k3": "0.001,0.01", "token_k1": "0.5_3"})
FILES = ("report.json", "sequences.parquet", "states.safetensors", "steps.parquet", "sweep.parquet")


def step_table(step: int, rows: int = 6, masked: int = 1) -> pa.Table:
    """The last `masked` rows have no valid token; one reward is missing; no row has a uid."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(2, 9, rows)
    rollout = [rng.uniform(-4, -0.1, n) for n in lengths]
    old = [np.minimum(mu + rng.normal(0, 0.05 * (step + 1), len(mu)), -1e-4) for mu in rollout]
    return pa.table(
        {
            "rollout_log_probs": rollout,
            "old_log_probs": old,
            "log_probs": [np.minimum(pi + rng.normal(0, 0.02, len(pi)), -1e-4) for pi in old],
            "response_mask": [[int(i < rows - masked)] * n for i, n in enumerate(lengths)],
            "reward": [None if i == 1 else float(i % 2) for i in range(rows)],
            "step": [step] * rows,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    for step in range(4):
        pq.write_table(step_table(step), folder / f"step_{step}.parquet")
    return folder


def written(source: object, out: Path, **options: object) -> Path:
    report = ra.analyze(ra.open_dump(source), presets=PRESETS, sweep=GRID, workers=1, **options)  # type: ignore[arg-type]
    return ra.write_report(report, out, plots=False).folder


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(folder, tmp_path_factory.mktemp("whole") / "report")


@pytest.fixture(autouse=True)
def _same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def test_evidence_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    saved = read_saved(ra.write_report(ra.analyze(ra.open_dump(folder)), tmp_path / "r", plots=False).folder)
    audit = Audit(ra.open_dump(folder), Options(sweep=default_grid()))
    state = audit.run(FaultLog())
    assert saved.basis.plans == audit.plans
    assert saved.basis.options.corrections == audit.options.corrections
    for pair, evidence in audit.evidence(state).items():
        again = saved.basis.evidence(saved.state)[pair]
        for name, column in evidence.rows.items():
            np.testing.assert_array_equal(again.rows[name], column, err_msg=name)
        for step in (None, 0, 3):
            one, two = evidence.scope(step), again.scope(step)
            assert dict(native_metrics(one)) == dict(native_metrics(two))
            for name, correction in audit.plans[pair].corrections.items():
                assert correction_stages(one, name, correction) == correction_stages(two, name, correction), name
    one, two = (
        basis.evidence(s)[audit.primary].scope() for basis, s in ((audit.basis, state), (saved.basis, saved.state))
    )
    mine, theirs = sweep_scope(one, default_grid()), sweep_scope(two, default_grid())
    assert mine.corrections == theirs.corrections
    for name, column in mine.figures.items():
        np.testing.assert_array_equal(theirs.figures[name], column)


def test_segment_corrections_come_back(folder: Path, tmp_path: Path) -> None:
    correction = ra.Correction(ra.Weight(ra.Level.SEGMENT, ra.Bound.TRUNCATE, upper=math.inf), veto=1e-3)
    preset = ra.Preset("by/segment", correction, origin="here", use="to try it")
    report = ra.analyze(ra.open_dump(folder), presets=[preset], sweep=False)
    saved = read_saved(ra.write_report(report, tmp_path / "r", plots=False).folder)
    assert saved.basis.options.corrections == {"by/segment": correction}
    stages = correction_stages(saved.basis.evidence(saved.state)[saved.basis.primary].scope(), "by/segment", correction)
    assert dict(stages["kept"]) == report.corrections[0].stages.kept


def test_rows_without_a_token_are_saved(whole: Path) -> None:
    table = pq.read_table(whole / "sequences.parquet")
    assert table.num_rows == 24
    assert table["valid_tokens"].to_pylist().count(0) == 4
    assert {"sum_d", "total/sum_d", "policy_update/sum_d"} <= set(table.column_names)


def test_states_say_what_they_are_and_one_key_holds_it(whole: Path) -> None:
    with safe_open(whole / "states.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert list(metadata) == ["states"]
    header = json.loads(metadata["states"])
    assert (header["name"], header["version"]) == ("rollout-audit/states", STATES_VERSION)
    assert [p["name"] for p in header["presets"]] == PRESETS


@pytest.mark.parametrize("options", [{"chunk_tokens": 7}, {"device": "cpu"}])
def test_states_do_not_depend_on_how_they_were_made(
    options: dict[str, object], folder: Path, whole: Path, tmp_path: Path
) -> None:
    """Another chunk size changes the order of sums inside a cell and nothing else."""
    other = written(folder, tmp_path / "r", **options)
    one, two = (load_file(place / "states.safetensors") for place in (whole, other))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        if "sum_u" in name:
            np.testing.assert_allclose(two[name], tensor, rtol=1e-12, atol=1e-13)
        else:
            np.testing.assert_array_equal(two[name], tensor)


def test_the_sweep_of_a_report_is_that_of_its_dump(folder: Path, whole: Path) -> None:
    grid = ra.sweep_grid(upper="1.234:3:log:7", lower="0.4,0.77", rules={"seq_max_k2": "0.03", "token_k3": "0.0123"})
    again, direct = ra.sweep(whole, grid), ra.sweep(ra.open_dump(folder), grid)
    assert again.sweep is not None
    assert direct.sweep is not None
    assert again.sweep.inexact == 0
    one, two = ([r for r in points(report) if r["name"] is None] for report in (again, direct))
    assert len(one) == again.sweep.points
    lost = [r for r in two if r["level"] == "token" and r["bound"] == "truncate" and r["rule"]]
    assert len(lost) == 7  # seven caps of token weights under the one sequence rule: no sums of theirs were kept
    assert any("left out at the caps 1.234, " in note for note in again.notes)
    two = [r for r in two if r not in lost]
    assert len(one) == len(two)
    for mine, theirs in zip(one, two, strict=True):
        assert_alike(mine, theirs, rel=1e-9)


def test_a_long_dump_states_the_error_of_what_no_cut_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "EXACT_QUANTILES_UP_TO", 10)
    saved = written(folder, tmp_path / "r")
    assert "engine/values" not in load_file(saved / "states.safetensors")
    grid = ra.sweep_grid(levels=["token"], upper="1.0123:1.3:log:40", rules={"seq_mean_k3": "0.004"}, joint=False)
    report = ra.sweep(saved, grid)
    assert report.sweep is not None
    assert 0 < report.sweep.inexact < report.sweep.points
    exact = {r["formula"]: r for r in points(ra.sweep(ra.open_dump(folder), grid)) if r["name"] is None}
    for point in points(report):
        if point["name"] is not None or point["exact"]:
            continue
        for figure in ("ess", "weight_mean", "mass_lost", "capped_fraction", "zeroed_fraction"):
            off = abs(point[figure] - exact[point["formula"]][figure])
            assert off <= point[f"{figure}_error"] + 1e-9, (figure, point)


def points(report: ra.Report) -> list[dict[str, object]]:
    columns = report.pictures.points
    assert columns is not None
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_presets_stand_in_the_sweep_for_every_step(whole: Path) -> None:
    table = pl.read_parquet(whole / "sweep.parquet")
    steps = pl.read_parquet(whole / "steps.parquet")
    named = table.filter(pl.col("name").is_not_null())
    assert named["family"].unique().to_list() == ["preset"]
    assert named.filter(pl.col("step").is_null())["name"].to_list() == PRESETS
    for row in named.filter(pl.col("step").is_not_null()).iter_rows(named=True):
        of_step = steps.filter((pl.col("step") == row["step"]) & (pl.col("subject") == row["name"]))
        found = {(r["stage"], r["metric"]): r["value"] for r in of_step.iter_rows(named=True)}
        assert row["ess"] == found["kept", "ess"]
        assert row["mass_lost"] == found["bounded", "mass_lost"]
        assert row["seq_masked_fraction"] == found["kept", "seq_masked_fraction"]


def test_every_point_on_every_step(folder: Path) -> None:
    report = ra.sweep(ra.open_dump(folder), GRID, per_step_grid=True)
    rows = [r for r in points(report) if r["name"] is None]
    by_step = [[r for r in rows if r["step"] == step] for step in (None, 0, 1, 2, 3)]
    assert len({len(part) for part in by_step}) == 1
    alone = ra.sweep(ra.open_dump(folder / "step_2.parquet"), GRID)
    for mine, theirs in zip(by_step[3], (r for r in points(alone) if r["name"] is None), strict=True):
        assert_alike({**mine, "step": None}, theirs)


def test_every_point_on_every_step_of_merged_reports(folder: Path, tmp_path: Path) -> None:
    """A step that two of them share is one."""
    both = tmp_path / "both"
    both.mkdir()
    table = pq.read_table(folder / "step_1.parquet")
    halves = [table.slice(0, 3), table.slice(3)]
    for i, half in enumerate(halves):
        pq.write_table(half, both / f"half_{i}.parquet")
    places = [
        ra.write_report(ra.sweep(ra.open_dump(source), GRID), tmp_path / f"part{i}", plots=False).folder
        for i, source in enumerate([folder / "step_0.parquet", both / "half_0.parquet", both / "half_1.parquet"])
    ]
    merged = ra.merge(places, per_step_grid=True)
    direct = ra.sweep(ra.open_dump([folder / "step_0.parquet", *sorted(both.iterdir())]), GRID, per_step_grid=True)
    steps = [row["step"] for row in points(merged) if row["name"] is None]
    assert {None, 0, 1} == set(steps)
    assert_alike(points(merged), points(direct))


def test_a_change_between_merged_reports_is_seen(tmp_path: Path) -> None:
    """Neither part has both sides of it; an analysis of all has, and says the same."""
    files = []
    for step, spread in enumerate((0.02, 0.02, 0.2, 0.2)):
        rng = np.random.default_rng(step)
        rollout = rng.uniform(-4, -0.5, (40, 30))
        table = {"rollout_log_probs": list(rollout), "old_log_probs": list(rollout + rng.normal(0, spread, (40, 30)))}
        files.append(tmp_path / f"step_{step}.parquet")
        pq.write_table(pa.table(table), files[-1])
    places = [written(part, tmp_path / f"report{i}") for i, part in enumerate((files[:2], files[2:]))]
    merged, direct = ra.merge(places), ra.analyze(ra.open_dump(files), presets=PRESETS)
    for report in (merged, direct):
        (found,) = [cause for cause in report.causes if cause.cause == "stale_weights"]
        assert found.figures["change_point"] == 2
        assert "step 2 is the change point" in found.evidence
    assert "in 1 of the 2 merged reports" in next(c for c in merged.causes if c.cause == "precision_noise").evidence


def test_an_error_names_the_first_corrections_that_differ(folder: Path, tmp_path: Path) -> None:
    places = []
    for i, presets in enumerate((PRESETS, "all")):
        report = ra.analyze(ra.open_dump(folder), presets=presets, steps=(i, i + 1))
        places.append(ra.write_report(report, tmp_path / f"{i}", plots=False).folder)
    with pytest.raises(UsageError, match=r"differ in the corrections \(\w+, \w+, \w+ and \d+ more\), so they cannot"):
        ra.merge(places)


def test_reports_without_a_sweep_have_no_points_to_merge(folder: Path, tmp_path: Path) -> None:
    places = [
        ra.write_report(
            ra.analyze(ra.open_dump(folder / f"step_{step}.parquet"), sweep=False), tmp_path / f"{step}", plots=False
        ).folder
        for step in (0, 1)
    ]
    with pytest.raises(UsageError, match=r"--per-step-grid: .*0 has no sweep; analyze the dumps without --no-sweep"):
        ra.merge(places, per_step_grid=True)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("parts", ["files", "steps"])
def test_merged_reports_equal_the_report_on_all_files(
    order: tuple[int, ...], parts: str, folder: Path, whole: Path, tmp_path: Path
) -> None:
    spans = ((0, 1), (1, 3), (3, 4))
    places = []
    for i in order:
        first, stop = spans[i]
        if parts == "files":
            source: object = [folder / f"step_{step}.parquet" for step in range(first, stop)]
            places.append(written(source, tmp_path / f"part{i}"))
        else:
            places.append(written(folder, tmp_path / f"part{i}", steps=(first, stop)))
    merged = ra.write_report(ra.merge(places), tmp_path / "merged", plots=False).folder
    mine, theirs = (json.loads((place / "report.json").read_text()) for place in (merged, whole))
    assert "Merged from 3 reports." in mine.pop("notes")
    theirs.pop("notes")
    assert mine.pop("created") == "2023-11-14T22:13:20Z"
    theirs.pop("created")
    found = {cause["cause"] for place in places for cause in json.loads((place / "report.json").read_text())["causes"]}
    assert {cause["cause"] for cause in mine.pop("causes")} == found  # their tokens are not kept: named by the parts
    theirs.pop("causes")
    assert_alike(mine, theirs)
    for name in ("steps.parquet", "sweep.parquet", "sequences.parquet"):
        assert_alike(pq.read_table(merged / name).to_pylist(), pq.read_table(whole / name).to_pylist())
    again = ra.merge(list(reversed(places)))
    assert again.to_json() == (merged / "report.json").read_text()


def test_merging_past_the_limit_reads_quantiles_off_cells(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As analyzing all files at once would: each part had few enough tokens to keep them."""
    parts = [written(folder / f"step_{step}.parquet", tmp_path / f"part{step}") for step in range(4)]
    for module in (passes, merge):
        monkeypatch.setattr(module, "EXACT_QUANTILES_UP_TO", 60)
    merged, direct = ra.merge(parts), ra.analyze(ra.open_dump(folder), presets=PRESETS, sweep=GRID)
    assert any("read off bins" in note for note in merged.notes)
    assert_alike(dict(merged.overall), dict(direct.overall))
    assert_alike(merged.corrections[0].model_dump(), direct.corrections[0].model_dump())


def assert_alike(mine: object, theirs: object, where: str = "", rel: float = 1e-12) -> None:
    """Integers and text exactly, floats nearly."""
    if isinstance(mine, dict):
        assert isinstance(theirs, dict)
        assert mine.keys() == theirs.keys(), where
        for key, value in mine.items():
            assert_alike(value, theirs[key], f"{where}.{key}", rel)
    elif isinstance(mine, list):
        assert isinstance(theirs, list)
        assert len(mine) == len(theirs), where
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert_alike(a, b, f"{where}[{i}]", rel)
    elif isinstance(mine, float):
        assert mine == pytest.approx(theirs, rel=rel, abs=1e-13, nan_ok=True), where
    else:
        assert mine == theirs, where


def test_the_same_name_on_two_machines_is_told_apart(folder: Path, tmp_path: Path) -> None:
    for machine, step in (("a", 0), ("b", 1)):
        (tmp_path / machine).mkdir()
        shutil.copy(folder / f"step_{step}.parquet", tmp_path / machine / "dump.parquet")
    places = [written(tmp_path / machine, tmp_path / f"{machine}-report") for machine in "ab"]
    merged = ra.merge(places)
    assert [given.name for given in merged.inputs] == ["dump.parquet", "dump.parquet~2"]
    assert merged.counts.files == 2
    files, uids = merged.pictures.sequences["file"], merged.pictures.sequences["uid"]
    assert all(str(uid).startswith(f"{file}#") for uid, file in zip(uids, files, strict=True))


def test_files_of_one_shape_share_a_header_and_are_no_duplicates(tmp_path: Path) -> None:
    """The digest of a safetensors file is that of its header: rows tell whether it is the same file."""
    rng = np.random.default_rng(0)
    for machine in "ab":
        (tmp_path / machine).mkdir()
        mu = rng.uniform(-3, -0.1, (4, 5))
        save_file({"rollout_log_probs": mu, "old_log_probs": mu - 0.01}, tmp_path / machine / "step_1.safetensors")
    a, b = (written(tmp_path / machine, tmp_path / f"{machine}-report") for machine in "ab")
    merged = ra.merge([a, b])
    assert len({given.digest for given in merged.inputs}) == 1
    assert merged.counts.sequences == 8
    with pytest.raises(UsageError, match=r"both hold step_1\.safetensors \(4 rows of it\)"):
        ra.merge([a, a])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"presets": ["decoupled_token_is", "seq_rs"]}, r"differ in the corrections \(.*seq_rs"),
        ({"reference": "bypass_pg_is"}, "differ in the reference correction"),
        ({"sweep": True}, "differ in the grid of the sweep"),
        ({"mode": "bypass"}, r"differ in --mode \(decoupled against bypass\)"),
    ],
)
def test_what_differs_is_not_merged(
    options: dict[str, object], message: str, folder: Path, whole: Path, tmp_path: Path
) -> None:
    given = {"presets": PRESETS, "sweep": GRID, **options}
    report = ra.analyze(ra.open_dump(folder), **given)  # type: ignore[arg-type]
    other = ra.write_report(report, tmp_path / "other", plots=False).folder
    with pytest.raises(UsageError, match=message) as error:
        ra.merge([whole, other])
    assert str(whole) in str(error.value)
    assert str(other) in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_are_not_counted_twice(folder: Path, whole: Path, tmp_path: Path) -> None:
    part = written(folder, tmp_path / "part", steps=(1, 3))
    with pytest.raises(UsageError, match=r"both hold step_1\.parquet \(6 rows of it\): merging would count them twice"):
        ra.merge([part, whole])
    with pytest.raises(UsageError, match="two reports or more, not 1"):
        ra.merge([whole])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "holds no states; analyze the dump again"),
        ("truncated", "cannot be read"),
        ("newer", "states of version 2, this tool reads up to 1; upgrade"),
        ("foreign", "damaged states"),
        ("shorter", "damaged states"),
        ("other rows", "damaged states"),
    ],
)
def test_states_that_cannot_be_used_are_one_line(damage: str, message: str, whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    shutil.copytree(whole, place)
    file = place / "states.safetensors"
    tensors = load_file(file)
    with safe_open(file, "numpy") as opened:
        header = json.loads(opened.metadata()["states"])
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-9])
    elif damage == "other rows":
        table = pq.read_table(place / "sequences.parquet")
        pq.write_table(table.drop_columns(["total/sum_d", "file"]), place / "sequences.parquet")
    else:
        if damage == "newer":
            header["version"] = STATES_VERSION + 1
        if damage == "shorter":
            tensors["engine/cells"] = tensors["engine/cells"][:-1]
        text = "{}" if damage == "foreign" else json.dumps(header)
        save_file(tensors, file, metadata={"states": text})
    with pytest.raises(ReportError, match=message) as error:
        ra.sweep(place)
    assert "\n" not in str(error.value)
    assert str(place) in str(error.value)


CONFIG = {"rollout_is": "token", "rollout_is_threshold": 1.5, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_3"}


def audited_trainer(source: object, out: Path, logged: Path | None = None, **options: object) -> Path:
    dump = ra.open_dump(source)  # type: ignore[arg-type]
    report = ra.analyze(dump, presets=PRESETS, sweep=GRID, trainer="verl", config=CONFIG, **options)  # type: ignore[arg-type]
    if logged is not None:
        report = report.with_log(ra.compare_log(dump, "verl", CONFIG, logged))
    return ra.write_report(report, out, plots=False).folder


@pytest.fixture(scope="module")
def log(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "log.jsonl"
    by_step = ra.trainer_metrics(ra.open_dump(folder), "verl", CONFIG, per_step=True)
    file.write_text("\n".join(json.dumps({"step": step, **metrics}) for step, metrics in by_step.items()))
    return file


def test_other_thresholds_leave_what_the_trainer_logged_as_it_is(folder: Path, log: Path, tmp_path: Path) -> None:
    place = audited_trainer(folder, tmp_path / "a", log)
    before = ra.read_report(place)
    assert before.trainer is not None
    assert before.log is not None
    assert any(finding.kind == "quirk:k1_sign" for finding in before.findings)
    swept = ra.write_report(ra.sweep(place, ra.sweep_grid(upper="3")), tmp_path / "b", plots=False).folder
    after = ra.read_report(swept)
    for what in ("trainer", "log", "findings", "causes", "health", "overall", "corrections"):
        assert getattr(after, what) == getattr(before, what), what
    assert after.sweep is not None
    assert before.sweep is not None
    assert after.sweep.named == before.sweep.named == ["verl-config"]


def test_merging_tells_quirks_of_all_and_leaves_out_what_takes_the_tokens(
    folder: Path, log: Path, tmp_path: Path
) -> None:
    """The share in a finding is that of all files, not of a part; nothing of one part's trainer stands as the whole."""
    parts = [
        audited_trainer([folder / f"step_{i}.parquet", folder / f"step_{i + 1}.parquet"], tmp_path / f"part{i}", log)
        for i in (0, 2)
    ]
    whole = ra.read_report(audited_trainer(folder, tmp_path / "whole"))
    merged = ra.merge(parts)
    assert (merged.trainer, merged.log) == (None, None)
    by_kind = {finding.kind: finding.message for finding in merged.findings}
    masked = whole.corrections[0].stages.kept["masked_fraction"]
    assert f"keeps ratios from 0.333333 to 1.11111: {masked:.2%} of the tokens leave" in by_kind["quirk:k1_sign"]
    parts_say = {f.message for place in parts for f in ra.read_report(place).findings if f.kind == "quirk:k1_sign"}
    assert by_kind["quirk:k1_sign"] not in parts_say
    own = {f.kind: f.message for f in whole.findings}
    assert set(by_kind) <= set(own)
    assert all(own[kind].startswith(message[:60]) for kind, message in by_kind.items())
    (note,) = (note for note in merged.notes if "would have logged takes the dump" in note)
    assert note.startswith("What verl would have logged takes the dump: it is not here")
    assert "nor the comparison with its log" in note
    again = ra.merge([ra.write_report(merged, tmp_path / "m", plots=False).folder, whole_of_other(tmp_path)])
    assert sum("would have logged takes the dump" in n for n in again.notes) == 1
    assert again.counts.files == 5
    swept = ra.sweep(tmp_path / "m", ra.sweep_grid(upper="3"))
    assert [n for n in swept.notes if "Merged from" in n] == ["Merged from 2 reports."]
    assert note in swept.notes


def whole_of_other(tmp_path: Path) -> Path:
    """One more machine's report with the same configuration."""
    (tmp_path / "other").mkdir()
    pq.write_table(step_table(9), tmp_path / "other" / "step_9.parquet")
    return audited_trainer(tmp_path / "other", tmp_path / "other-report")
