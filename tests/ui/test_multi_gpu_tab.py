"""The multi-GPU tab with a fake driver, and without one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import customtkinter as ctk
import pytest

from modules.config.errors import UserError
from modules.config.files import load_config
from modules.config.TrainConfig import TrainConfig
from modules.launch.command_text import Places
from modules.ui.cards.LinksCard import LinksCard
from modules.ui.models.base_model import base_bytes
from modules.ui.models.CommunicationTest import CommunicationTest, Measured
from modules.ui.models.launch_files import write_settings
from modules.ui.models.RunState import RankRow, RunState
from modules.ui.widgets.form import find_field
from tests.support.fake_nvml import GIB, eight_gpus, put_gpus


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def nvml(monkeypatch):
    fake = eight_gpus()
    for gpu in fake.gpus:
        gpu.used_bytes = GIB // 2
    put_gpus(monkeypatch, fake)
    return fake


@pytest.fixture
def open_tab(app, wait_for, monkeypatch):
    """`open_tab()`: the tab, after the machine has been read and the images counted."""
    monkeypatch.setattr("modules.ui.tabs.MultiGpuTab.USAGE_SECONDS", 0.2)
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.COUNT_MS", 10)  # no typing to wait for

    def make(**settings):
        for path, value in {"enable_multi_gpu": True, "distributed_backend": "auto", **settings}.items():
            assert app.settings.set(path, value) is None
        tab = app.open_tab("multi-GPU")
        wait_for(app, lambda: app.devices.machine is not None and app.devices.num_samples is not None)
        wait_for(app, lambda: app.devices.usage or not app.devices.gpus)
        settle(app, wait_for)
        return tab

    return make


@pytest.fixture
def own_tab(nvml, make_app, wait_for):
    """The tab of a new window, for a test that changes its size, closes it or needs a table that had no rows."""
    app = make_app(tab="multi-GPU")
    tab = app.tabs["multi-GPU"]
    wait_for(app, lambda: tab.is_built and app.devices.machine is not None)
    settle(app, wait_for)
    return tab


def settle(app, wait_for):
    wait_for(app, lambda: not app.is_building)
    app.update()  # draws it


def ticked(tab):
    return [bool(box.get()) for box in tab.device_table.boxes]


def canvas_texts(canvas):
    return [canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text"]


def test_the_files_of_a_base_model_are_looked_for_in_a_folder_of_one_only(tmp_path):
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "a.safetensors").write_bytes(b"12345")
    assert base_bytes(str(tmp_path)) is None  # it may be the root of a disk
    (tmp_path / "model_index.json").touch()
    assert base_bytes(str(tmp_path)) == 5
    assert base_bytes(str(tmp_path / "unet" / "a.safetensors")) == 5
    assert [base_bytes(name) for name in ("", "some/model", "a\0b", "x" * 300)] == [None] * 4


def test_a_settings_file_that_can_not_be_looked_for_is_named(tmp_path):
    config = TrainConfig(workspace_dir=str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"x\.yaml can't be read: File name too long; choose another settings file"):
        write_settings(config, Places(str(tmp_path / f"{'x' * 300}.yaml")))


def test_each_gpu_is_a_row_with_what_the_driver_says(nvml, open_tab, app, wait_for):
    gpu = nvml.gpus[4]
    gpu.used_bytes, gpu.utilisation, gpu.temperature = 15 * GIB, 97, 71
    gpu.processes = {4121: ("/usr/bin/python", 14 * GIB)}
    table = open_tab().device_table
    # it is redrawn, with less of it cut, while the window gets its final size
    wait_for(app, lambda: {"15.0/24.0 GiB", "97%", "71 °C", "python 4121"} <= set(canvas_texts(table)))
    assert canvas_texts(table).count("A100-SXM4-80GB") == 4
    assert "RTX 4090" in canvas_texts(table)


def test_usage_is_asked_again_every_second(nvml, open_tab, app, wait_for):
    tab = open_tab()
    nvml.gpus[0].utilisation = 42
    wait_for(app, lambda: "42%" in canvas_texts(tab.device_table))


def test_usage_that_could_not_be_read_is_asked_for_again(nvml, open_tab, app, wait_for, faults, monkeypatch):
    tab, read_usage = open_tab(), app.devices.read_usage

    def fail():
        monkeypatch.setattr(app.devices, "read_usage", read_usage)
        raise RuntimeError("driver")

    monkeypatch.setattr(app.devices, "read_usage", lambda: fail)
    wait_for(app, lambda: faults)
    nvml.gpus[0].utilisation = 42
    wait_for(app, lambda: "42%" in canvas_texts(tab.device_table))
    assert [str(error) for error in faults] == ["driver"]
    faults.clear()


def test_a_test_of_the_links_that_fails_can_be_made_again(app, wait_for, faults, monkeypatch):
    def fail(test):
        raise RuntimeError("broken")

    monkeypatch.setattr("modules.ui.cards.LinksCard.CommunicationTest.start", lambda *arguments: None)
    monkeypatch.setattr("modules.ui.cards.LinksCard.CommunicationTest.wait", fail)
    wait_for(app, lambda: app.devices.machine is not None)
    card = LinksCard(app, app, app.devices)
    card.toggle()
    wait_for(app, lambda: faults)
    assert (card.button.cget("text"), card.measured.failed) == ("Test communication", True)
    faults.clear()


def test_what_a_test_of_the_links_says_is_read_as_it_was_written(monkeypatch):
    said = "import sys; sys.exit('Gerät 測試 steht')"
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:backslashreplace")
    command = "modules.ui.models.CommunicationTest.probe_command"
    monkeypatch.setattr(command, lambda python, *others: [python, "-c", said])
    test = CommunicationTest()
    test.start(TrainConfig(), None)
    assert test.wait() == Measured({}, "Gerät 測試 steht", failed=True)


def test_a_box_chooses_a_gpu_and_the_numbers_follow(nvml, open_tab, app, wait_for):
    tab = open_tab(device_indexes=[0, 1], batch_size=4, batch_size_mode="per_device")
    assert ticked(tab) == [True] * 2 + [False] * 6
    tab.device_table.boxes[2].toggle()
    assert app.settings.get("device_indexes") == [0, 1, 2]
    settle(app, wait_for)
    assert tab.shape_card.text("Processes") == "3 on 1 machine"
    assert tab.shape_card.text("Batch") == "4 per device x 3 devices x 1 accumulation = 12 images a step"


def test_a_setting_that_changes_elsewhere_ticks_the_boxes_at_once(nvml, open_tab, app):
    tab = open_tab()
    assert all(ticked(tab))
    app.settings.set("device_indexes", "5, 6")
    assert ticked(tab) == [False] * 5 + [True, True, False]
    app.settings.undo()
    assert all(ticked(tab))


def test_what_is_ticked_and_does_not_train_without_multi_gpu_is_said(nvml, open_tab, app, wait_for):
    tab = open_tab()
    assert not tab.choice_note.winfo_ismapped()
    app.settings.set("enable_multi_gpu", False)
    wait_for(app, tab.choice_note.winfo_ismapped)
    assert tab.choice_note.cget("text") == "Multi-GPU is off: GPU 0 trains."
    app.settings.set("device_indexes", "5, 3")
    wait_for(app, lambda: tab.choice_note.cget("text") == "Multi-GPU is off: GPU 5 trains.")
    app.settings.set("device_indexes", "3")
    wait_for(app, lambda: not tab.choice_note.winfo_ismapped())


def test_no_chosen_gpu_is_a_problem_that_blocks_until_one_is(nvml, open_tab, app, wait_for):
    tab = open_tab()
    tab.choose(set())
    settle(app, wait_for)
    assert app.problems.error("device_indexes") == (
        "GPUs: none is chosen: tick at least one, or leave the field empty for all."
    )
    assert not any(ticked(tab))
    assert tab.shape_card.text("Processes") == "-"
    tab.device_table.boxes[3].toggle()
    settle(app, wait_for)
    assert app.problems.error("device_indexes") is None
    assert app.settings.get("device_indexes") == [3]


def test_none_chosen_ends_with_undo_and_with_a_preset_that_says_all_as_before(nvml, open_tab, app, wait_for):
    tab = open_tab(device_indexes=[])
    tab.choose(set())
    app.settings.undo()
    settle(app, wait_for)
    assert all(ticked(tab))
    app.settings.load_preset("demo")
    tab.choose(set())
    settle(app, wait_for)
    assert not any(ticked(tab))
    app.settings.load_preset("demo")
    settle(app, wait_for)
    assert all(ticked(tab))
    assert app.problems.error("device_indexes") is None


def test_only_idle_leaves_out_what_computes_or_is_full(nvml, open_tab, app, wait_for):
    nvml.gpus[0].utilisation, nvml.gpus[5].used_bytes = 90, 20 * GIB
    tab = open_tab()
    tab.choose_idle()
    assert app.settings.get("device_indexes") == [1, 2, 3, 4, 6, 7]


def test_gpus_of_which_nothing_is_known_yet_count_as_idle(nvml, open_tab, app):
    tab = open_tab()
    tab.devices.usage = []
    tab.choose_idle()
    assert app.settings.get("device_indexes") == []  # all


def test_all_chosen_is_the_empty_setting(nvml, open_tab, app):
    tab = open_tab(device_indexes=[1])
    tab.choose(set(range(8)))
    assert app.settings.get("device_indexes") == []


def test_a_gpu_that_does_not_exist_blocks_the_start(nvml, open_tab, app):
    open_tab(device_indexes=[0, 9])
    assert "only 0 to 7 exist" in app.problems.error("device_indexes")


def test_warnings_of_the_devices_stand_at_their_field(nvml, open_tab, app, wait_for):
    nvml.gpus[4].used_bytes = 24 * GIB
    nvml.gpus[4].processes = {4121: ("python", 23 * GIB)}
    tab = open_tab(device_indexes=[0, 4])
    field = find_field(tab, "device_indexes")
    wait_for(app, lambda: "GPU 4 has 0.0 free (python 4121)" in field._problem.cget("text"))
    assert "Different devices" in field._problem.cget("text")
    assert "No direct link between GPUs 0 and 4" in field._problem.cget("text")


def test_links_are_a_matrix_and_a_test_adds_its_figures(nvml, open_tab, app, wait_for):
    tab = open_tab()
    texts = canvas_texts(tab.links_card.matrix)
    assert texts.count("NVLink") == 6
    assert texts.count("PCIe") == 8
    tab.links_card.matrix.show_speeds({frozenset((0, 1)): 41.7})
    app.update()
    assert canvas_texts(tab.links_card.matrix).count("41.7 GB/s") == 2
    before = app.devices.machine
    tab.refresh_machine()
    wait_for(app, lambda: app.devices.machine is not before)
    settle(app, wait_for)
    assert canvas_texts(tab.links_card.matrix).count("41.7 GB/s") == 2  # kept for the same GPUs


def test_without_a_gpu_the_reason_is_told_and_cpu_ranks_are_counted(open_tab):
    tab = open_tab(world_size=2)
    assert canvas_texts(tab.device_table) == [
        "No GPU found: CPU (gloo) ranks.",
        "Reason: no NVIDIA driver is installed.",
    ]
    assert tab.shape_card.text("Processes") == "2 on 1 machine"
    assert "gloo" in tab._backend_note.cget("text")


def test_nccl_without_a_gpu_is_a_warning(open_tab, app):
    open_tab(world_size=2, distributed_backend="nccl")
    assert "so the ranks use gloo" in app.problems.warning("distributed_backend")
    assert app.problems.error("distributed_backend") is None


def test_a_communication_test_runs_beside_the_window(open_tab, app, wait_for, monkeypatch):
    """engine/test_link_probe.py runs the real one."""
    speed = {"ranks": [0, 1], "gb_per_s": 1.5}
    result = {"backend": "gloo", "devices": ["cpu", "cpu"], "pairs": [speed], "all": speed, "failed": None}
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    monkeypatch.setattr(
        "modules.ui.models.CommunicationTest.probe_command",
        lambda python, config, machine, path: [python, "-c", write, str(path), json.dumps(result)],
    )
    tab = open_tab(world_size=2)
    tab.links_card.button.invoke()
    assert tab.links_card.button.cget("text") == "Cancel the test"
    measured = Measured({frozenset((0, 1)): 1.5}, "All 2 CPU ranks with gloo: 1.50 GB/s.")
    wait_for(app, lambda: tab.links_card.measured == measured)
    assert tab.links_card.button.cget("text") == "Test communication"


def test_a_communication_test_can_be_cancelled(open_tab, app, wait_for):
    tab = open_tab(world_size=2)
    tab.links_card.toggle()
    process = tab.links_card._test._child.process
    tab.links_card.toggle()
    wait_for(app, lambda: tab.links_card.measured is not None and tab.links_card.measured.text == "Cancelled.")
    assert process.poll() is not None
    assert tab.links_card.button.cget("text") == "Test communication"


def test_what_the_probe_refuses_is_told_in_its_words(nvml, open_tab, app, wait_for):
    tab = open_tab(device_indexes=[0])
    tab.links_card.toggle()
    wait_for(app, lambda: tab.links_card.measured is not None and tab.links_card.measured.failed)
    assert tab.links_card.measured.text.endswith(".")


@pytest.mark.skipif(os.name == "nt", reason="bash")
def test_the_copied_command_runs_as_it_is(open_tab, app, wait_for, tmp_path):
    hostile = tmp_path / "it's; touch X $(touch X)"
    tab = open_tab(workspace_dir=str(hostile), world_size=2, use_torchrun=False)
    app.clipboard_clear()
    app.clipboard_append("")
    tab.command_card.copy()
    wait_for(app, lambda: app.clipboard_get())
    line = app.clipboard_get()
    assert load_config(f"{hostile}.yaml").workspace_dir == str(hostile)
    done = subprocess.run(["bash", "-c", f"{line} --dry-run"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "32 per device x 2 devices" in done.stdout
    assert not list(tmp_path.rglob("X"))


def test_the_command_follows_the_settings(nvml, open_tab, app, wait_for):
    tab = open_tab(device_indexes=[0, 1], use_torchrun=True)
    text = tab.command_card.box.get("1.0", "end-1c")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in text
    assert "--set=use_torchrun=true --set=world_size=2" in text
    app.settings.set("epochs", "many")
    settle(app, wait_for)
    assert tab.command_card.box.get("1.0", "end-1c") == ""


@pytest.mark.skipif(os.name == "nt", reason="bits of a file's mode")
def test_a_saved_file_holds_the_command(nvml, open_tab, app, wait_for, tmp_path):
    tab = open_tab(device_indexes=[0, 1])
    for name, start in (("run.sh", b"#!/usr/bin/env bash\n"), ("run.ps1", b"\xef\xbb\xbf# ")):
        tab.command_card.save_script(str(tmp_path / name))
        wait_for(app, lambda name=name: f"Saved as {tmp_path / name}." in app.message.cget("text"))
        assert (tmp_path / name).read_bytes().startswith(start)
    assert os.access(tmp_path / "run.sh", os.X_OK)
    assert shlex.split((tmp_path / "run.sh").read_text().splitlines()[-1])[:2] == ["cd", "--"]


def test_a_place_that_can_not_be_written_is_a_message(nvml, open_tab, app, wait_for, tmp_path, monkeypatch):
    told = []
    tab = open_tab(device_indexes=[0, 1])
    monkeypatch.setattr(app, "show_message", lambda text, kind="info": told.append((text, kind)))
    tab.command_card.save_script(str(tmp_path / "nowhere" / "run.sh"))
    wait_for(app, lambda: told)
    assert "can't be written" in told[0][0]
    assert told[0][1] == "error"


ROWS = [
    RankRow(0, "cuda:0", "training", 140, 20.0, 80.0, 0.3, 17 * GIB, 18 * GIB, 0.002, 0.1),
    RankRow(1, "cuda:1", "training", 140, 20.0, 80.0, 0.3, None, None, None, 0.2),
    RankRow(2, "cuda:2", "training", 140, 16.0, 64.0, None, None, None, None, None),
]


def test_each_rank_is_a_row_and_the_title_sums_up(nvml, open_tab):
    tab = open_tab()
    tab._on_run(RunState(ranks=ROWS))
    values = tab.rank_table.item("0", "values")
    assert values[1:6] == ("cuda:0", "training", "140", "20.00", "80.0")
    assert values[7:9] == ("17.0 (18.0)", "4%")
    assert tab._rank_card._title.cget("text") == "Ranks: 3 of 3 alive, slowest rank 2 (+25%)"
    killed = [*ROWS[:2], RankRow(2, "cuda:2", "killed", 140)]
    tab._on_run(RunState(ranks=killed))
    assert tab._rank_card._title.cget("text") == "Ranks: 2 of 3 alive, rank 2 killed"
    assert tab.rank_table.item("2", "tags") == ("bad",)


def test_a_chosen_row_filters_the_log_and_stays_chosen(nvml, open_tab, app):
    tab = open_tab()
    tab._on_run(RunState(ranks=ROWS))
    tab.rank_table.selection_set("1")
    app.update()
    assert app.log_rank == 1
    tab._on_run(RunState(ranks=[*ROWS[:1], RankRow(1, "cuda:1", "saving", 141), ROWS[2]]))
    app.update()
    assert tab.rank_table.selection() == ("1",)
    tab.rank_table.selection_set(())
    app.update()
    assert app.log_rank is None


def test_sixty_four_ranks_are_rows(nvml, open_tab, app):
    tab = open_tab()
    tab._on_run(RunState(ranks=[RankRow(rank, state="training", step=1) for rank in range(64)]))
    app.update()
    assert len(tab.rank_table.get_children()) == 64
    assert int(str(tab.rank_table.cget("height"))) <= 12


def test_more_ranks_than_the_table_has_rows_have_a_scrollbar(nvml, own_tab, wait_for):
    app, tab = own_tab.app, own_tab
    beside = tab.rank_table.master.winfo_children()
    scrollbar = next(child for child in beside if isinstance(child, ctk.CTkScrollbar))
    wait_for(app, lambda: not scrollbar.grid_info())
    tab._on_run(RunState(ranks=[RankRow(rank, state="training", step=1) for rank in range(16)]))
    wait_for(app, scrollbar.grid_info)
    scrollbar.cget("command")("moveto", "1.0")
    wait_for(app, lambda: tab.rank_table.yview()[1] == 1.0)
    assert tab.rank_table.identify_row(tab.rank_table.winfo_height() - 10) == "15"


def test_a_narrow_window_has_one_column(nvml, own_tab, wait_for):
    app, tab = own_tab.app, own_tab
    assert tab._num_columns == 2
    app.minsize(400, 300)
    app.geometry("700x600")
    wait_for(app, lambda: tab._num_columns == 1)
    cards = (tab._device_card, tab.links_card, tab._run_card, tab.shape_card, tab.command_card, tab._rank_card)

    def is_one_column() -> bool:
        right = app.winfo_rootx() + app.winfo_width()
        ends = [card.winfo_rootx() + card.winfo_width() for card in cards]
        return app.winfo_width() < 1000 and len({card.winfo_rootx() for card in cards}) == 1 and max(ends) <= right

    wait_for(app, is_one_column)  # first the window, then the cards are resized


def test_a_change_of_looks_draws_the_tables_anew(nvml, open_tab, app):
    tab = open_tab()
    for appearance in ("light", "dark"):
        app.theme.set_appearance(appearance)
        app.update()
        for canvas in (tab.device_table, tab.links_card.matrix):
            assert canvas.cget("bg") == app.theme.now(app.theme.card)


def test_a_closed_tab_hears_nothing_any_more(nvml, own_tab):
    """An exception in a callback fails the test."""
    app = own_tab.app
    own_tab.destroy()
    app.settings.set("epochs", 3)
    app.theme.set_appearance("light")
    app.devices.take_usage(app.devices.usage)
    app.update()


def test_what_the_shape_of_a_run_is_about_is_shown_in_basic_too(open_tab, app):
    form = open_tab(batch_size_mode="per_device").shape_form
    form.finish()
    form.refresh()
    assert app.filter.get() == "Basic"
    for path in ("use_torchrun", "distributed_data_loading", "gradient_reduce_precision", "lr_scaling"):
        assert form.fields[path].is_shown
