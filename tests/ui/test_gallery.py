"""The gallery of samples by prompt and step, and the comparison of two."""

import tkinter
from pathlib import Path

import pytest
from PIL import Image

from modules.ui.models.RunState import SamplePicture
from modules.ui.models.SampleTable import SampleRow, arrange_samples

PROMPTS = ("a red fox", "a blue bird")


@pytest.fixture
def app(shared_app):
    return shared_app


def make_samples(folder: Path, steps, prompts=PROMPTS, seeds=(42, 43)) -> list[SamplePicture]:
    """Write samples like the trainer: 003_a red fox_seed42.png in a folder per step."""
    samples = []
    for step in steps:
        round_folder = folder / f"step-{step:09d}"
        round_folder.mkdir(parents=True, exist_ok=True)
        pictures = [(prompt, seed) for prompt in prompts for seed in seeds]
        for number, (prompt, seed) in enumerate(pictures):
            path = round_folder / f"{number:03d}_{prompt}_seed{seed}.png"
            Image.new("RGB", (64, 48), (step % 256, number * 20, 90)).save(path)
            samples.append(SamplePicture(step, prompt, path))
    return samples


def test_a_table_has_a_row_for_each_prompt_and_seed_and_a_column_for_each_step(tmp_path):
    table = arrange_samples(make_samples(tmp_path, [200, 0, 100]))
    assert table.steps == (0, 100, 200)
    assert table.rows == tuple(SampleRow(prompt, seed) for prompt in PROMPTS for seed in (42, 43))
    assert Path(table.path(2, 1)).parts[-2:] == ("step-000000100", "000_a blue bird_seed42.png".replace("000", "002"))


def test_a_round_that_was_cut_off_leaves_the_rows_where_they_are(tmp_path):
    whole, cut_off = make_samples(tmp_path, [0, 100]), make_samples(tmp_path, [200], [PROMPTS[1]])
    assert arrange_samples(whole + cut_off).rows == arrange_samples(whole).rows


def test_a_prompt_keeps_its_row_when_others_are_put_before_it(tmp_path):
    samples = make_samples(tmp_path, [0], ["old"]) + make_samples(tmp_path, [100], ["new", "old"])
    table = arrange_samples(samples)
    assert table.rows[0] == SampleRow("new", 42)
    row = table.rows.index(SampleRow("old", 42))
    assert table.path(row, 0) is not None
    assert table.path(row, 1) is not None
    assert table.path(0, 0) is None


def test_two_samples_alike_have_a_row_each(tmp_path):
    table = arrange_samples(make_samples(tmp_path, [0], ["twice", "twice"], [42]))
    assert table.rows == (SampleRow("twice", 42), SampleRow("twice", 42, repeat=1))


def test_a_picture_that_is_made_again_counts_once(tmp_path):
    samples = make_samples(tmp_path, [100])
    assert arrange_samples(samples + samples) == arrange_samples(samples)


def test_a_file_with_another_name_is_shown_without_a_seed(tmp_path):
    table = arrange_samples([SamplePicture(5, "a prompt\nin two lines", tmp_path / "picture.png")])
    assert table.rows[0].seed is None
    assert table.rows[0].title == "a prompt in two lines"


@pytest.fixture
def gallery(app, settle, monkeypatch):
    from modules.ui.widgets import Gallery as module
    from modules.ui.widgets.Gallery import Gallery

    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.1)
    window = tkinter.Toplevel(app)
    window.geometry("1100x700")
    made = Gallery(window, app)
    made.pack(fill="both", expand=True)
    settle(app)
    return made


def show(app, gallery, samples) -> None:
    app.run.state.samples[:] = samples
    gallery.update_samples()
    app.update()


def texts(canvas) -> list[str]:
    return [canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text"]


def test_an_empty_gallery_says_that_samples_will_come(app, gallery):
    show(app, gallery, [])
    assert any("No samples yet" in text for text in texts(gallery.grid_view.canvas))


def test_samples_appear_by_themselves(app, gallery, tmp_path, wait_for):
    app.run.state.samples += make_samples(tmp_path, [0, 100])
    wait_for(app, lambda: len(gallery.table.steps) == 2)
    wait_for(app, lambda: len(gallery.grid_view._photos) == 8)
    assert gallery._count.cget("text") == "8 images of 2 steps"


def test_steps_and_prompts_are_written_beside_the_pictures(app, gallery, tmp_path):
    show(app, gallery, make_samples(tmp_path, [0, 1500]))
    shown = texts(gallery.grid_view.canvas)
    assert "step 1,500" in shown
    assert "a red fox\nseed 43" in shown


def test_choosing_a_picture_compares_it_with_the_first_of_its_row(app, gallery, tmp_path, wait_for):
    show(app, gallery, make_samples(tmp_path, [0, 100, 200]))
    gallery.grid_view.choose(3 + 2)  # the newest in the second row
    wait_for(app, lambda: gallery._comparison._fitted is not None)
    before, after = gallery._comparison._pictures
    assert before.getpixel((0, 0)) == (0, 20, 90)
    assert after.getpixel((0, 0)) == (200, 20, 90)
    assert (gallery._before.get(), gallery._after.get()) == ("0", "200")


def test_the_video_of_a_sample_is_played_by_the_desktop(app, gallery, tmp_path, monkeypatch):
    played = []
    monkeypatch.setattr("modules.ui.widgets.Gallery.open_file", played.append)
    samples = make_samples(tmp_path, [0, 100])
    show(app, gallery, samples)
    newest = next(one.path for one in samples if one.step == 100)
    Path(newest).with_suffix(".mp4").touch()
    for step, is_offered in ((100, True), (0, False)):
        row = next(row for row, at in gallery.table.paths if gallery.table.paths[row, at] == str(newest))
        gallery.compare(row, 0, step)
        assert bool(gallery._play.grid_info()) == is_offered
        gallery.play()
    assert played == [Path(newest).with_suffix(".mp4")]


def test_another_step_can_be_compared(app, gallery, tmp_path, wait_for):
    show(app, gallery, make_samples(tmp_path, [0, 100, 200]))
    gallery.grid_view.choose(2)
    gallery._before.set("100")
    gallery._compare_chosen_steps("100")
    wait_for(app, lambda: gallery._comparison._titles == ("step 100", "step 200"))


def test_a_comparison_that_is_ready_late_does_not_replace_a_newer_one(app, gallery, tmp_path, monkeypatch):
    show(app, gallery, make_samples(tmp_path, [0, 100, 200]))
    answers = []
    monkeypatch.setattr(app, "in_background", lambda work, then, *failed: answers.append(lambda: then(work())))
    gallery.compare(gallery.table.rows[0], 0, 200)
    gallery.compare(gallery.table.rows[0], 100, 200)
    for answer in reversed(answers):
        answer()
    assert gallery._comparison._titles == ("step 100", "step 200")


def test_the_border_shows_more_or_less_of_the_earlier_picture(app, gallery, tmp_path, wait_for):
    show(app, gallery, make_samples(tmp_path, [0, 200]))
    gallery.grid_view.choose(1)
    comparison = gallery._comparison
    wait_for(app, lambda: comparison._fitted is not None)
    comparison.canvas.focus_force()
    comparison.canvas.event_generate("<Home>")
    app.update()
    assert comparison.share == 0
    comparison.canvas.event_generate("<Right>")
    app.update()
    assert comparison.share == pytest.approx(0.05)
    width = comparison._fitted[0].width
    left = comparison.canvas.winfo_width() // 2 - width // 2
    comparison.canvas.event_generate("<B1-Motion>", x=left + 3 * width // 4, y=20)
    app.update()
    assert comparison.share == pytest.approx(0.75, abs=0.01)


def test_titles_of_a_narrow_image_stand_beside_each_other(app, gallery):
    comparison = gallery._comparison
    canvas = comparison.canvas
    for titles in (("step 0", "step 200"), ("a" * 300, "b" * 300), ("1", "a longer title than the image is wide")):
        comparison.show(Image.new("RGB", (30, 300)), Image.new("RGB", (30, 300)), titles)
        app.update()
        first, last = (canvas.bbox(item) for item in canvas.find_withtag("title"))
        assert 0 <= first[0] < first[2] <= last[0] < last[2] <= canvas.winfo_width()


def test_a_sample_that_is_gone_is_told_in_the_gallery(app, gallery, tmp_path, wait_for):
    samples = make_samples(tmp_path, [0, 100])
    samples[-1].path.unlink()
    show(app, gallery, samples)
    gallery.grid_view.choose(7)
    wait_for(app, lambda: "can't be used" in gallery._comparison._message)


def test_whoever_looks_at_the_newest_step_goes_on_with_the_newest(app, gallery, tmp_path):
    steps = list(range(0, 2000, 100))
    samples = make_samples(tmp_path, steps, PROMPTS[:1], [42])
    show(app, gallery, samples[:15])
    view = gallery.grid_view
    view._scroll(0, "moveto", "1.0")
    app.update()
    show(app, gallery, samples)
    assert "step 1,900" in texts(view.canvas)
    view._scroll(0, "moveto", "0.0")
    app.update()
    show(app, gallery, samples + make_samples(tmp_path, [2000], PROMPTS[:1], [42]))
    assert "step 0" in texts(view.canvas)


def test_the_chosen_picture_stays_chosen_when_steps_come(app, gallery, tmp_path):
    samples = make_samples(tmp_path, [0, 100, 200])
    show(app, gallery, samples[:8])
    gallery.grid_view.choose(3)
    path = gallery.table.path(1, 1)
    show(app, gallery, samples)
    assert gallery.table.path(*divmod(gallery.grid_view.chosen, 3)) == path


def test_pictures_can_be_shown_larger(app, gallery, tmp_path):
    show(app, gallery, make_samples(tmp_path, [0]))
    before = gallery.grid_view.cell_size()
    gallery._resize("Large")
    assert gallery.grid_view.cell_size() > before


def test_a_thousand_rounds_are_drawn_as_quickly_as_one(app, gallery, tmp_path):
    [first] = make_samples(tmp_path, [0], ["p"], [1])
    show(app, gallery, [SamplePicture(step, "p", first.path) for step in range(1000)])
    assert len(gallery.grid_view.canvas.find_all()) < 60


def test_the_gallery_names_its_run_and_shows_nothing_of_the_run_before(app, gallery, tmp_path, wait_for):
    app.run.state.folder = tmp_path / "first"
    show(app, gallery, make_samples(tmp_path / "first", [0, 100]))
    assert gallery.title.cget("text") == "Gallery of first"
    gallery.grid_view.choose(1)
    wait_for(app, lambda: gallery._comparison._fitted is not None)
    app.run.state.folder = tmp_path / "second"
    show(app, gallery, [])
    assert gallery.title.cget("text") == "Gallery of second"
    assert_nothing_is_compared(gallery)


def test_a_run_started_anew_in_the_same_folder_compares_nothing_of_the_one_before(app, gallery, tmp_path, wait_for):
    app.run.state.folder = tmp_path
    show(app, gallery, make_samples(tmp_path, [0, 100]))
    gallery.grid_view.choose(1)
    wait_for(app, lambda: gallery._comparison._fitted is not None)
    show(app, gallery, make_samples(tmp_path, [0], ["another prompt"]))
    assert_nothing_is_compared(gallery)


def assert_nothing_is_compared(gallery) -> None:
    assert (gallery._before.get(), gallery._after.get()) == ("", "")
    assert gallery._prompt.cget("text") == ""
    assert gallery._comparison._fitted is None
