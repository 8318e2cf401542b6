"""Training on video clips and images together: on several ranks, resumed, and with a video as a sample."""

import inspect
from dataclasses import replace
from unittest import mock

import av
import diffusers
import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from modules.config.files import save_config
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.data.conditions import first_frame
from modules.data.errors import DataError
from modules.families.conditions import FirstFrame, SectionHistory, SourceClip
from modules.families.registry import FAMILIES
from modules.sampling.generation import generate_images, image_requests
from modules.trainer.sample_model import with_captions
from scripts import sample
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.videos import write_video

RUN = ("family=wan22_5b", "data.bucket_step=32", "data.resolution=64", "data.frames=9", "data.clips=chunks")
FROM_IMAGES = "data.image_to_video=0.5"
# On clips and images that nothing has to lie beside.
TRAINED_ALONE = [
    name
    for name, family in FAMILIES.items()
    if family.frame_step
    and not (family.fact(FirstFrame, "needed") or family.fact(SourceClip, "needed") or family.has(SectionHistory))
]
WHOLE = ("batch_size=4", "batch_size_mode=global", "max_steps=6")


@pytest.fixture
def clips(tmp_path):
    """Five clips of nine frames, and three images of the same size: steps of four clips, and of both."""
    folder = tmp_path / "clips"
    folder.mkdir()
    write_video(folder / "long.mp4", 48, fps=24)
    for number in range(3):
        Image.effect_noise((64, 64), 50 + 20 * number).convert("RGB").save(folder / f"{number}.png")
    return folder


@pytest.fixture
def settings(make_config, tiny_model, clips, tmp_path):
    def make(name, *overrides):
        base, data = f"model.base={tiny_model('wan22_5b')}", f"concepts.0.path={clips}"
        config = make_config(*RUN, *WHOLE, base, data, f"workspace_dir={tmp_path / name}", *overrides)
        save_config(config, tmp_path / f"{name}.yaml")
        return config

    return make


def test_two_ranks_equal_one_on_clips_and_images(settings, two_ranks, tmp_path):
    settings("one", "backup.at_end=false", FROM_IMAGES)
    settings("two", "backup.at_end=false", FROM_IMAGES)
    alone = run_alone(rank_scenarios.train, config=str(tmp_path / "one.yaml"))
    first, second = two_ranks.run(rank_scenarios.train, config=str(tmp_path / "two.yaml"))
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    settings("text", "backup.at_end=false")
    assert run_alone(rank_scenarios.train, config=str(tmp_path / "text.yaml"))["losses"] != alone["losses"]


def test_two_ranks_go_on_exactly_with_clips_and_images_within_an_epoch(settings, two_ranks, tmp_path):
    settings("whole", "backup.at_end=false", FROM_IMAGES)
    settings("first", "max_steps=3", FROM_IMAGES)
    settings("rest", f"workspace_dir={tmp_path / 'first'}", FROM_IMAGES)
    whole = two_ranks.run(rank_scenarios.train, config=str(tmp_path / "whole.yaml"))
    first = two_ranks.run(rank_scenarios.train, config=str(tmp_path / "first.yaml"))
    rest = two_ranks.run(rank_scenarios.train, config=str(tmp_path / "rest.yaml"), resume=True)
    for of_whole, of_first, of_rest in zip(whole, first, rest, strict=True):
        assert of_first["pictures"][-1][0][0] == of_rest["pictures"][0][0][0]  # the epoch
        assert of_first["losses"] + of_rest["losses"] == of_whole["losses"]
        assert of_first["pictures"] + of_rest["pictures"] == of_whole["pictures"]
        assert of_rest["digest"] == of_whole["digest"]


def test_a_run_goes_on_exactly_and_its_sample_is_a_video_with_a_poster(settings, clips, train, tmp_path):
    whole = train(settings("whole"))
    first = train(settings("parts", "max_steps=3"))
    size = "width: 64, height: 32, steps: 1, guidance: 1"
    values = f"[{{prompt: a cat, {size}, reference: {clips / '0.png'}}}, {{prompt: a dog, frames: 1, steps: 1}}]"
    rest = train(settings("parts", "sampling.at_end=true", f"sampling.samples={values}"), resume=True)
    losses = [trainer.callbacks.losses for trainer in (whole, first, rest)]
    assert losses[1] + losses[2] == losses[0]
    (folder,) = (tmp_path / "parts/samples").iterdir()
    assert sorted(path.suffix for path in folder.iterdir()) == [".mp4", ".png", ".png"]
    (video,) = folder.glob("*.mp4")
    assert Image.open(video.with_suffix(".png")).size == (64, 32)
    with av.open(str(video)) as container:
        frames = [frame.to_ndarray(format="rgb24").shape for frame in container.decode(video=0)]
        assert frames == [(32, 64, 3)] * 9
        assert container.streams.video[0].average_rate == 24


@pytest.mark.parametrize(
    "family", ["wan22_5b", "ltx_video", "wan22_i2v_a14b", "wan21_i2v", "wan21_flf2v", "skyreels_v2_i2v"]
)
def test_videos_start_and_end_with_an_image_as_in_the_plain_pipeline(family, tiny_model, clips):
    plain = DiffusionPipeline.from_pretrained(tiny_model(family))
    kind = getattr(diffusers, FAMILIES[family].fact(FirstFrame, "pipeline"))
    parts = {**plain.config, **plain.components}
    pipe = kind(**{name: parts[name] for name in inspect.signature(kind.__init__).parameters if name in parts})
    pictures = [str(clips / f"{number}.png") for number in range(FAMILIES[family].max_input_images)]
    last = {"last_image": Image.open(pictures[1])} if len(pictures) > 1 else {}
    given, size = "\n".join(pictures), {"width": 64, "height": 64, "frames": 9}
    start = SampleConfig("a cat", reference=given, seed=3, steps=2, guidance=2.0, **size)
    made = generate_images(plain, image_requests(replace(start, count=2)), batch_size=2)
    ours = [np.stack([np.asarray(frame) for frame in frames]).astype(int) for _, frames in made]
    for video, seed in zip(ours, (3, 4), strict=True):
        frames = pipe(
            image=Image.open(pictures[0]),
            **last,
            prompt="a cat",
            width=64,
            height=64,
            num_frames=9,
            num_inference_steps=2,
            guidance_scale=2.0,
            generator=torch.Generator().manual_seed(seed),
            output_type="pil",
            **FAMILIES[family].text.options,  # shorter texts than by default (small_inputs.py)
        ).frames[0]
        assert np.abs(video - [np.asarray(frame) for frame in frames]).max() <= 1
    assert np.abs(ours[0] - ours[1]).max() > 1


def test_a_video_ends_with_the_frame_of_another_that_its_own_frame_rate_leads_to(tiny_model, clips):
    pipe = DiffusionPipeline.from_pretrained(tiny_model("wan21_flf2v"))
    video = str(clips / "long.mp4")
    request = SampleConfig("a cat", reference=video, last_frame=video, width=64, height=64, frames=9, steps=1)
    with mock.patch.object(first_frame, "load_still", wraps=first_frame.load_still) as load:
        list(generate_images(pipe, image_requests(request, fps=12), batch_size=1))
    assert [call.kwargs["seconds"] for call in load.call_args_list] == [0, 8 / 12]


def test_a_sample_that_is_made_again_starts_with_the_clip_of_its_caption(make_config, tiny_model, clips, tmp_path):
    (clips / "long.txt").write_text("a stripe")
    paths = (f"model.base={tiny_model('wan22_i2v_a14b')}", f"concepts.0.path={clips}", f"workspace_dir={tmp_path}")
    config = make_config("family=wan22_i2v_a14b", *RUN[1:-1], "data.clips=middle", *paths, "sampling.samples=[{}]")
    (sample,) = with_captions(config, config.sampling).samples
    assert (sample.prompt, sample.reference) == ("a stripe", f"{clips / 'long.mp4'}#t=0.688")


def test_a_model_for_images_learns_from_clips_and_starts_samples_from_their_first_frames(
    make_config, tiny_model, clips, train, tmp_path
):
    (clips / "long.txt").write_text("a stripe")
    folder, run = tiny_model("wan22_i2v_a14b"), tmp_path / "run"
    paths = (f"model.base={folder}", f"concepts.0.path={clips}", f"workspace_dir={run}")
    size = "width: 64, height: 32, steps: 1, guidance: 1"
    values = f"[{{{size}}}, {{prompt: a cat, {size}, reference: {clips / '0.png'}}}]"
    settings = (*RUN, *paths, "data.max_unreadable_share=0", "sampling.at_end=true", f"sampling.samples={values}")
    config = make_config("family=wan22_i2v_a14b", *settings[1:], "max_steps=2", "backup.at_end=false")
    trainer = train(config)
    warnings = "\n".join(trainer.callbacks.warnings)
    assert "it is a single frame, and Wan 2.2 I2V A14B learns from videos" in warnings
    videos = sorted((run / "samples").rglob("*.mp4"))
    assert [video.name[:3] for video in videos] == ["000", "001"]
    assert videos[0].name.startswith("000_a stripe")

    def losses(name, share):
        run = replace(config, workspace_dir=str(tmp_path / name), sampling=SamplingConfig())
        return train(replace(run, data=replace(run.data, last_frame=share))).callbacks.losses

    never, half, always = (losses(f"last {share}", share) for share in (0.0, 0.5, 1.0))
    assert never == trainer.callbacks.losses
    assert all(a != b for a, b in zip(never, always, strict=True))
    assert half not in (never, always)
    (clips / "long.mp4").unlink()
    with pytest.raises(DataError, match=r"is a single frame, as all others are, but Wan 2\.2 I2V A14B learns from vid"):
        train(replace(config, workspace_dir=str(tmp_path / "other")))


@pytest.mark.parametrize("name", TRAINED_ALONE)
def test_every_family_of_videos_trains_on_clips_and_images_and_samples_videos(
    name, settings, train, tiny_model, tmp_path
):
    family = FAMILIES[name]
    frames, side = 2 * family.frame_step + family.frame_rest, 2 * max(32, family.align)
    values = f"[{{prompt: a cat, width: {side}, height: {side}, steps: {family.min_sample_steps}}}]"
    data = (f"data.frames={frames}", f"data.resolution={side}", f"data.fps={family.fps}", "sampling.at_end=true")
    method = "lora" if "lora" in family.methods else "full"
    base = (f"family={name}", f"method={method}", f"model.base={tiny_model(name)}")
    run = train(settings("run", *base, *data, f"sampling.samples={values}", "max_steps=2"))  # an epoch
    assert np.isfinite(run.callbacks.losses).all()
    assert run.step == 2
    (video,) = (tmp_path / "run/samples").rglob("*.mp4")
    with av.open(str(video)) as container:
        assert len([*container.decode(video=0)]) == frames


def test_a_video_is_made_on_the_command_line(tiny_model, tiny_sd15, clips, tmp_path, capsys):
    def make(base, frames, *others):
        options = ("--prompt", "a cat", "--steps", "1", "--width", "64", "--height", "64", "--out", str(tmp_path))
        return sample.main(["--base", str(base), *options, *others, "--frames", str(frames)])

    assert make(tiny_model("wan21"), 5) == 0
    assert len([*tmp_path.glob("*.mp4")]) == len([*tmp_path.glob("*.png")]) == 1
    assert make(tiny_model("wan22_5b"), 5, "--reference", str(clips / "0.png")) == 0
    assert make(tiny_model("wan21"), 5, "--reference", str(clips / "0.png")) == 2
    assert "--reference: Wan 2.1 takes no reference images; leave it out." in capsys.readouterr().err
    assert make(tiny_model("wan21"), 6) == 2
    assert "--frames 6: Wan 2.1 takes a multiple of 4 plus 1; use 5 or 9." in capsys.readouterr().err
    ends = ("--reference", str(clips / "0.png"), "--reference", str(clips / "1.png"))
    assert make(tiny_model("wan21_flf2v"), 1, *ends) == 2
    assert "--frames 1: there is nothing between the two images" in capsys.readouterr().err
    assert make(tiny_model("wan21_flf2v"), 5, *ends[:2]) == 2
    assert "--reference: Wan 2.1 FLF2V makes videos between two images; name the last" in capsys.readouterr().err
    assert make(tiny_sd15, 5) == 2
    assert "--frames 5: this model makes images" in capsys.readouterr().err
