"""The dataset window: its grid, filters, large view and captions."""

import tkinter

import pytest
from PIL import Image, ImageFilter

from modules.config.problems import Problem
from modules.data.concepts import scan
from modules.ui.models.decoding import PictureKey, decode_pictures
from modules.ui.models.PictureDecoder import PictureDecoder
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.VirtualGrid import Tile, VirtualGrid
from modules.ui.windows import CaptionPane, unsaved_edits
from modules.ui.windows.dataset_marks import marks_of
from modules.ui.windows.ProblemsWindow import ProblemsWindow
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def folder(tmp_path):
    """Eight images, the first one without a caption."""
    path = tmp_path / "foxes"
    path.mkdir()
    for number in range(8):
        Image.new("RGB", (64 + 8 * number, 64), (30 * number, 100, 50)).save(path / f"{number}.png")
        if number:
            (path / f"{number}.txt").write_text(f"fox, number {number}", encoding="utf-8")
    return path


@pytest.fixture
def window(app, folder, show_dataset):
    return show_dataset(app, folder)


def press(window, *keys: str) -> None:
    window.cells.canvas.focus_force()
    for key in keys:
        window.cells.canvas.event_generate(key)
        window.update()


def test_the_images_of_a_concept_are_shown_and_the_first_is_large(app, window, wait_for):
    assert window.title() == "Dataset: foxes"
    assert len(window.view.shown) == 8
    wait_for(app, lambda: window.large._photo is not None)
    assert window.large.path.endswith("0.png")
    assert "64\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}64" in window.side.details.cget("text")


def test_keys_select_several_and_the_summary_says_how_many(window):
    press(window, "<Right>", "<Shift-Right>", "<Shift-Right>")
    assert window.cells.selection.in_order == [1, 2, 3]
    assert "3 selected" in window.head.state.cget("text")
    press(window, "<Control-Right>", "<space>")
    assert window.cells.selection.in_order == [1, 2, 3, 4]
    press(window, "<Control-a>")
    assert len(window.cells.selection.numbers) == 8


def test_clicks_with_shift_and_ctrl_select_as_in_a_file_manager(window):
    def click(number: int, state: int = 0) -> None:
        x, y = window.cells.corner_of(number)
        width, height = window.cells.cell_size()
        window.cells.canvas.event_generate("<Button-1>", x=x + width // 2, y=y + height // 2, state=state)
        window.cells.canvas.event_generate("<ButtonRelease-1>", x=x + width // 2, y=y + height // 2)
        window.update()

    click(1)
    click(3, 0x1)
    click(5, 0x4)
    assert window.cells.selection.in_order == [1, 2, 3, 5]
    click(2)
    assert window.cells.selection.in_order == [2]


def test_a_filter_shows_its_images_and_the_others_come_back(window):
    chip = window.bar.chips["no_caption"]
    assert chip.cget("text") == "No caption  1"
    chip.invoke()
    window.update()
    assert window.view.shown == [0]
    assert window.bar.chips["broken"].cget("state") == "disabled"
    window.bar.choose("all")
    assert len(window.view.shown) == 8


def test_after_a_click_on_a_filter_the_arrows_move_in_the_grid(window):
    chip = window.bar.chips["all"]
    window.bar.search.focus_force()
    for part in (chip._text_label, chip._canvas):
        part.event_generate("<Button-1>", x=5, y=5)
        part.event_generate("<ButtonRelease-1>", x=5, y=5)
        window.update()
        assert window.focus_get() is window.cells.canvas
        window.bar.search.focus_force()


def test_an_image_that_opens_but_can_not_be_decoded_is_counted_as_unreadable(app, window, folder, wait_for):
    whole = (folder / "3.png").read_bytes()
    Image.effect_noise((64, 64), 50).save(folder / "8.png")
    cut = (folder / "8.png").read_bytes()
    (folder / "8.png").write_bytes(cut[: len(cut) // 2])
    window.refresh()
    wait_for(app, lambda: window.bar.chips["broken"].cget("text") == "Unreadable  1")
    (folder / "8.png").write_bytes(whole)
    window.refresh()
    wait_for(app, lambda: window.view.num_read == 9 and window.view.counts()["broken"] == 0)


def test_a_small_window_shows_the_image_its_caption_and_all_buttons(app, window, wait_for):
    wait_for(app, lambda: window.view.counts()["small"] == 0)
    tkinter.Wm.geometry(window, f"{app.theme.scaled(683)}x{app.theme.scaled(467)}")
    wait_for(
        app, lambda: window.winfo_width() == app.theme.scaled(683) and not window.bar.chips["broken"].winfo_ismapped()
    )
    wait_for(app, lambda: window.large.canvas.winfo_height() >= app.theme.scaled(55))
    side, caption = window.side, window.caption
    assert caption.box.winfo_height() >= app.theme.scaled(40)
    bottom = side.winfo_rooty() + side.winfo_height()
    assert all(one.winfo_rooty() + one.winfo_height() <= bottom for one in caption.buttons.values())


def test_a_typed_search_leaves_the_captions_with_these_words(app, window, wait_for):
    window.bar.search.insert(0, "number 5")
    window.bar.search._entry.focus_force()
    window.bar.search._entry.event_generate("<KeyRelease>")
    wait_for(app, lambda: window.view.shown == [5])
    assert window.cells.selection.current == 5


def test_a_changed_folder_is_read_again_and_a_hidden_window_reads_nothing(app, window, folder, wait_for):
    app.settings.set("concepts.0.exclude", "7.png")
    wait_for(app, lambda: len(window.view.items) == 7)
    window.hide()
    app.settings.set("concepts.0.exclude", "")
    app.update()
    assert window._find_job is None
    assert not window.view.items


def test_a_process_decodes_like_a_thread_and_one_that_dies_is_replaced(folder):
    Image.new("L", (30, 30), 255).save(folder / "1_mask.png")
    files = [
        ("7.png", 32, ""),
        ("0.txt", 32, ""),
        ("1.png", 20, ""),
        ("1.png", 20, "1_mask.png"),
        ("1.png", 20, "0.txt"),
    ]
    keys = [PictureKey(str(folder / n), side, side, mask and str(folder / mask)) for n, side, mask in files]

    def each_by(decode) -> list:  # one at a time: on a busy machine a call decodes fewer than it is asked for
        found = (one for key in keys for one in decode([key]))
        return [(key, one if isinstance(one, str) else one.tobytes()) for key, one in found]

    expected = each_by(decode_pictures)
    assert expected[2][1] != expected[3][1]
    assert "its mask can't be read" in expected[4][1]
    decoder = PictureDecoder(1)
    try:
        for _ in range(2):
            decoder.start()
            wait_until(lambda: decoder._free.qsize() == 1)
            (worker,) = decoder._workers
            assert each_by(worker.ask) == expected
            worker._process.kill()
            assert decoder.decode(keys[:1])  # by this thread
    finally:
        decoder.close()
    assert not decoder._workers


def test_a_frame_drawn_with_the_mouse_selects_what_it_touches(app, folder, settle):
    top = tkinter.Toplevel(app)
    top.geometry("420x420")
    paths = sorted(map(str, folder.glob("*.png")))
    grid = VirtualGrid(top, app, lambda number: Tile(paths[number]), lambda number: None, lambda: None)
    grid.pack(fill="both", expand=True)
    settle(app)
    grid.show(range(8))
    settle(app)
    columns, (width, height) = grid.num_columns(), grid.cell_size()
    for event, x, y in (("<Button-1>", 1, 1), ("<B1-Motion>", 2 * width - 8, height + 8), ("<ButtonRelease-1>", 0, 0)):
        grid.canvas.event_generate(event, x=x, y=y)
        app.update()
    assert grid.selection.in_order == [0, 1, columns, columns + 1]


def test_thumbnails_of_another_size_keep_the_place(app, folder, settle):
    top = tkinter.Toplevel(app)
    top.geometry("500x400")
    path = str(folder / "0.png")
    grid = VirtualGrid(top, app, lambda number: Tile(path), lambda number: None, lambda: None)
    grid.pack(fill="both", expand=True)
    settle(app)
    grid.show(range(20_000))
    grid.choose(12_345)
    settle(app)
    before = grid.num_columns()
    grid.resize_by(-1)
    settle(app)
    assert grid.num_columns() > before
    assert 12_345 in grid._items
    assert len(grid.canvas.find_all()) < 8 * len(grid._items)  # nothing is left of those out of sight


# --- captions ---------------------------------------------------------------------------------------------------------


def caption_of(folder, number: int) -> str | None:
    path = folder / f"{number}.txt"
    return path.read_text(encoding="utf-8") if path.exists() else None


def type_over(window, text: str) -> None:
    """Type another caption, and leave the box for the next image."""
    window.caption.box.delete("1.0", "end")
    window.caption.box.insert("1.0", text)


def test_a_typed_caption_is_saved_when_another_image_is_shown_and_undone(app, window, folder, wait_for):
    assert window.bar.chips["no_caption"].cget("text") == "No caption  1"
    type_over(window, "a red fox")
    window.cells.go_by(1)
    wait_for(app, lambda: caption_of(folder, 0) == "a red fox")
    wait_for(app, lambda: window.bar.chips["no_caption"].cget("text") == "No caption  0")
    window.caption.step("undo")
    wait_for(app, lambda: caption_of(folder, 0) is None)
    wait_for(app, lambda: window.view.counts()["no_caption"] == 1)
    window.caption.step("redo")
    wait_for(app, lambda: caption_of(folder, 0) == "a red fox")


def test_what_is_typed_while_a_caption_is_saved_stays(app, window, folder, wait_for):
    type_over(window, "a fox")
    window.caption.save()
    window.caption.box.insert("end", " in snow")
    wait_for(app, lambda: caption_of(folder, 0) == "a fox")
    wait_for(app, lambda: not window.caption._is_own)
    assert window.caption.text == "a fox in snow"
    window.caption.save()
    wait_for(app, lambda: caption_of(folder, 0) == "a fox in snow")


@pytest.mark.parametrize(
    ("answer", "written", "shown"),
    [("Keep typing", "theirs", "mine"), ("Load the file", "theirs", "theirs"), ("Overwrite the file", "mine", "mine")],
)
def test_a_caption_that_another_program_has_changed_is_asked_about(
    app, window, folder, wait_for, monkeypatch, answer, written, shown
):
    asked = []
    monkeypatch.setattr("modules.ui.windows.CaptionPane.ask", lambda *question, **more: asked.append(1) or answer)
    window.cells.choose(3)
    type_over(window, "mine")
    (folder / "3.txt").write_text("theirs", encoding="utf-8")
    window.caption.save()
    wait_for(app, lambda: asked and not window.caption.writing.is_busy)
    wait_for(app, lambda: caption_of(folder, 3) == written)
    assert window.caption.text == shown
    window.caption.use(None, list)  # what was kept is not saved with the window


def editor_that_adds(tag: str, app, window, wait_for):
    """The window for edits of captions, with its preview of the selected ones with this tag at their end."""
    from modules.ui.windows.EditCaptionsWindow import EditCaptionsWindow

    window.edit_captions()
    (editor,) = (child for child in window.winfo_children() if type(child) is EditCaptionsWindow)
    wait_for(app, lambda: editor._captions)
    editor.first.insert(0, tag)
    editor._preview()
    wait_for(app, lambda: editor.edits is not None)
    return editor


def test_an_edit_of_the_selected_captions_shows_each_change_and_is_one_step(app, window, folder, wait_for):
    window.cells.choose(1)
    press(window, "<Shift-Right>", "<Shift-Right>")
    editor = editor_that_adds("snow", app, window, wait_for)
    rows = [editor.table.item(row, "values") for row in editor.table.get_children()]
    assert rows == [(f"{n}.png", f"fox, number {n}", f"fox, number {n}, snow") for n in (1, 2, 3)]
    editor.apply()
    wait_for(app, lambda: all(caption_of(folder, n) == f"fox, number {n}, snow" for n in (1, 2, 3)))
    assert caption_of(folder, 4) == "fox, number 4"
    window.caption.step("undo")
    wait_for(app, lambda: all(caption_of(folder, n) == f"fox, number {n}" for n in (1, 2, 3)))
    wait_for(app, lambda: window.view.items[1].words == "fox, number 1")


def test_an_edit_names_images_by_both_ends_of_long_names(app, window, folder, wait_for):
    start = "a_long_name_that_many_images_begin_with_" * 2
    for number in (1, 2):
        (folder / f"{number}.png").rename(folder / f"{start}{number}.png")
        (folder / f"{number}.txt").rename(folder / f"{start}{number}.txt")
    window.refresh()
    wait_for(app, lambda: sum(start in item.path and bool(item.words) for item in window.view.items) == 2)
    editor = editor_that_adds("snow", app, window, wait_for)
    names = [editor.table.item(row, "values")[0] for row in editor.table.get_children()]
    cut = [name for name in names if name.startswith("a_") and "…" in name]
    assert [name[-6:] for name in cut] == ["_1.png", "_2.png"]
    editor.destroy()


def test_a_tag_that_looks_misspelled_is_offered_with_what_may_be_meant(app, window, folder, wait_for):
    for number in range(8):
        text = "fox, deep snow" if number < 7 else "fox, deep snwo"
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    window.refresh()
    wait_for(app, lambda: window.view.items and window.view.items[7].words == "fox, deep snwo")
    window.edit_captions()
    (editor,) = (child for child in window.winfo_children() if isinstance(child, tkinter.Toplevel))
    wait_for(app, lambda: editor._offer.winfo_ismapped())
    assert editor._offer.get() == "Misspelled: 1"
    editor._correct("deep snwo (1) → deep snow (7)")
    wait_for(app, lambda: editor.edits is not None and editor.edits.num_changed == 1)
    editor.apply()
    wait_for(app, lambda: caption_of(folder, 7) == "fox, deep snow")


def test_what_the_model_does_not_read_is_counted_and_marked(app, window, folder, wait_for):
    wait_for(app, lambda: window.caption._length == "0 of 20 tokens")
    type_over(window, "a red fox in deep fresh snow")
    window.caption._on_typed()
    wait_for(app, lambda: window.caption._length.startswith("28 of 20 tokens"))
    (first, end) = window.caption.box._textbox.tag_ranges("cut")
    assert window.caption.box.get(first, end) == "esh snow"
    window.caption.save()
    wait_for(app, lambda: caption_of(folder, 0) is not None)
    window.refresh()
    wait_for(app, lambda: window.view.items and window.view.counts()["long"] == 1)


def test_duplicates_are_found_and_the_worse_ones_selected(app, window, folder, wait_for, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole = Image.effect_mandelbrot((256, 192), (-2.2, -1.4, 0.9, 1.4), 40).convert("RGB")
    whole.save(folder / "a.png")
    whole.resize((128, 96)).save(folder / "b.jpg")
    whole.transpose(Image.Transpose.ROTATE_90).filter(ImageFilter.GaussianBlur(4)).save(folder / "blurred.png")
    window.refresh()
    wait_for(app, lambda: len(window.view.items) == 11 and window.view.num_read == 11)
    window.find_duplicates()
    wait_for(app, lambda: not window._duplicates.state)
    groups = {item.path_below: item.is_best for item in window.view.items if item.group}
    assert groups["a.png"] > groups["b.jpg"]
    assert window.view.filter_name == "duplicate"
    selected = [window.view.items[number].path_below for number in window.cells.selection.in_order]
    assert "b.jpg" in selected
    assert "a.png" not in selected
    assert window.view.counts()["noisy"] == 0
    assert window.bar.chips["blurred"].cget("state") == "normal"
    window.bar.chips["blurred"].invoke()
    shown = [window.view.items[number].path_below for number in window.view.shown]
    assert "blurred.png" in shown
    assert "a.png" not in shown
    window.bar.choose("duplicate")
    sharpness = {item.path_below: item.sharpness for item in window.view.items}
    assert sharpness["a.png"] > sharpness["b.jpg"] > 0
    find = window.head.buttons["Find duplicates"]
    assert find.cget("text") == "Duplicates…"
    find.invoke()
    assert window.side.is_comparing
    window.refresh()
    assert not window.side.is_comparing or window.side.groups.group
    wait_for(app, lambda: find.cget("text") == "Find duplicates")


def test_delete_leaves_the_selected_images_out_and_undo_brings_them_back(app, window, folder, wait_for):
    window.cells.choose(1)
    press(window, "<Shift-Right>", "<Delete>")
    wait_for(app, lambda: window.view.counts()["left_out"] == 2)
    assert len(scan(app.settings.config().concepts).paths) == 6
    window.caption.step("undo")
    wait_for(app, lambda: window.view.counts()["left_out"] == 0)
    assert not (folder / "image_settings.json").exists()


def test_a_caption_is_copied_to_the_selected_images_and_from_the_image_before(app, window, folder, wait_for):
    window.cells.choose(1)
    press(window, "<Control-Shift-C>", "<Right>", "<Shift-Right>", "<Control-Shift-V>")
    wait_for(app, lambda: all(caption_of(folder, number) == "fox, number 1" for number in (2, 3)))
    wait_for(app, lambda: window.view.items[3].words == "fox, number 1")
    window.caption.step("undo")
    wait_for(app, lambda: [caption_of(folder, number)[-1] for number in (2, 3)] == ["2", "3"])
    wait_for(app, lambda: window.view.items[3].words == "fox, number 3")
    window.cells.choose(5)
    press(window, "<Control-d>")
    wait_for(app, lambda: caption_of(folder, 5) == "fox, number 4")
    wait_for(app, lambda: window.caption.text == "fox, number 4")


@pytest.mark.parametrize("key", ["<F1>", "<question>"])
def test_the_keys_are_listed(app, window, key):
    from modules.ui.windows.TextWindow import TextWindow

    press(window, key)
    (shown,) = (child for child in app.root.winfo_children() if type(child) is TextWindow)
    assert "Ctrl+Shift+V" in shown.box.get("1.0", "end")
    shown.destroy()


def test_a_caption_in_another_encoding_is_saved_as_utf8_by_a_click(app, window, folder, wait_for):
    (folder / "2.txt").write_bytes("renard, forêt".encode("latin-1"))
    window.refresh()
    wait_for(app, lambda: window.view.counts()["broken"] == 1 and window.view.num_read == 8)
    window.cells.choose(2)
    app.update()
    item = window.view.items[2]
    assert marks_of(item)[0][0] == "bad caption"
    assert "not UTF-8" in window.caption._state.cget("text")
    assert "UTF-8" not in window.side.details.cget("text")  # once is enough
    window.caption.utf8_button.invoke()
    wait_for(app, lambda: not window.caption.utf8_button.winfo_ismapped())
    assert (folder / "2.txt").read_bytes() == "renard, forêt".encode()
    assert window.caption.text == "renard, forêt"
    wait_for(app, lambda: window.view.counts()["broken"] == 0)
    window.caption.step("undo")
    wait_for(app, lambda: (folder / "2.txt").read_bytes() == "renard, forêt".encode("latin-1"))


def test_the_problem_of_an_image_leads_to_it(app, window, folder, wait_for):
    problem = Problem("", "caption file 5.txt is not UTF-8: save it as UTF-8.", images=(str(folder / "5.png"),))
    app.problems.take_refusal([problem])
    row = open_window(app, ProblemsWindow).rows[0]
    assert row.go.cget("text") == "Show images"
    row.go.invoke()
    wait_for(app, lambda: window.large.path == str(folder / "5.png"))
    assert [window.view.items[number].path for number in window.view.shown] == [str(folder / "5.png")]
    assert "Caption file 5.txt is not UTF-8" in window.head.state.cget("text")


def test_the_main_window_learns_what_was_edited_once_the_dataset_window_closes(app, window, folder, wait_for):
    told = []
    app.checks.places.subscribe_edits(told.append)
    window.hide()
    assert not told
    window.show(0)
    wait_for(app, lambda: window.view.num_read == 8)
    window.cells.choose(0)
    window.caption.box.insert("1.0", "a fox")
    window.hide()  # which saves it
    wait_for(app, lambda: told)
    assert told == [{"concepts.0.path"}]
    assert (folder / "0.txt").read_text(encoding="utf-8") == "a fox"


def test_of_an_image_that_can_not_be_read_no_training_size_is_told(app, window, folder, wait_for):
    (folder / "3.png").write_bytes(b"no image")
    window.refresh()
    wait_for(app, lambda: window.view.counts()["broken"] == 1 and window.view.num_read == 8)
    window.cells.choose(3)
    app.update()
    text = window.side.details.cget("text").replace("\N{NO-BREAK SPACE}", " ")
    assert "8 bytes" in text
    assert "can't be read" in text
    assert "trained at" not in text


def test_a_caption_that_is_being_typed_is_saved_when_the_main_window_closes(app, window, folder):
    """As by Ctrl-C in the terminal: the focus stays where it is until then."""
    window.caption.box.insert("end", "a fox at night")
    window.caption.box._textbox.event_generate("<KeyRelease>")
    app.destroy()
    app.finish(PATIENCE_SECONDS)
    assert (folder / "0.txt").read_text(encoding="utf-8") == "a fox at night"


@pytest.mark.parametrize(
    ("answer", "caption", "kept"),
    [
        ("Overwrite the file", "a fox", ""),
        ("Leave the file", "theirs", ""),
        (None, "theirs", "a fox"),
    ],
)
def test_a_caption_that_is_not_saved_as_the_window_closes_is_asked_about_or_kept(
    app, window, folder, wait_for, monkeypatch, answer, caption, kept
):
    asked = []
    monkeypatch.setattr(unsaved_edits, "ask", lambda *arguments, **options: asked.append(arguments) or answer)
    window.cells.choose(0)
    window.caption.box.insert("1.0", "a fox")
    (folder / "0.txt").write_text("theirs", encoding="utf-8")
    window.hide()
    wait_for(app, lambda: asked and not window.caption.writing.is_busy)
    unsaved = folder / "0.unsaved.txt"
    wait_for(app, lambda: unsaved.exists() == bool(kept))
    assert (folder / "0.txt").read_text(encoding="utf-8") == caption
    if kept:
        assert unsaved.read_text(encoding="utf-8") == kept
        wait_for(app, lambda: str(unsaved) in "".join(app.banner.texts))


def test_the_program_waits_for_what_is_written_and_stays_open_for_what_is_not(
    app, window, folder, wait_for, monkeypatch
):
    ended = []
    assert not window.side.saves_first(lambda: ended.append(1))
    window.cells.choose(0)
    window.caption.box.insert("1.0", "a fox")
    assert window.side.saves_first(lambda: ended.append(2))
    wait_for(app, lambda: ended == [2])
    monkeypatch.setattr(CaptionPane, "ask", lambda *arguments, **options: CaptionPane.KEEP)
    window.caption.box.insert("1.0", "it is ")
    (folder / "0.txt").write_text("theirs", encoding="utf-8")
    assert window.side.saves_first(lambda: ended.append(3))
    wait_for(app, lambda: not window.caption.writing.is_busy)
    assert ended == [2]
    assert window.caption.text == "it is a fox"
    monkeypatch.setattr(CaptionPane, "ask", lambda *arguments, **options: CaptionPane.RELOAD)
    assert window.side.saves_first(lambda: ended.append(4))
    wait_for(app, lambda: ended == [2, 4])
