"""The benchmark runs end to end on the smallest model; what it measures is not judged here."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from scripts import benchmark
from scripts.benchmarks import compare, loading, operators, planning, registry, scaling, workers
from scripts.benchmarks.medians import median_with_interval
from scripts.benchmarks.options import OPTIONS
from scripts.benchmarks.results import MET, MISSED, OPEN, Comparison, Figure, Target
from scripts.benchmarks.worker import SHARDED, SWITCHES, Answer, WorkerArguments
from tests.support.fork_server import ForkedScript, call_forked
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = 2


@pytest.fixture
def run(tmp_path) -> Callable[..., list[str]]:
    """A function that runs the script with arguments to its end, and gives the lines that it prints; its programs are
    forked. code: with which it ends."""

    def run(*arguments: str, code: int = 0) -> list[str]:
        output = tmp_path / "output.txt"
        process = ForkedScript([str(ROOT / "scripts" / "benchmark.py"), *arguments], os.environ, output)
        ended_with = process.wait(PATIENCE_SECONDS)
        printed = output.read_text(encoding="utf-8")
        assert ended_with == code, printed
        return printed.splitlines()

    return run


@pytest.fixture
def material(tmp_path, tiny_sd15, picture_folder):
    """A benchmark folder whose model and pictures are there already, and are tiny."""
    folder = tmp_path / "benchmark"
    shutil.copytree(tiny_sd15, folder / "model")
    picture_folder(sizes=((32, 32),) * 4, name="benchmark/pictures")
    return folder


def test_the_step_comparison_reports_every_pair_and_an_interval_around_the_median(material, tmp_path, run):
    figures = tmp_path / "figures.json"
    options = ["--method", "lora", "--blocks", str(BLOCKS), "--steps-per-block", "1", "--folder", str(material)]
    printed = run("step", *options, "--json", str(figures))
    results = json.loads(figures.read_text())
    assert [comparison["what"] for comparison in results["comparisons"]] == [
        "step, lora, cpu",
        "step, lora, cpu, processor time",
    ]
    lines, rows = printed[:2], printed[-2:]
    for comparison, line, row in zip(results["comparisons"], lines, rows, strict=True):
        assert line.startswith(f"{comparison['what']}: ratio ")
        assert row.startswith(f"{comparison['what']}  ")
        assert row.endswith((MET, MISSED, OPEN))
        ratios = sorted(ours / theirs for ours, theirs in comparison["pairs"])
        assert len(ratios) == BLOCKS
        assert comparison["ratio"]["low"] == ratios[0] <= comparison["ratio"]["value"] <= ratios[-1]
    assert {"device", "cores", "torch"} <= results["machine"].keys()
    assert not list(material.glob("run-*")), "the run folders are gone"


@pytest.mark.parametrize(
    ("target", "ratios", "verdict"),
    [
        (Target(1.0), (0.9, 0.99, 1.2), MET),
        (Target(1.0, most_high=1.02), (0.9, 0.99, 1.2), OPEN),
        (Target(1.0, most_high=1.02), (0.9, 0.99, 1.02), MET),
        (Target(1.0), (0.9, 1.01, 1.2), OPEN),
        (Target(1.0), (1.01, 1.02, 1.2), MISSED),
        (Target(1.5, at_least=True), (1.4, 1.5, 1.6), MET),
        (Target(1.5, at_least=True), (1.4, 1.45, 1.6), OPEN),
        (Target(1.5, at_least=True), (1.3, 1.4, 1.49), MISSED),
    ],
)
def test_a_target_is_met_or_missed_only_where_the_noise_lets_one_tell(target, ratios, verdict):
    comparison = Comparison("step", "s", target, [(ratio, 1.0) for ratio in ratios])
    assert comparison.row() == ("step", f"{ratios[1]:.3f}", f"{ratios[0]:.3f} to {ratios[2]:.3f}", str(target), verdict)
    assert comparison.as_values()["verdict"] == verdict


def test_all_ends_with_one_table_of_what_its_benchmarks_found(tmp_path, monkeypatch, capsys):
    """Also where one of them fails: hours of measurements are not lost to it."""

    def fails():
        raise UserError("two cores are too few.")
        yield

    ratio, figure = Comparison("step", "s", Target(1.0), [(1.0, 2.0)]), Figure("dry run", 0.5, "s", 0.4)
    of_all = {"one": lambda: ratio, "other": lambda: [figure], "failing": fails}
    found = {name: one_part(run) for name, run in of_all.items()}
    monkeypatch.setattr(benchmark, "BENCHMARKS", {**found, "apart": replace(one_part(fails), in_all=False)})
    figures = tmp_path / "figures.json"
    assert benchmark.main(["all", "--folder", str(tmp_path), "--json", str(figures)]) == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[-3:] == [
        "what     ratio or value  interval        target",
        "step     0.500           0.500 to 0.500  <= 1.00  met",
        "dry run  0.5 s                           <= 0.4   missed",
    ]
    assert said.err == "two cores are too few.\n"
    results = json.loads(figures.read_text())
    assert [one["benchmark"] for one in (*results["comparisons"], *results["other"])] == ["one", "other"]


def one_part(run) -> registry.Benchmark:
    return registry.Benchmark("", lambda args: [registry.Part("only", run)], in_all=True, needs_material=False)


def test_a_run_goes_on_with_the_parts_that_its_file_lacks(tmp_path, monkeypatch, capsys):
    """Of one that did not end, what it found is found anew."""
    ratio, measured, ends = Comparison("step", "s", Target(1.0), [(1.0, 2.0)]), [], []

    def part(key):
        def run():
            measured.append(key)
            yield ratio
            if key == "second" and not ends:
                raise UserError("the machine is needed.")
            yield Figure(key, 0.5, "s", 0.4)

        return registry.Part(key, run)

    one = registry.Benchmark("", lambda args: map(part, ("first", "second")), in_all=True, needs_material=False)
    monkeypatch.setattr(benchmark, "BENCHMARKS", {"one": one})
    figures = tmp_path / "figures.json"
    options = ["all", "--folder", str(tmp_path), "--json", str(figures), "--resume"]
    assert benchmark.main(options) == 2
    ends.append(True)
    assert benchmark.main(options) == 0
    assert benchmark.main(options) == 0
    assert measured == ["first", "second", "second"]
    results = json.loads(figures.read_text())
    assert [entry["part"] for entry in results["comparisons"]] == ["first", "second"]
    assert [entry["what"] for entry in results["one"]] == ["first", "second"]
    table = capsys.readouterr().out.splitlines()[-5:]
    assert table[0].startswith("what"), "of all parts, also those that were there"
    assert sorted(row.split()[0] for row in table[1:]) == ["first", "second", "step", "step"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"machine": {"cores": 999}, "comparisons": [], "finished": []}', "cores was 999 and is"),
        ("[]", "is not a file that --json has written"),
    ],
)
def test_a_file_of_another_machine_or_kind_is_not_gone_on_with(text, said, tmp_path, capsys):
    file = tmp_path / "figures.json"
    file.write_text(text, encoding="utf-8")
    assert benchmark.main(["operators", "--folder", str(tmp_path), "--json", str(file), "--resume"]) == 2
    assert said in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == text


def test_an_option_of_another_benchmark_is_refused(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["memory", "--options", "lion"])
    assert "--options with memory: it belongs to step" in capsys.readouterr().err


def test_the_batches_of_a_step_are_those_of_few_and_of_many_images_in_turns():
    found = planning.batch_seconds("2", "100", "400")
    assert found["counts"] == [100, 400]
    assert [len(ms) for ms in found["ms"].values()] == [2, 2]


def test_an_option_is_compared_to_the_same_run_without_it(material, tmp_path, monkeypatch, capsys):
    """By programs that answer without training."""
    programs = []

    @contextlib.contextmanager
    def program(name, arguments, device, num_ranks, one_thread):
        assert not one_thread
        monkeypatch.setattr("sys.argv", [name, *arguments.as_options()])
        programs.append((name, WorkerArguments.parse()))  # what the program itself would read
        yield SimpleNamespace(turn=lambda: Answer(1.0, 2.0, 0.0, None, "cpu", num_ranks))

    monkeypatch.setattr(workers, "start_worker", program)
    figures = tmp_path / "figures.json"
    options = ["--method", "lora", "--blocks", str(BLOCKS), "--steps-per-block", "1", "--folder", str(material)]
    assert benchmark.main(["step", "--options", "lion", *options, "--json", str(figures)]) == 0
    (name, with_it), (same_name, without) = programs
    assert name == same_name == compare.CHORUS
    assert with_it == replace(without, settings=OPTIONS["lion"])
    assert without.settings == ()
    wall, processor = json.loads(figures.read_text())["comparisons"]
    assert (wall["what"], wall["target"]) == ("step with lion, lora, cpu", None)
    assert processor["what"] == "step with lion, lora, cpu, processor time"
    assert len(wall["pairs"]) == len(processor["pairs"]) == BLOCKS
    assert "; with it " in capsys.readouterr().out


def test_usual_and_tiny_steps_are_compared_with_what_is_installed(tmp_path, monkeypatch, capsys):
    """By programs that answer without training."""
    steps = {}

    @contextlib.contextmanager
    def program(name, arguments, device, num_ranks, one_thread):
        assert one_thread
        monkeypatch.setattr("sys.argv", [name, *arguments.as_options()])
        read = WorkerArguments.parse()  # what the program itself would read
        steps[name, read.task] = read.steps
        yield SimpleNamespace(turn=lambda: Answer(1.0, 2.0, 0.0, None, "cpu", num_ranks))

    monkeypatch.setattr(workers, "start_worker", program)
    monkeypatch.setattr(compare, "find_spec", lambda package: None if package == "lightning_fabric" else package)
    assert benchmark.main(["engine", "--ranks", "1", "--blocks", "1", "--folder", str(tmp_path)]) == 0
    sides = (compare.ENGINE, "engine_hand", "engine_accelerate")
    assert steps == {(name, task): count for name in sides for task, count in {"usual": 5, "tiny": 100}.items()}
    said = capsys.readouterr().out
    assert said.count("engine, Lightning Fabric: left out, as lightning_fabric is not installed") == 1
    assert "engine, tiny steps, cpu, 1 rank, processor time: ratio 1.000" in said
    assert "lines) 20 ms, " in said


def test_every_option_is_a_setting_that_a_run_takes(material):
    from modules.config.files import apply_overrides, config_from_values
    from modules.config.validation import find_problems
    from scripts.benchmarks.chorus_run import run_values, settings_of

    values = run_values(WorkerArguments(material, "lora", steps=1, turns=1))
    switched = {switch: settings_of(switch, "lora") for switch in SWITCHES}
    for name, settings in {**OPTIONS, **switched}.items():
        config = config_from_values(apply_overrides(values, settings))
        assert [problem for problem in find_problems(config) if problem.blocking] == [], name


def test_two_ranks_of_each_side_take_turns(material, tmp_path, run):
    figures = tmp_path / "figures.json"
    options = ["--method", "lora", "--blocks", str(BLOCKS), "--steps-per-block", "2", "--folder", str(material)]
    run("ranks", "--ranks", "2", *options, "--json", str(figures))
    comparisons = json.loads(figures.read_text())["comparisons"]
    assert [comparison["what"] for comparison in comparisons] == [
        "step, lora, cpu, 2 ranks",
        "step, lora, cpu, 2 ranks, processor time",
    ]
    assert all(len(comparison["pairs"]) == BLOCKS for comparison in comparisons)


@pytest.mark.proof
@pytest.mark.parametrize(
    "options", [("ranks", "--sharding"), ("step", "--switches", "bf16"), ("step", "--switches", "compiled")]
)
@pytest.mark.parametrize("method", registry.METHODS)
def test_both_sides_know_every_switch(material, run, options, method):
    printed = run(*options, "--method", method, "--blocks", "1", "--steps-per-block", "1", "--folder", str(material))
    switch = SHARDED if "--sharding" in options else options[-1]
    assert printed[0].startswith(f"step, {method}, {switch}, cpu")


def test_what_all_measures_with_switches_is_the_same_on_both_sides(material, monkeypatch):
    """By programs that answer without training."""
    seen = []

    @contextlib.contextmanager
    def program(name, arguments, device, num_ranks, one_thread):
        monkeypatch.setattr("sys.argv", [name, *arguments.as_options()])
        seen.append((name, num_ranks, WorkerArguments.parse().switches))  # what the program itself would read
        yield SimpleNamespace(turn=lambda: Answer(1.0, 2.0, 0.0, None, "cpu", num_ranks))

    monkeypatch.setattr(workers, "start_worker", program)
    args = benchmark.parse(["all", "--method", "full", "--blocks", "1", "--folder", str(material)])
    parts = [*registry.step(args), *registry.ranks(args)]
    found = [one for part in parts for one in part.measure()]
    ways = [(1, ()), (1, ("bf16",)), (1, ("compiled",)), (2, ()), (2, ("sharded",))]
    assert seen == [(name, *way) for way in ways for name in (compare.CHORUS, compare.REFERENCE)]
    assert [one.what for one in found[::2]] == [
        "step, full, cpu",
        "step, full, bf16, cpu",
        "step, full, compiled, cpu",
        "step, full, cpu, 2 ranks",
        "step, full, sharded, cpu, 2 ranks",
    ]


def test_a_start_is_measured_by_its_time_and_its_processor_time(material):
    """The programs are forked, so that both have imported their libraries."""
    ((seconds, cpu_seconds),) = zip(*call_forked(measured_start, material), strict=True)
    for side in (0, 1):
        assert seconds[side] > 0
        assert 0 < cpu_seconds[side] < 60


def measured_start(folder: Path) -> list[list[tuple[float, float]]]:
    return [one.pairs for one in compare.compare_start(folder, "lora", "cpu", 1)]


def test_a_backup_is_measured_by_how_long_the_loop_waits_for_it(material, run, tmp_path):
    figures = tmp_path / "figures.json"
    options = ["--method", "lora", "--pairs", "2", "--steps-per-block", "1", "--folder", str(material)]
    (printed,) = run("backup", *options, "--json", str(figures))
    assert printed.startswith("backup, lora, cpu: ratio ")
    (comparison,) = json.loads(figures.read_text())["comparisons"]
    assert len(comparison["pairs"]) == 2
    assert all(waits > 0 and step > 0 for waits, step in comparison["pairs"])


def test_loading_is_measured_against_the_size_of_what_is_held_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "WIDTH", 64)
    monkeypatch.setattr(loading, "SHARD_BYTES", "200KB")
    loading._make_wide(tmp_path / "model")
    files = list((tmp_path / "model" / "transformer").glob("*.safetensors"))
    assert len(files) > 1
    found = loading.load(tmp_path / "model", "int8")
    assert 0 < found["final_bytes"] < sum(file.stat().st_size for file in files)
    with loading._MemoryWatch() as watch:
        held = b"1" * 2**27  # zeros would take no memory; twice what is asked for, as the system may take other pages
    del held
    assert watch.peak - watch.before >= 2**26


def test_a_program_that_fails_is_told_with_its_last_lines(material, run):
    shutil.rmtree(material / "model" / "unet")
    error = run("memory", "--method", "lora", "--pairs", "1", "--folder", str(material), code=2)
    assert error[0].startswith("chorus_run ended before its time")
    assert "unet" in "\n".join(error)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a window of this system always has a display")
def test_the_window_is_not_measured_without_a_display(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    assert benchmark.main(["ui", "--folder", str(tmp_path)]) == 2
    assert "DISPLAY is not set" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (5, 0), (6, 0), (9, 1), (20, 5), (100, 39)])
def test_the_interval_of_a_median_leaves_out_what_the_tables_say(count, left_out):
    """Ranks of the 95 % intervals of tables for the sign test: 20 values give the 6th and the 15th."""
    interval = median_with_interval(list(range(count)))
    assert (interval.low, interval.high) == (left_out, count - 1 - left_out)
    assert interval.value == (count - 1) / 2


def test_scaling_compares_each_run_with_one_rank_in_the_same_round(tmp_path, monkeypatch, capsys):
    """By programs that answer without training: a second for 128 samples of a rank, on two cores, ever slower."""
    speeds = []

    @contextlib.contextmanager
    def program(name, arguments, device, num_ranks, one_thread):
        monkeypatch.setattr("sys.argv", [name, *arguments.as_options()])
        parsed = WorkerArguments.parse()  # what the program itself would read

        def turn():
            speeds.append(1 / (1 + len(speeds) // 5))  # of a round: five runs
            work = parsed.batch_size * parsed.steps / 128 / speeds[-1]
            return Answer(work * max(1, num_ranks / 2), work * num_ranks, 0.0, None, "cpu", num_ranks)

        yield SimpleNamespace(turn=turn)

    monkeypatch.setattr(scaling, "start_worker", program)
    monkeypatch.setattr(registry, "num_cores", lambda: 2)
    figures = tmp_path / "figures.json"
    assert benchmark.main(["scaling", "--blocks", "7", "--folder", str(tmp_path), "--json", str(figures)]) == 0
    found = {(one["what"], one["run"]["num_ranks"]): one for one in json.loads(figures.read_text())["scaling"]}
    speed_ups = {key: one["speed_up"]["value"] for key, one in found.items()}
    assert speed_ups == {(what, ranks): min(ranks, 2) for what in ("strong", "weak") for ranks in (1, 2, 4)}
    assert {one["processor_time"]["value"] for one in found.values()} == {1.0}
    assert [key for key, one in found.items() if one["has_too_few_devices"]] == [("strong", 4), ("weak", 4)]
    assert found["strong", 2]["run"]["batch_size"] * 2 == found["strong", 1]["run"]["batch_size"]
    assert "4 ranks with batches of 64 (more ranks than devices)" in capsys.readouterr().out


@pytest.mark.proof
@pytest.mark.parametrize("model", operators.MODELS)
def test_a_step_of_a_lora_asks_for_fewer_operators_than_the_loop_by_hand(model, monkeypatch, capsys, tmp_path):
    most = operators.MODELS[model]
    monkeypatch.setattr(operators, "MODELS", {model: most})
    figures = tmp_path / "figures.json"
    assert benchmark.main(["operators", "--json", str(figures)]) == 0
    (found,) = json.loads(figures.read_text())["operators"]
    assert found["chorus"]["products"] == found["hand"]["products"]  # they train the same layers
    assert found["ratio"] == sum(found["chorus"].values()) / sum(found["hand"].values()) <= most
    assert capsys.readouterr().out.startswith(f"{model}: {found['ratio']:.2f}; ")
