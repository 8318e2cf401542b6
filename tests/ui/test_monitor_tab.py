"""The monitor tab: what it shows of the run, and that it is open when a run starts."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from modules.config.files import save_config
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.config.TrainConfig import TrainConfig
from modules.machine.devices import Gpu, GpuUsage
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from modules.ui.cards.ProgressCard import describe_activity, figures
from modules.ui.cards.RankBars import _line_of
from modules.ui.cards.TryCard import TryCard
from modules.ui.models.DeviceModel import DeviceModel
from modules.ui.models.Preferences import Preferences
from modules.ui.models.run_text import describe_end, describe_ranks, share_done, wait_advice
from modules.ui.models.RunState import Activity, RankRow, RunState, SamplePicture
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import set_size
from modules.ui.widgets.fitting import FittedLabel
from scripts.sample import parse as parse_sample
from tests.support.fake_nvml import GIB

RUNNING = RunState(
    folder=Path("cat"), phase="Training", is_running=True, started=1000.0, epoch=3, step=320, total=500, smooth=0.0812,
    samples_per_second=206.4, eta_seconds=56, ranks=[RankRow(rank, state="training", step=320) for rank in range(4)],
)  # fmt: skip


@pytest.fixture
def app(shared_app):
    return shared_app


def test_the_figures_of_a_run():
    assert figures(RUNNING) == {
        "Step": "320 / 500",
        "Epoch": "3",
        "Loss, smoothed": "0.0812",
        "Remaining": "00:56",
        "Throughput": "206.4 images/s",
        "Per rank": "51.6 images/s",
    }
    assert set(figures(RunState()).values()) == {"-"}
    ended = figures(replace(RUNNING, is_running=False))
    assert (ended["Step"], ended["Remaining"], ended["Throughput"]) == ("320 / 500", "-", "-")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "Training, 01:05 since the start"),
        ({"is_stopping": True}, "Stopping…, 01:05 since the start"),
        ({"activity": Activity("Caching images", 700, 1200)}, "Caching images: 700 of 1,200, 01:05 since the start"),
        ({"is_running": False, "exit": {"status": "finished", "time": 1161.0}}, "Finished, after 02:41"),
        ({"is_running": False, "exit": {"status": "failed"}}, "Failed"),  # of an old version, without a time
        ({"message": "The run folder is gone."}, "The run folder is gone."),
        ({"started": None}, "Training"),
        ({"phase": "", "started": None}, "Starting"),
        ({"folder": None}, "No run yet"),
    ],
)
def test_what_a_run_is_doing_and_for_how_long(changes, text):
    assert describe_activity(replace(RUNNING, **changes), now=1065.0) == text


def test_the_bar_is_that_of_the_activity_before_the_first_step():
    assert share_done(RUNNING) == 320 / 500
    assert share_done(replace(RUNNING, step=0, activity=Activity("Caching images", 3, 4))) == 0.75
    assert share_done(RunState()) == 0
    for phase in ("", "Starting 2 processes", "Loading libraries", "Generating 4 samples"):
        assert share_done(replace(RUNNING, phase=phase)) is None
    assert share_done(replace(RUNNING, phase="Stopped at step 320", is_running=False)) == 320 / 500


def test_the_bar_moves_while_nobody_knows_how_long_something_takes(app, settle):
    bar = app.bottom_bar.progress
    app.bottom_bar.show_run(replace(RUNNING, phase="Loading libraries"))
    settle(app)
    before = bar._indeterminate_value
    bar._move()
    assert bar.is_moving
    assert bar._indeterminate_value > before
    app.bottom_bar.show_run(RUNNING)
    assert not bar.is_moving
    assert bar.get() == 320 / 500


@pytest.mark.parametrize(("is_resumed", "text"), [(False, "Finished in 02:41"), (True, "Finished 02:41 after it was ")])
def test_the_time_of_a_resumed_run_is_that_since_then(is_resumed, text):
    record = {"status": "finished", "time": 1161.0}
    state = replace(RUNNING, is_running=False, exit=record, is_resumed=is_resumed)
    assert describe_end(state).startswith(text)


def test_a_rank_that_waits_for_data_is_named_with_a_remedy():
    rows = [RankRow(rank, state="training", steps_per_second=2.0, data_seconds=0.005) for rank in range(3)]
    assert wait_advice(rows) == ""
    rows[1] = replace(rows[1], data_seconds=0.06)
    assert wait_advice(rows) == "Rank 1 waits for images 12% of the time: raise Prefetch on the Dataset tab."


def test_the_ranks_in_a_line():
    rows = [RankRow(rank, state="training", steps_per_second=2.0) for rank in range(3)]
    assert describe_ranks(rows) == "3 of 3 alive"
    slow, killed = replace(rows[1], steps_per_second=1.6), replace(rows[2], state="killed")
    assert describe_ranks([rows[0], slow, rows[2]]) == "3 of 3 alive, slowest rank 1 (+25%)"
    assert describe_ranks([rows[0], rows[1], killed]) == "2 of 3 alive, rank 2 killed"
    assert describe_ranks([replace(row, state="finished") for row in rows]) == "all 3 finished"


def test_a_rank_on_a_gpu_of_this_machine_has_what_the_driver_says_of_it(monkeypatch):
    devices = DeviceModel()
    gpus = (Gpu(0, "NVIDIA GeForce RTX 4090", "GPU-0", 24 * GIB, 0), Gpu(1, "NVIDIA A100", "GPU-1", 80 * GIB, 1))
    usage = [GpuUsage(6 * GIB, 97, 60), GpuUsage(20 * GIB, 50, 61)]
    monkeypatch.setattr(DeviceModel, "gpus", gpus)
    monkeypatch.setattr(DeviceModel, "usage_so_far", usage)
    row = RankRow(0, "cuda:1", "training", step=12, memory_bytes=GIB)
    assert _line_of(row, devices) == ("0", "A100", "20.0 / 80", 0.25, "50%", "step 12", Theme.success)
    elsewhere = _line_of(replace(row, device="1:cuda:1"), devices)  # of another machine: as its rank reports it
    assert elsewhere == ("0", "1:cuda:1", "1.0", None, "-", "step 12", Theme.success)
    waiting = _line_of(replace(row, steps_per_second=1.0, data_seconds=0.2), devices)
    assert waiting[-2:] == ("waits 20%", Theme.warning)
    assert _line_of(RankRow(3, "cpu", "killed"), devices)[1:] == ("cpu", "-", None, "-", "killed", Theme.error)


@pytest.fixture
def run(app, tmp_path):
    """A running run of two ranks with samples of two steps, shown in the window."""
    folder = RunFolder(tmp_path / "cat")
    folder.create()
    step = {"type": "step", "epoch": 1, "steps_total": 9, "lr": 1e-4, "samples": 4, "seconds": 1.0, "loss": 0.5}
    for rank in (0, 1):
        events = [{**step, "rank": rank, "time": 1.0 + number, "step": number} for number in (1, 2)]
        for number in (1, 2) if rank == 0 else ():
            path = folder.samples_dir / f"step-{number}" / "000_a cat_seed1.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(path)
            sample = {"type": "sample", "rank": 0, "time": 1.5 + number, "path": str(path), "prompt": "a cat"}
            events.append({**sample, "step": number})
        folder.event_path(rank).write_text("".join(json.dumps(event) + "\n" for event in events))
    with RunLock(folder.lock_path):
        app.run.attach(folder.path, is_running=True)
        yield folder


def test_the_tab_shows_the_run_and_follows_its_newest_samples(app, run, wait_for, settle):
    tab = app.open_tab("monitor")
    settle(app)
    wait_for(app, lambda: tab.samples.shown_step == 2)
    assert tab.progress._title.cget("text") == "Progress of cat"
    assert tab.progress._values["Step"].cget("text") == "2 / 9"
    assert tab.ranks._title.cget("text") == "Ranks: 2 of 2 alive"
    assert [title for title, _ in tab.samples.strip.samples] == ["a cat"]
    tab.samples.slider._command(0)  # look back
    assert tab.samples.shown_step == 1
    with run.event_path(0).open("a") as file:
        event = {"type": "sample", "rank": 0, "time": 9.0, "path": str(run.samples_dir / "x.png"), "prompt": "a cat"}
        file.write(json.dumps({**event, "step": 3}) + "\n")
    wait_for(app, lambda: tab.samples.table.steps == (1, 2, 3))
    assert tab.samples.shown_step == 1  # the user still looks back
    tab.samples.slider._command(2)
    assert tab.samples.shown_step == 3


def test_the_buttons_ask_the_run_while_it_goes_on(app, run, wait_for, settle):
    tab = app.open_tab("monitor")
    settle(app)
    wait_for(app, lambda: tab.progress.buttons["backup"].cget("state") == "normal")
    tab.progress.buttons["backup"].invoke()
    wait_for(app, lambda: list(run.commands_dir.iterdir()))
    assert "Back up now" in app.message.cget("text")
    tab.progress.buttons["sample"].invoke()
    assert app.message.cget("text").endswith("from the prompts that the run was started with.")
    app.run.stop()
    wait_for(app, lambda: "Stopping…" in tab.progress.phase.cget("text"))
    assert {button.cget("state") for button in tab.progress.buttons.values()} == {"disabled"}


def test_the_end_shows_what_the_run_has_made(app, tmp_path, wait_for, settle):
    folder = RunFolder(tmp_path / "cat")
    folder.create()
    sampling = SamplingConfig(samples=[SampleConfig("a fox")])
    save_config(TrainConfig(sampling=sampling), folder.config_path)
    model = folder.models_dir / "cat.safetensors"
    model.write_bytes(bytes(2_500_000))
    step = {"type": "step", "epoch": 1, "step": 9, "steps_total": 9, "lr": 1e-4, "samples": 4, "seconds": 1.0}
    saved = {"type": "saved", "path": str(model), "step": 9}
    moved = {**saved, "path": str(tmp_path / "elsewhere" / "cat.safetensors")}
    events = [{"type": "started", "started": 900.0}, {**step, "loss": 0.5, "smooth_loss": 0.25}, moved, saved, saved]
    lines = (json.dumps({"rank": 0, "time": 1000.0, **event}) + "\n" for event in events)
    folder.event_path(0).write_text("".join(lines))
    folder.write_exit("finished", rank=0)
    app.run.attach(folder.path)
    tab = app.open_tab("monitor")
    wait_for(app, lambda: tab.trying is not None and "MB" in result_texts(tab)[-1])
    assert tab.result._title.cget("text").startswith("✓ Finished in ")
    assert tab.result._facts.cget("text") == "9 steps, 1 epoch, final loss 0.2500"
    assert result_texts(tab) == ["cat.safetensors   2.5 MB"]
    assert tab.trying.prompt.get("1.0", "end-1c") == "a fox"
    settle(app)
    shown = [card.winfo_manager() != "" for card in (tab.result, tab.trying, tab.progress, tab.ranks)]
    assert shown == [True, True, False, False]
    assert not tab.trying._last_row.winfo_manager()  # its model makes images
    tab.trying.entries["seed"].insert(0, "x")
    tab.trying.generate()
    assert tab.trying._note.cget("text") == "Seed 'x42' must be a whole number, 0 to 2147483647."


@pytest.mark.parametrize(("status", "can_resume"), [("stopped", True), ("failed", True), ("finished", False)])
def test_a_run_that_ended_early_is_resumed_from_its_card(app, run, wait_for, monkeypatch, status, can_resume):
    save_config(TrainConfig(epochs=7, workspace_dir="elsewhere"), run.config_path)
    with run.event_path(0).open("a") as file:
        backup = str(run.backup_dir / "step-000000002")
        file.write(json.dumps({"type": "backup", "rank": 0, "time": 9.0, "path": backup, "step": 2}) + "\n")
    run.write_exit(status, rank=0)
    run.lock_path.unlink()
    resumed = []
    monkeypatch.setattr(app, "resume_run", lambda: resumed.append(app.settings.get("epochs")))
    tab = app.open_tab("monitor")
    wait_for(app, lambda: tab.result is not None and tab.result.winfo_manager())
    assert tab.result._facts.cget("text").startswith("2 of 9 steps, 1 epoch")
    tab.result.resume.invoke()
    assert resumed == ([7] if can_resume else [])
    if can_resume:
        assert app.settings.get("workspace_dir") == str(run.path)
        app.settings.set("epochs", 8)
        tab.result.resume.invoke()
        assert resumed == [7, 8]


def test_only_a_model_of_layers_is_asked_for_a_number_of_them(app, tmp_path):
    card = TryCard(app, app)
    sampling = SamplingConfig(samples=[SampleConfig("a poster", layers=3)])
    for family, is_asked in (("qwen_image_layered", True), ("sd15", False)):
        folder = RunFolder(tmp_path / family)
        folder.create()
        save_config(TrainConfig(family=family, sampling=sampling), folder.config_path)
        card.show(RunState(folder=folder.path))
        assert bool(card.entries["layers"].winfo_manager()) == is_asked
        assert card.entries["layers"].get() == "3"
    card.entries["layers"].insert("end", "0")
    assert card._read_wish(card._wish).layers == 30
    for name, text, problem in (
        ("layers", "51", "Layers '51' must be a whole number, 1 to 50."),
        ("steps", "0", "Steps '0' must be a whole number, 1 to 10000."),
        ("guidance", "nan", "CFG 'nan' must be a number, 0 to 1000."),
    ):
        value = card.entries[name].get()
        card.entries[name].delete(0, "end")
        card.entries[name].insert(0, text)
        assert card._read_wish(card._wish) is None
        assert card._note.cget("text") == problem
        card.entries[name].delete(0, "end")
        card.entries[name].insert(0, value)
    card.destroy()


def result_texts(tab) -> list[str]:
    labels = tab.result._rows.winfo_children() if tab.result else []
    return [label.cget("text") for label in labels if isinstance(label, FittedLabel)] or [""]


def test_a_failure_says_why_and_offers_the_report(app, run, wait_for, settle):
    tab = app.open_tab("monitor")
    run.write_exit("failed", rank=1, kind="error", text="CUDA out of memory: lower batch_size.")
    run.lock_path.unlink()
    wait_for(app, lambda: tab.result is not None and tab.result.report.winfo_ismapped())
    assert tab.result._title.cget("text") == "✗ Failed"
    assert "CUDA out of memory: lower batch_size." in tab.result._facts.cget("text")
    assert tab.ranks.winfo_manager() == "grid"  # nothing was saved: there is nothing to try


def test_in_a_narrow_window_the_cards_are_below_each_other(app, settle):
    app.geometry("860x700")
    tab = app.open_tab("monitor")
    settle(app)
    cards = (tab.progress, tab.chart, tab.samples, tab.ranks, tab.log)
    assert [card.winfo_x() for card in cards] == [tab.log.winfo_x()] * 5
    tops = [card.winfo_y() for card in cards]
    assert tops == sorted(tops)
    app.geometry("1280x800")
    settle(app)
    assert tab.progress.winfo_x() > tab.chart.winfo_x()
    assert tab.progress.winfo_y() == tab.chart.winfo_y()


def test_the_samples_are_those_of_a_run_whose_name_is_said(app, settle, tmp_path):
    app.run.state.folder = tmp_path / "first"
    app.run.state.samples = [SamplePicture(20, "a fox", tmp_path / "first" / "000_a fox_seed1.png")]
    tab = app.open_tab("monitor")
    settle(app)
    tab.samples.update_samples()
    assert tab.samples._title.cget("text") == "Samples of first, step 20"
    app.run.state.folder, app.run.state.samples = tmp_path / "second", []
    tab.samples.update_samples()
    assert tab.samples._title.cget("text") == "Samples of second"


def test_another_run_is_tried_with_its_own_prompt_and_at_full_strength(app, tmp_path):
    card, states = TryCard(app, app), []
    for name in ("first", "second"):
        folder = RunFolder(tmp_path / name)
        folder.create()
        save_config(TrainConfig(sampling=SamplingConfig(samples=[SampleConfig()])), folder.config_path)
        picture = SamplePicture(3, f"a {name} fox", folder.path / "a.png")
        states.append(RunState(folder=folder.path, exit={"status": "finished"}, samples=[picture]))
    card.show(replace(states[0], samples=[]))
    card.show(states[0])  # its samples are read after its end
    assert card.prompt.get("1.0", "end-1c") == "a first fox"
    card._set_strength(0.5)
    card.show(states[0])
    assert (card._strength.get(), card._strength_text.cget("text")) == (0.5, "0.50")
    card._button.configure(text="Cancel")
    card.show(states[1])
    assert card.prompt.get("1.0", "end-1c") == "a second fox"
    assert (card._strength.get(), card._strength_text.cget("text")) == (1.0, "1.00")
    assert card._button.cget("text") == "Generate"
    assert not card.all_strengths.winfo_manager()  # of a plain LoRA


def test_nothing_has_to_be_scrolled_in_a_window_of_the_usual_size(app, run, wait_for, settle):
    set_size(app, Preferences().geometry, (100, 100))
    tab = app.open_tab("monitor")
    wait_for(app, lambda: tab.progress is not None and tab.progress._values["Step"].cget("text") == "2 / 9")
    settle(app)
    wait_for(app, lambda: tab.log.text.get("1.0", "end").count("\n") == 2)
    assert tab._page._parent_canvas.yview() == (0.0, 1.0)
    assert len(tab.log.text.get("@0,0", f"@0,{tab.log.text.winfo_height()}").splitlines()) >= 2


def test_samples_are_named_by_what_tells_their_prompts_apart(app, run, wait_for, settle):
    tab = app.open_tab("monitor")
    settle(app)
    with run.event_path(0).open("a") as file:
        for number, prompt in enumerate(("a black cat asleep", "a black cat", "a black dog")):
            path = str(run.samples_dir / f"00{number}_x_seed1.png")
            event = {"type": "sample", "rank": 0, "time": 9.0, "path": path, "prompt": prompt, "step": 3}
            file.write(json.dumps(event) + "\n")
    wait_for(app, lambda: len(tab.samples.strip.samples) == 3)
    assert [title for title, _ in tab.samples.strip.samples] == ["cat asleep", "cat", "dog"]


def trying(app, run, monkeypatch, scripts: list, **config) -> TryCard:
    """A card for a run with a model, whose scripts are recorded instead of started."""

    def make(options, standby, heard):
        scripts.append(SimpleNamespace(options=options, heard=heard, end=threading.Event(), cancel=lambda: None))
        script = scripts[-1]
        script.run = lambda: script.end.wait() and b"x"
        return script

    save_config(TrainConfig(**config), run.config_path)
    monkeypatch.setattr("modules.ui.cards.TryCard.image_script", make)
    monkeypatch.setattr("modules.ui.cards.TryCard.newest_model", lambda saved: [Path("cat.safetensors")])
    card = TryCard(app, app)
    card.show(RunState(folder=run.path))
    return card


def fill(card: TryCard, **values: str) -> None:
    for name, text in values.items():
        card.entries[name].delete(0, "end")
        card.entries[name].insert(0, text)


def test_one_process_makes_the_images_of_both_models_and_each_is_shown_at_once(app, run, wait_for, monkeypatch):
    scripts = []
    card = trying(app, run, monkeypatch, scripts)
    assert card.entries["count"].get() == "1"
    card.negative.insert(0, "a dog")
    fill(card, seed="2147483640", width="64", height="100", count="2")
    card.generate()
    assert card._note.cget("text") == "Height '100' must be a multiple of 16, 8 to 16384."
    fill(card, height="96")
    card.generate()
    (script,) = scripts
    args = parse_sample(script.options)
    assert (args.negative_prompt, args.seed, args.width, args.height) == ("a dog", 2147483640, 64, 96)
    assert (args.count, args.compare, args.lora) == (2, True, ["cat.safetensors:1.00"])
    assert card._note.cget("text") == "Generating with the base model… 4 images left."
    script.heard("a.png")
    wait_for(app, lambda: card.images.samples)
    assert card.images.samples == [("base", "a.png")]
    for name in ("b", "c", "d"):
        script.heard(f"{name}.png")
    wait_for(app, lambda: len(card.images.samples) == 4)
    assert dict(card.images.samples)["strength 1.00, seed 2147483641"] == "d.png"
    script.end.set()
    wait_for(app, lambda: not card.is_generating)
    assert card._note.cget("text") == f"Saved in {Path('cat/samples/generated')}"  # the whole path has no space
    card.destroy()


def test_another_strength_needs_no_base_image_again_and_the_former_images_stay(app, run, wait_for, monkeypatch):
    scripts = []
    card = trying(app, run, monkeypatch, scripts)

    def make(*names: str) -> None:
        card.generate()
        for name in names:
            scripts[-1].heard(name)
        scripts[-1].end.set()
        wait_for(app, lambda: not card.is_generating)

    make("a", "b")
    card._set_strength(0.5)
    make("c")
    assert [parse_sample(script.options).compare for script in scripts] == [True, False]
    assert card.images.samples == [("base", "a"), ("strength 1.00", "b"), ("strength 0.50", "c")]
    card.prompt.insert("1.0", "a dog")
    make("d", "e")
    assert [path for _, path in card.images.samples] == ["d", "e", "a", "b", "c"]
    card.destroy()


def test_a_concept_slider_is_tried_at_negative_strengths_in_the_order_of_the_strengths(app, run, wait_for, monkeypatch):
    scripts = []
    card = trying(app, run, monkeypatch, scripts, method="slider")
    card._set_strength(-1.5)
    card.generate()
    assert parse_sample(scripts[0].options).lora == ["cat.safetensors:-1.50"]
    for name in ("base", "one"):
        scripts[0].heard(name)
    scripts[0].end.set()
    wait_for(app, lambda: not card.is_generating)
    card.all_strengths.invoke()
    args = parse_sample(scripts[1].options)
    assert (args.strengths, args.compare) == ([-2.0, -1.0, 1.0, 2.0], False)
    for name in ("a", "b", "c", "d"):
        scripts[1].heard(name)
    scripts[1].end.set()
    wait_for(app, lambda: not card.is_generating)
    assert [path for _, path in card.images.samples] == ["a", "one", "b", "base", "c", "d"]
    card.destroy()


def test_a_model_trained_as_a_whole_is_loaded_after_the_base(app, run, wait_for, monkeypatch):
    scripts = []
    card = trying(app, run, monkeypatch, scripts, method="full")
    card.generate()
    scripts[0].heard("a")
    scripts[0].end.set()
    wait_for(app, lambda: len(scripts) == 2)
    assert card.images.samples == [("base", "a")]
    scripts[1].heard("b")
    scripts[1].end.set()
    wait_for(app, lambda: not card.is_generating)
    assert card.images.samples == [("base", "a"), ("trained", "b")]
    assert [parse_sample(script.options).base for script in scripts][1] == "cat.safetensors"
    card.destroy()


def test_the_log_shows_whole_lines_and_its_end_in_any_size(app, run, wait_for, settle):
    tab = app.open_tab("monitor")
    with run.event_path(0).open("a") as file:
        for number in range(40):
            file.write(json.dumps({"type": "status", "rank": 0, "time": 9.0 + number, "text": f"line {number}"}) + "\n")
    wait_for(app, lambda: tab.log is not None and tab.log.text.get("1.0", "end").rstrip().endswith("line 39"))
    for height in (800, 807, 960, 790):
        set_size(app, f"1280x{height}", (100, 100))
        settle(app)
        first, last = (tab.log.text.dlineinfo(place) for place in ("@0,0", "end-1c"))
        assert first[1] >= 0
        assert last[1] + last[3] <= tab.log.text.winfo_height()
