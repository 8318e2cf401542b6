"""The chart of the loss."""

import math
import time
import tkinter

import pytest

from modules.ui.models.LossHistory import LossHistory


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def chart(app, settle):
    from modules.ui.widgets.LossChart import LossChart

    app.run._history = LossHistory()
    window = tkinter.Toplevel(app)
    window.geometry("900x420")
    made = LossChart(window, app)
    made.pack(fill="both", expand=True)
    settle(app)
    return made


def fill(app, losses, rate=None) -> None:
    for step, loss in enumerate(losses, start=1):
        app.run.history.add(step, loss, rate)


def y_range(chart, item) -> tuple[float, float]:
    heights = chart.canvas.coords(item)[1::2]
    return min(heights), max(heights)


def test_an_empty_chart_says_that_there_is_no_step(chart):
    chart.redraw()
    assert chart.canvas.itemcget(chart._hint, "text") == "No step yet"
    assert chart.canvas.itemcget(chart._raw, "state") == "hidden"


def test_new_steps_are_drawn_by_themselves(app, chart, wait_for):
    fill(app, [0.5, 0.4, 0.3])
    wait_for(app, lambda: chart.canvas.itemcget(chart._raw, "state") == "normal")
    coordinates = chart.canvas.coords(chart._raw)
    assert len(coordinates) == 6
    assert coordinates[1] < coordinates[3] < coordinates[5]  # down on the screen is down in the loss


def test_a_single_high_loss_in_a_million_is_seen(app, chart):
    history = app.run.history
    fill(app, [0.1] * 1000)
    history.add(1001, 9.0)
    for step in range(1002, 5000):
        history.add(step, 0.1)
    chart.redraw()
    top, bottom = y_range(chart, chart._raw)
    assert abs(top - chart.plot.y(9.0)) < 0.5
    assert abs(bottom - chart.plot.y(0.1)) < 0.5


def test_everything_lies_inside_the_plot(app, chart):
    fill(app, [math.sin(step) + 1.5 for step in range(300)])
    app.run.history.add_validation(200, 4.0)
    chart.redraw()
    plot = chart.plot
    for item in (chart._raw, chart._smooth, *chart.canvas.find_withtag("validation")):
        coordinates = chart.canvas.coords(item)
        assert all(plot.left - 5 <= x <= plot.right + 5 for x in coordinates[::2])
        assert all(plot.top - 5 <= y <= plot.bottom + 5 for y in coordinates[1::2])


def test_the_log_scale_gives_each_power_of_ten_the_same_height(app, chart):
    fill(app, [1.0, 0.1, 0.01])
    chart.is_log.set(True)
    chart.redraw()
    heights = chart.canvas.coords(chart._raw)[1::2]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1])


def test_a_loss_of_zero_does_not_break_the_log_scale(app, chart):
    fill(app, [1.0, 0.0, 0.5])
    chart.is_log.set(True)
    chart.redraw()
    assert len(chart.canvas.coords(chart._raw)) == 6


def test_equal_losses_make_a_flat_line(app, chart):
    fill(app, [0.25] * 10)
    chart.redraw()
    top, bottom = y_range(chart, chart._raw)
    assert top == bottom


def test_a_single_step_is_a_dash_at_its_loss(app, chart):
    fill(app, [0.5])
    chart.redraw()
    for item in (chart._raw, chart._smooth):
        left, top, right, bottom = chart.canvas.coords(item)
        assert chart.canvas.itemcget(item, "state") == "normal"
        assert left + 4 <= right
        assert (left + right) / 2 == pytest.approx(chart.plot.x(1))
        assert (top, bottom) == pytest.approx((chart.plot.y(0.5), chart.plot.y(0.5)))


def test_the_raw_line_can_be_hidden(app, chart):
    fill(app, [0.5, 0.4])
    chart.shows_raw.set(False)
    chart.redraw()
    assert chart.canvas.itemcget(chart._raw, "state") == "hidden"
    assert chart.canvas.itemcget(chart._smooth, "state") == "normal"


def test_hovering_tells_the_step_its_loss_and_the_last_validation(app, chart):
    fill(app, [0.5, 0.5, 0.3, 0.2], rate=1e-4)
    chart.smooth_over(2)
    app.run.history.add_validation(2, 0.44)
    chart.redraw()
    chart.canvas.event_generate("<Motion>", x=int(chart.plot.x(3)), y=(chart.plot.top + chart.plot.bottom) // 2)
    app.update()
    text = chart.canvas.itemcget(chart._hover_text, "text")
    smoothed = f"smoothed   {(0.3 + 0.5 / 2 + 0.5 / 4) / 1.75:.5g}"
    assert text.splitlines() == [
        "step 3",
        "loss   0.3",
        smoothed,
        "learning rate   0.0001",
        "validation   0.44 at step 2",
    ]


def test_a_skipped_step_is_told_as_such(app, chart):
    fill(app, [0.5, None])
    assert "skipped" in chart.describe(2)


def test_arrows_move_the_marked_step(app, chart):
    fill(app, [0.5] * 50)
    chart.redraw()
    chart.canvas.focus_force()
    for _ in range(3):
        chart.canvas.event_generate("<Left>")
        app.update()
    assert chart._hovered == 47


def test_the_slider_smooths_more_and_less(app, chart):
    fill(app, [0.1, 0.9] * 200)
    chart.redraw()
    heights = {}
    for place in (0, 1, 3):
        chart.slider._command(place)
        top, bottom = y_range(chart, chart._smooth)
        heights[place] = bottom - top
    assert heights[0] > heights[1] > heights[3]
    assert chart._averaged.cget("text") == "over 1,000 steps"
    chart.slider._command(0)
    assert chart._averaged.cget("text") == "not smoothed"


def test_the_learning_rate_has_its_own_height(app, chart):
    for step in range(1, 11):
        app.run.history.add(step, 0.5, 1e-4 * (11 - step))
    chart.redraw()
    heights = chart.canvas.coords(chart._rate)[1::2]
    assert heights == sorted(heights)  # it falls
    assert (heights[0], heights[-1]) == pytest.approx((chart.plot.rate_y(1.0), chart.plot.rate_y(0.1)))
    labels = [chart.canvas.itemcget(text, "text") for text in chart._rates]
    assert labels == ["0", "5e-4", "0.001"]
    assert chart.canvas.coords(chart._rates[0])[1] == chart.plot.rate_y(0) <= chart.plot.bottom
    assert max(chart.canvas.bbox(text)[2] for text in chart._rates) <= chart.canvas.winfo_width()


def test_the_range_shows_the_last_steps_only(app, chart):
    fill(app, [1.0] * 500 + [0.1] * 100)
    chart.smooth_over(1)
    chart._range_menu.set("Last 100 steps")
    chart.redraw()
    assert (chart.plot.first, chart.plot.last) == (501, 600)
    assert chart.plot.high < 0.5


def test_ticks_are_round_numbers(app, chart):
    from modules.ui.widgets.LossChart import NUM_TICKS, log_ticks, ticks

    assert ticks(0.013, 0.0871) == pytest.approx([0.02, 0.04, 0.06, 0.08])
    assert log_ticks(-2.1, 0.2) == pytest.approx([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    for low, high in ((0, 1), (0.1, 0.1001), (3, 1e6), (-5, 5)):
        assert 2 <= len(ticks(low, high)) <= NUM_TICKS
        assert len(log_ticks(low, min(high, low + 30))) <= NUM_TICKS


def test_redrawing_makes_no_new_items(app, chart):
    fill(app, [0.5, 0.4, 0.3])
    chart.redraw()
    before = len(chart.canvas.find_all())
    for step in range(4, 200):
        app.run.history.add(step, 0.3)
        chart.redraw()
    assert len(chart.canvas.find_all()) == before


def test_a_new_run_replaces_the_old_curve(app, chart, wait_for):
    fill(app, [0.5] * 30)
    chart.redraw()
    app.run._history = LossHistory()
    fill(app, [0.1] * 30)
    wait_for(app, lambda: chart.plot.high < 0.2)


def test_a_hidden_chart_is_not_redrawn(app, chart):
    chart.pack_forget()
    app.update()
    fill(app, [0.5, 0.4])
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        app.update()
    assert chart.canvas.itemcget(chart._raw, "state") == "hidden"
