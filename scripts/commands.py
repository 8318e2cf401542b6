"""The commands that pip installs, as listed in pyproject.toml: each runs the script of its name.

The script runs as the main program, as in a checkout, because the processes that it spawns import that program first.
"""

import runpy


def chorus() -> None:
    _run("train_ui")


def train() -> None:
    _run("train")


def doctor() -> None:
    _run("doctor")


def sample() -> None:
    _run("sample")


def caption() -> None:
    _run("caption")


def check_data() -> None:
    _run("check_data")


def edit_captions() -> None:
    _run("edit_captions")


def copy_dataset() -> None:
    _run("copy_dataset")


def split_videos() -> None:
    _run("split_videos")


def convert() -> None:
    _run("convert")


def hub() -> None:
    _run("hub")


def import_settings() -> None:
    _run("import_settings")


def export_settings() -> None:
    _run("export_settings")


def lora() -> None:
    _run("lora")


def multi_node() -> None:
    _run("multi_node")


def runs() -> None:
    _run("runs")


def slurm_job() -> None:
    _run("slurm_job")


def start_multi_gpu() -> None:
    _run("start_multi_gpu")


def train_flow_matching() -> None:
    _run("train_flow_matching")


def validate_multigpu() -> None:
    _run("validate_multigpu")


def examples_multigpu() -> None:
    _run("examples_multigpu")


def run_queue() -> None:
    _run("run_queue")


def mask() -> None:
    _run("mask")


def page() -> None:
    _run("page")


def webhook() -> None:
    _run("webhook")


def _run(script: str) -> None:
    runpy.run_module(f"{__package__}.{script}", run_name="__main__", alter_sys=True)
