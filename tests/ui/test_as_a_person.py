"""The window as a user operates it: keys and clicks on a separate screen, and runs of the demo.

The runs are real where their results matter; otherwise their ranks only report steps.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules.config.files import config_from_values, load_config, save_config
from modules.config.presets import ROOT, load_preset
from modules.session.following import is_running
from modules.session.RunFolder import RunFolder
from tests.support.Person import Person, field, reads
from tests.support.run_processes import pid_of_rank
from tests.support.small_demo import shrink_demo
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Xvfb and xdotool are for X11, and /proc is read"),
]

MANY_STEPS, MANY_EPOCHS = 20_000, 100_000  # enough not to finish during the test
SAMPLE_EVERY = 10
PAUSE_SECONDS = 0.2
TOY_OR_CHECK = """
import runpy, sys
if "--supervise" in sys.argv and "--dry-run" not in sys.argv:
    sys.path.insert(0, {root!r})
    from tests.support.toy_run import main
    sys.exit(main())
runpy.run_path(__file__.replace("train.py", "real_train.py"), run_name="__main__")
"""
# Steps of a model so small would keep both processors busy while the person looks and clicks.
FORKING_SUPERVISOR = """
import functools, runpy, sys, time
if "--supervise" in sys.argv and "--dry-run" not in sys.argv:
    sys.path.insert(0, {chorus!r})
    import torch
    from diffusers.pipelines.stable_diffusion import pipeline_stable_diffusion
    import modules.launch.start, modules.sampling.generation, modules.trainer.DistributedTrainer
    from modules.trainer.TrainingLoop import TrainingLoop
    train_step = TrainingLoop.train_step
    TrainingLoop.train_step = lambda *args: (time.sleep({pause}), train_step(*args))[1]
    torch.multiprocessing.spawn = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
runpy.run_path(__file__.replace("train.py", "real_train.py"), run_name="__main__")
"""
NOTING_RANK = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
(config,) = (option.removeprefix("--config=") for option in sys.argv if option.startswith("--config="))
noted = {{"config": config, "folder": os.getcwd(), "variables": {{name: os.environ.get(name) for name in names}}}}
with open({folder!r} + f"/rank-{{os.environ['RANK']}}.json", "w") as file:
    json.dump(noted, file)
"""
SECONDS_TO_TELL = 5.0  # from a rank's end to the report and the table, on an idle machine
LEEWAY = 4  # factor for a machine busy with other tests


@pytest.fixture
def chorus(tmp_path):
    """A fresh copy of Chorus, in which nothing has been trained and no window opened."""
    folder = tmp_path / "chorus"
    for name in ("modules", "scripts", "resources"):
        shutil.copytree(ROOT / name, folder / name)
    shrink_demo(folder)
    return folder


@pytest.fixture
def person(screen, chorus, tmp_path):
    """A user of the window of `chorus`. No window may report an exception."""
    errors = tmp_path / "errors.txt"
    person = Person(screen, chorus, errors)
    yield person
    person.leave()
    assert not errors.exists() or "Traceback" not in errors.read_text(), errors.read_text()


@pytest.fixture
def folder(chorus):
    """The run folder of the demo."""
    return RunFolder(chorus / "workspace" / "demo")


@pytest.fixture
def toy_ranks(chorus):
    """Makes `chorus` train with toy ranks without a model, under a real supervisor and with real checks."""
    put_before_training(chorus, TOY_OR_CHECK.format(root=str(ROOT)))


@pytest.fixture
def forked_ranks(chorus):
    """Makes ranks of `chorus` begin with all imports done, which takes each of them seconds, and pause at each step."""
    put_before_training(chorus, FORKING_SUPERVISOR.format(chorus=str(chorus), pause=PAUSE_SECONDS))


def put_before_training(chorus: Path, code: str) -> None:
    """Replace scripts/train.py, whose own code is then in real_train.py."""
    script = chorus / "scripts" / "train.py"
    script.rename(script.with_name("real_train.py"))
    script.write_text(code, encoding="utf-8")


@pytest.fixture
def noting_ranks(chorus):
    """Makes each rank of `chorus` only note what it was started with, in `rank-0.json` and so on."""
    (chorus / "scripts" / "train.py").write_text(NOTING_RANK.format(folder=str(chorus)), encoding="utf-8")


@pytest.fixture
def demo_with(chorus):
    """`demo_with(sampling={})` writes a file with the demo's settings, changed like this and with many steps."""

    def write(**settings):
        path = chorus / "demo.yaml"
        values = load_preset("demo", chorus / "resources" / "presets")
        for concept in values["concepts"]:
            concept["path"] = concept["path"].replace(str(ROOT), str(chorus))
        many = {"max_steps": MANY_STEPS, "epochs": MANY_EPOCHS}
        save_config(config_from_values({**values, **many, **settings}), path)
        return path

    return write


def start(person):
    """Start as a user does: F5, the summary, Start."""
    person.press("F5")
    person.wait_for("This is what the run will do.")
    person.click("Start")


def steps_told(folder):
    """The numbers of the steps in the event file of rank 0."""
    lines = folder.event_path(0).read_text().split("\n")[:-1]  # the last one may be incomplete
    return [event["step"] for event in map(json.loads, lines) if event["type"] == "step"]


def test_the_demo_is_started_on_two_ranks_watched_stopped_and_gone_on_with(person, folder, forked_ranks):
    person.open()
    person.wait(lambda seen: reads(seen, "demo  ▾") and reads(seen, "No run yet"))  # shown on the very first start
    person.click("demo  ▾")
    person.wait(lambda seen: seen["titles"] == ["Chorus", "Start from"])
    person.wait(lambda seen: seen["focus"] == "entry")
    person.write("digits")
    person.wait(lambda seen: [row.split("  ")[0] for row, _, _ in seen["rows"]] == ["demo"])
    person.press("Return")
    person.wait(lambda seen: seen["titles"] == ["Chorus"])
    person.set_value("epochs", "Epochs", str(MANY_EPOCHS))
    person.set_value("max_steps", "Max steps", str(MANY_STEPS))
    person.set_value("sampling.every", "Sample every", str(SAMPLE_EVERY))
    person.open_tab("training")
    for is_on in (0, 1):
        person.click_field("enable_multi_gpu")
        person.wait(lambda seen, is_on=is_on: field(seen, "enable_multi_gpu")["shows"] == is_on)

    start(person)
    person.wait_for(f"of {MANY_STEPS:,}   loss")
    person.wait(lambda seen: seen["tab"] == "monitor")  # it opens at the start
    few = person.wait(lambda seen: seen["curve"] >= 2)["curve"]
    person.wait(lambda seen: seen["curve"] > few)
    person.open_tab("sampling")
    person.wait(lambda seen: seen["pictures"] >= 2)
    person.click("Stop")
    seen = person.wait(lambda seen: not seen["run"]["is_running"])
    assert seen["run"]["exit"]["status"] == "stopped"
    assert list(folder.backup_dir.glob("step-*"))
    assert list(folder.models_dir.iterdir())
    stopped_at = seen["run"]["step"]
    assert stopped_at < MANY_STEPS

    last = (stopped_at // SAMPLE_EVERY + 1) * SAMPLE_EVERY
    person.set_value("max_steps", "Max steps", str(last))
    person.open_tab("sampling")
    person.click("Start training")
    person.wait_for("holds a run already")
    person.click("Resume")
    person.wait_for("This is what the run will do.")
    person.click("Start")
    person.wait(lambda seen: seen["run"]["exit"] and seen["run"]["exit"]["status"] == "finished")
    person.wait(lambda seen: seen["run"]["ranks"] == {"0": "finished", "1": "finished"})
    assert steps_told(folder) == list(range(1, last + 1))
    person.wait(lambda seen: seen["run"]["steps_kept"] == [1, last, last])
    person.wait_for("after it was resumed")
    person.open_tab("sampling")
    sampled = range(0, last + 1, SAMPLE_EVERY)
    person.wait(lambda seen: seen["run"]["sample_steps"] == list(sampled))
    made = [len(list(images.glob("*.png"))) for images in sorted(folder.samples_dir.glob("step-*"))]
    assert [made[0], made[-1]] == [20, 20]  # the stop may have cut off those between
    person.wait_for(f"{sum(made):,} images of {len(sampled):,} steps")
    person.wait_for(f"step {last:,}")  # the newest are visible


def test_a_window_that_is_killed_leaves_the_run_to_the_next_one_which_tells_of_a_killed_rank(
    person, demo_with, folder, toy_ranks
):
    person.open("--config", str(demo_with(world_size=2)))
    start(person)
    seen = person.wait(lambda seen: seen["run"]["step"] >= 2 and seen["run"]["sample_steps"])
    first_sample = seen["run"]["sample_steps"][0]
    person.kill_window()
    before = steps_told(folder)[-1]
    wait_until(lambda: steps_told(folder)[-1] > before)

    person.open()
    seen = person.wait(lambda seen: seen["run"]["is_running"] and seen["run"]["step"] > before)
    assert seen["run"]["steps_kept"][0] == 1
    person.wait(lambda seen: seen["run"]["steps_kept"] == [1, *2 * [seen["run"]["step"]]])
    assert seen["run"]["sample_steps"][0] == first_sample  # made before the window was killed
    person.open_tab("multi-GPU")
    person.scroll_down(over="Refresh")
    person.wait(lambda seen: sum("cpu  training" in row for row, _, _ in seen["rows"]) == 2)

    os.kill(pid_of_rank(folder, 1), signal.SIGKILL)
    killed = time.monotonic()
    person.wait(lambda seen: seen["titles"] == ["Chorus", "Crash report"])
    person.wait(lambda seen: reads(seen, "signal: SIGKILL") and reads(seen, "Rank 1 was killed"))
    person.wait(lambda seen: seen["run"]["ranks"] == {"0": "ended", "1": "killed"})
    person.press("Escape")
    person.wait(lambda seen: sum("cpu  killed" in row for row, _, _ in seen["rows"]) == 1)
    assert time.monotonic() - killed < SECONDS_TO_TELL * LEEWAY


def test_settings_are_found_typed_undone_and_saved_with_the_keyboard(person, chorus, tmp_path):
    person.open()
    seen = person.find_setting("optimizer.beta1", "Beta 1")
    assert seen["tab"] == "training"
    person.wait(lambda seen: field(seen, "optimizer.beta1")["is_lit"])

    person.write("1.2")
    person.wait(lambda seen: field(seen, "optimizer.beta1")["shows"] == "1.2")
    person.wait_for("Beta 1: must be at least 0 and below 1.")
    person.open_tab("general")
    person.press("F5")
    seen = person.wait(lambda seen: seen["focus"] == "optimizer.beta1")  # the field, not the summary
    assert seen["titles"] == ["Chorus"]
    person.open_tab("general")
    person.click("1 problem")
    person.wait(lambda seen: seen["focus"] == "optimizer.beta1" and field(seen, "optimizer.beta1")["shows"] == "1.2")
    person.press("ctrl+z")
    person.wait(lambda seen: field(seen, "optimizer.beta1")["shows"] == "0.9" and reads(seen, "No problems"))

    person.set_value("epochs", "Epochs", "7")
    person.press("ctrl+s")
    # Tk shows its dialog first, then fills in a name and takes the keys.
    person.wait(lambda seen: "Save settings as" in seen["titles"] and seen["focus"] == "entry")
    person.press("ctrl+a")
    person.write(str(tmp_path / "mine.yaml"))
    person.wait_for(str(tmp_path / "mine.yaml"))
    person.press("Return")
    person.wait_for("mine.yaml  ▾")
    assert load_config(tmp_path / "mine.yaml").epochs == 7
    person.press("F5")
    person.wait_for("This is what the run will do.")
    person.press("Escape")
    person.wait(lambda seen: seen["titles"] == ["Chorus"])


def test_closing_the_window_keeps_the_training_or_stops_and_saves_it(person, chorus, demo_with, folder, toy_ranks):
    config = str(demo_with(enable_multi_gpu=False, sampling={}))
    command = [sys.executable, str(chorus / "scripts" / "train.py"), "--supervise", "--config", config]
    run = person.start_beside(command)
    wait_until(lambda: folder.event_path(0).exists() and steps_told(folder))

    person.open()
    person.wait_for("The run demo is still running")
    person.close_window()
    person.click("Cancel")
    person.wait(lambda seen: seen["titles"] == ["Chorus"])
    person.close_window()
    person.click("Keep training")
    assert person.wait_until_closed() == 0
    before = steps_told(folder)[-1]
    wait_until(lambda: steps_told(folder)[-1] > before)

    person.open()
    person.wait_for("The run demo is still running")
    person.close_window()
    person.click("Stop and save")
    assert person.wait_until_closed() == 0
    run.wait(PATIENCE_SECONDS)
    assert folder.read_exit()["status"] == "stopped"
    assert list(folder.backup_dir.glob("step-*"))
    assert not is_running(folder)


def test_the_commands_for_two_machines_start_a_rank_on_each_when_they_are_pasted_there(
    person, chorus, demo_with, folder, two_hosts, noting_ranks
):
    """trainer/test_two_hosts.py trains with such commands; here each rank only notes what it was started with."""
    config = demo_with(sampling={}, distributed_backend="gloo", use_torchrun=True, world_size=1)
    person.open("--config", str(config))
    person.open_tab("training")
    person.click("Several machines…")
    person.wait(lambda seen: seen["titles"] == ["Chorus", "Several machines"])
    for path, value in (("num_nodes", "2"), ("master_addr", two_hosts[0].address)):
        person.click_field(path)
        person.press("ctrl+a")
        person.write(value)
    person.click_text("such as eth0; empty: the libraries choose")
    person.write(two_hosts[0].interface)
    interface = f"GLOO_SOCKET_IFNAME={two_hosts[0].interface} "
    person.wait(lambda seen: any(text.count(interface) >= 2 for text, _, _ in seen["words"]))
    person.enlarge_window()
    person.click("Copy all")
    copied = wait_until(person.read_clipboard)  # copying also writes the settings
    commands = [line for line in copied.splitlines() if line and not line.startswith("#")]

    with (chorus / "output.txt").open("wb") as output:
        shells = [
            host.popen(["bash", "-c", command], stdout=output, stderr=subprocess.STDOUT)
            for host, command in zip(two_hosts, commands, strict=True)
        ]
        codes = [shell.wait(PATIENCE_SECONDS) for shell in shells]
    said = (chorus / "output.txt").read_text()
    assert codes == [0, 0], said
    assert said.count("2 nodes, alike: settings, Chorus, Python ") == 2
    for rank in (0, 1):
        noted = json.loads((chorus / f"rank-{rank}.json").read_text())
        assert noted["variables"] == {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": two_hosts[0].address,
            "GLOO_SOCKET_IFNAME": two_hosts[0].interface,
        }
        written = load_config(Path(noted["folder"], noted["config"]))
        assert (written.num_nodes, written.max_steps) == (2, MANY_STEPS)
        assert Path(noted["folder"], written.workspace_dir) == folder.path
