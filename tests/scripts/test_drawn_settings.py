"""Whatever the declarations of the settings allow, a run is planned or refused in sentences."""

import random

import pytest

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.files import config_from_values
from modules.data.health import check_health
from modules.data.run_summary import summarize
from modules.launch.plan import plan_launch
from modules.machine.can_start import StartFacts, shape_problems
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.machine.memory_estimate import GIB
from modules.trainer.checks import check_start
from scripts.check_data import Report, as_text
from tests.support.drawn_settings import drawn_values
from tests.support.mutations import bounded, check_text
from tests.support.videos import write_video

SAMPLED, TOTAL, CHUNK = 150, 20_000, 500
FIXED = ("workspace_dir", "cache_dir", "family", "model.base", "concepts[].path", "concepts[].enabled")


def chunks():
    """Seeds of the tests, of which all but the first few only run with `-m proof`."""
    later = [range(start, min(start + CHUNK, TOTAL)) for start in range(SAMPLED, TOTAL, CHUNK)]
    return [range(SAMPLED), *(pytest.param(seeds, marks=pytest.mark.proof) for seeds in later)]


@pytest.fixture
def draw(tmp_path, picture_folder):
    folder = picture_folder()
    masks = picture_folder(name="pictures/masks")
    write_video(folder / "clip.mp4", 12)
    (folder / "metadata.csv").write_text("file_name,text\n000.png,a cat\n", encoding="utf-8")
    image = str(folder / "000.png")
    paths = ("", "", str(folder), str(masks), image, str(folder / "metadata.csv"), str(tmp_path / "missing"))

    def config(seed):
        rng = random.Random(seed)
        name, family = rng.choice(sorted(load_families().items()))
        values = {
            "workspace_dir": str(tmp_path / "run"),
            "cache_dir": str(tmp_path / "cache"),
            "family": name,
            "method": rng.choice(family.methods),
            "model.base": "someone/something",  # of a model on the Hub, only its files can say more
            "data.resolution": 64,
            "concepts.0.path": str(folder),
            "embeddings.0.placeholder": "cat",
            "sampling.samples.0.prompt": "a cat",
            "data.frames": rng.choice((1, *(family.frame_rest + count * family.frame_step for count in (1, 2)))),
            "concepts.0.reference_folder": str(folder)
            if family.fact("references", "needed") and not family.takes("layers")
            else "",
            "concepts.0.source_folder": str(folder) if family.fact("source_clip", "needed") else "",
            "sampling.samples.0.reference": image
            if family.fact("references", "needed")
            or family.fact("first_frame", "needed")
            or family.fact("source_clip", "needed")
            else "",
            "sampling.samples.0.last_frame": image if family.fact("first_frame", "last") == "needed" else "",
        }
        return config_from_values(drawn_values(values, rng, FIXED, paths))

    return config


def planned(config, num_gpus):
    """What the dry run and the dataset check say on a machine with so many GPUs."""
    gpus = tuple(Gpu(number, "NVIDIA A100", f"GPU-{number}", 40 * GIB, number) for number in range(num_gpus))
    machine = Machine(gpus, cores=2, memory_bytes=64 * GIB)
    plan = plan_launch(config, {}, machine)
    check_text(as_text(Report(check_health(config, plan.world_size))))
    checked = check_start(config, plan.world_size)
    problems = shape_problems(config, plan.shape, StartFacts(machine))
    check_text("".join(problem.message for problem in problems))
    check_text(f"{plan.describe()}\n{summarize(config, plan.shape, checked.base, checked.warnings).text()}")


@pytest.mark.parametrize("seeds", chunks(), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_drawn_settings_are_planned_or_refused_in_sentences(seeds, draw):
    for seed in seeds:
        with bounded(seed):
            try:
                planned(draw(seed), seed % 4)
            except UserError as error:
                check_text(str(error))
