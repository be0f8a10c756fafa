"""The report page in a real browser: it loads from disk, makes no requests, and its buttons work."""

import csv
import io
import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from secateur.experiments.directory import RunDirectory
from secateur.experiments.runner import run
from secateur.job import Job
from secateur.methods import FewValues, Manessi2018
from secateur.train.recipe import Recipe

pytest.importorskip("bokeh", reason="the report extra is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import sync_playwright

from secateur.report.page import write_page

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium is installed: apt-get install chromium")

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
JOB = Job(
    network="lenet-300-100",
    data="digits",
    methods=(Manessi2018(rho=0.3, fine_tune_epochs=2), FewValues(levels=6, quantize_epochs=1)),
    recipe=Recipe(epochs=3, lr=3e-3),
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of a finished run, of two side by side, and of one that is going on."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("runs")
    first = run(JOB, root)
    # Renamed to the paper's data, so that published points are shown.
    for path in (first.job, first.result):
        path.write_text(path.read_text().replace('"digits"', '"mnist"'))
    second = RunDirectory(Path(shutil.copytree(first.path, root / "second")))
    going_on = RunDirectory(Path(shutil.copytree(first.path, root / "going-on")))
    going_on.result.unlink()
    going_on.model.unlink()
    for stage in ("fine-tune", "quantize"):
        going_on.journal(stage).log.unlink()
    log = going_on.journal("train").log
    log.write_text(log.read_text().replace("fc2.weight", "<img src=x onerror=window.hacked=true>@x$y"))
    return {
        "one": write_page([first], root / "one.html"),
        "two": write_page([first, second], root / "two.html"),
        "going on": write_page([going_on], root / "going-on.html"),
    }


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=EXECUTABLE, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, pages):
    """Open one of the pages, and note down what it complains of and what it asks for."""
    contexts = []

    def open_one(name="one", *, width=1440, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text) if message.type != "info" else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(pages[name].as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]")
        return page

    yield open_one
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["one", "two", "going on"])
def test_a_page_loads_without_a_complaint_and_asks_for_nothing_else(open_page, pages, name):
    page = open_page(name)
    assert page.complaints == []
    asked = [url for url in page.requests if not url.startswith(("data:", "blob:"))]
    assert asked == [pages[name].as_uri()]


@pytest.mark.parametrize("name", ["one", "two", "going on"])
def test_every_chart_is_drawn(open_page, name):
    plots = open_page(name).locator(".plot")
    assert plots.count() >= 2
    for plot in plots.all():
        assert plot.locator("canvas").first.bounding_box()["width"] > 200


@pytest.mark.parametrize("name", ["one", "two", "going on"])
@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_is_wider_than_the_screen(open_page, name, width):
    page = open_page(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    beyond = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
            .filter((each) => !each.closest(".scroll, .skip") && each.getBoundingClientRect().right > innerWidth + 1)
            .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert beyond == []


def test_a_table_that_goes_beyond_the_screen_says_so_until_it_is_scrolled_to_the_end(open_page):
    page = open_page(width=360)
    region = page.locator(".sheet .scroll", has=page.locator("#table-layers"))
    hint = page.locator(".sheet", has=page.locator("#table-layers")).locator(".hint")
    assert region.evaluate("(region) => region.scrollWidth > region.clientWidth")
    assert hint.is_visible()
    region.evaluate("(region) => region.scrollTo(10000, 0)")
    hint.wait_for(state="hidden")
    assert not open_page(width=1440).locator(".sheet", has_text="Layers, those").locator(".hint").is_visible()


def test_words_of_charts_and_of_the_diagram_stay_within_them_on_a_phone(open_page):
    page = open_page(width=360)
    beyond = page.evaluate(
        """() => [...document.querySelectorAll(".diagram text")].map((each) => each.getBoundingClientRect())
            .filter((box) => box.left < 0 || box.right > innerWidth).length"""
    )
    assert beyond == 0
    overlapping = page.evaluate(
        """() => {
            const texts = [...document.querySelectorAll(".diagram text")].map((each) => each.getBoundingClientRect());
            return texts.some((a, i) => texts.slice(i + 1).some((b) => a.right > b.left && b.right > a.left
                && a.bottom > b.top + 2 && b.bottom > a.top + 2));
        }"""
    )
    assert not overlapping


def test_a_page_is_updated_in_place(open_page, pages):
    page = open_page("going on")
    newer = pages["one"].read_text()
    page.locator('[data-table="error"] summary').click()
    heading = page.locator("#table-layers thead th", has_text="weights")
    heading.get_by_role("button").click()
    kept = page.evaluate(
        """async (text) => {
            scrollTo({ top: 500, behavior: "instant" });
            window.untouched = true;
            const done = await updatePage(text);
            return { done, top: scrollY, documents: Bokeh.documents.length,
                     points: drawn.get("error").roots()[0].renderers[0].data_source.get_length() };
        }""",
        newer,
    )
    assert kept["done"]
    assert kept["top"] == 500
    assert kept["points"] == 6  # three epochs were shown before
    assert page.evaluate("window.untouched")  # not reloaded
    assert kept["documents"] == page.locator(".plot").count()
    assert page.locator(".badges").inner_text().startswith("finished")
    assert page.locator('[data-table="error"] tbody tr').count() == 6
    assert column(page, "layers", "weights") == ["235,200", "30,000", "1,000"]
    assert page.complaints == []
    assert not page.evaluate("updatePage('<html><body>waiting</body></html>')")


def test_new_data_is_put_into_the_chart_that_is_drawn(open_page, pages):
    page = open_page()
    same = page.evaluate(
        """async (text) => {
            const before = [...document.querySelectorAll(".plot")].map((plot) => plot.firstElementChild);
            await updatePage(text);
            const after = [...document.querySelectorAll(".plot")].map((plot) => plot.firstElementChild);
            return before.length > 3 && before.every((each, index) => each !== null && each === after[index]);
        }""",
        pages["one"].read_text(),
    )
    assert same
    assert page.complaints == []


def column(page, table, heading):
    """The cells below a heading, from top to bottom."""
    index = page.locator(f"#table-{table} thead th").all_inner_texts().index(heading)
    return page.locator(f"#table-{table} tbody tr > :nth-child({index + 1})").all_inner_texts()


def test_a_click_on_a_heading_sorts_and_another_one_turns_it_round(open_page):
    page = open_page()
    kept = [int(text.replace(",", "")) for text in column(page, "layers", "kept")]
    assert kept == sorted(kept, reverse=True)
    heading = page.locator("#table-layers thead th", has_text="weights")
    for direction, expected in (
        ("descending", ["235,200", "30,000", "1,000"]),
        ("ascending", ["1,000", "30,000", "235,200"]),
    ):
        heading.get_by_role("button").click()
        assert column(page, "layers", "weights") == expected
        assert heading.get_attribute("aria-sort") == direction
    assert page.locator("#table-layers [aria-sort=ascending], #table-layers [aria-sort=descending]").count() == 1


def test_the_keyboard_sorts_too_and_names_by_letters(open_page):
    page = open_page()
    page.locator("#table-layers thead button").first.focus()
    page.keyboard.press("Enter")
    assert column(page, "layers", "layer") == ["fc1.weight", "fc2.weight", "fc3.weight"]
    page.keyboard.press("Space")
    assert column(page, "layers", "layer") == ["fc3.weight", "fc2.weight", "fc1.weight"]


@pytest.mark.parametrize(
    ("chart", "said"),
    [
        ("error", "error of the sibling %"),
        ("thresholds", "fc2.weight"),
        ("loss", "thresholds, L_t"),
        ("histogram-0", "before the cut"),
    ],
)
def test_hovering_shows_values(open_page, chart, said):
    page = open_page()
    plot = page.locator(f"#chart-{chart}")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.move(box["x"] + 0.5 * box["width"] + 2, box["y"] + 0.5 * box["height"])
    tip = page.locator(".bk-Tooltip", has_text=said).first
    tip.wait_for(state="visible")
    assert re.search(rf"{re.escape(said)}\D*\d", tip.evaluate("(tip) => tip.shadowRoot.textContent"))


def test_a_name_that_is_markup_stays_a_name_when_hovered_over(open_page):
    page = open_page("going on")
    plot = page.locator("#chart-thresholds")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    for step in range(3):
        page.mouse.move(box["x"] + 0.5 * box["width"] + step, box["y"] + 0.5 * box["height"])
    page.locator(".bk-Tooltip", has_text="<img src=x onerror=window.hacked=true>@x$y").first.wait_for(state="visible")
    assert page.evaluate("window.hacked") is None


def test_hovering_over_a_published_point_names_its_source(open_page):
    page = open_page()
    plot = page.locator(".plot[data-chart^=pareto-bytes]")
    plot.scroll_into_view_if_needed()
    # Where the first published point lies, as Bokeh maps it to the screen.
    x, y = page.evaluate(
        """() => {
            const place = document.querySelector(".plot[data-chart^=pareto-bytes]");
            for (const view of Object.values(Bokeh.index.roots ?? Bokeh.index)) {
                const source = [...view.model.document._all_models.values()]
                    .find((model) => model.type === "ColumnDataSource" && model.data.source?.length);
                if (!source || !place.contains(view.el)) continue;
                const { x_scale, y_scale } = view.frame, box = view.el.getBoundingClientRect();
                return [box.x + x_scale.compute(source.data.x[0]), box.y + y_scale.compute(source.data.y[0])];
            }
        }"""
    )
    page.mouse.move(x + 1, y)
    page.mouse.move(x, y)
    tip = page.locator(".bk-Tooltip", has_text="arXiv").first
    tip.wait_for(state="visible")


def test_the_switch_goes_from_what_the_system_prefers_to_light_and_dark_and_back(open_page):
    page = open_page(scheme="dark")
    switch = page.locator("#theme")
    seen = []
    for _ in range(4):
        colours = page.evaluate(
            """() => {
                const axis = [...Bokeh.documents[0]._all_models.values()].find((model) => model.type.endsWith("Axis"));
                return [getComputedStyle(document.body).backgroundColor, axis.axis_label_text_color];
            }"""
        )
        seen.append((switch.inner_text(), *colours))
        switch.click()
    auto, light, dark, again = seen
    assert [each[0] for each in seen] == ["Theme: auto", "Theme: light", "Theme: dark", "Theme: auto"]
    assert auto[1:] == dark[1:] == again[1:] != light[1:]
    assert light[1] == "rgb(255, 255, 255)"


def test_the_chosen_theme_is_remembered(open_page):
    page = open_page()
    page.locator("#theme").click()
    page.locator("#theme").click()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#theme").inner_text() == "Theme: dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 26)"


@pytest.mark.parametrize("name", ["one", "two"])
def test_the_data_of_every_chart_can_be_downloaded(open_page, name):
    page = open_page(name)
    numbers = json.loads(page.locator("#numbers").text_content())
    assert len(numbers) == page.locator(".plot").count()
    for chart, expected in numbers.items():
        page.wait_for_timeout(250)  # Chromium lets a page start ten downloads a second
        with page.expect_download() as waiting:
            page.locator(f'[data-download=json][data-chart="{chart}"]').click()
        assert waiting.value.suggested_filename == f"{chart}.json"
        assert json.loads(Path(waiting.value.path()).read_text()) == expected
        with page.expect_download() as waiting:
            page.locator(f'[data-download=csv][data-chart="{chart}"]').click()
        header, *rows = csv.reader(io.StringIO(Path(waiting.value.path()).read_text()))
        assert header == list(expected["columns"])
        values = list(zip(*expected["columns"].values(), strict=True))
        assert len(rows) == len(values)
        for row, value in zip(rows, values, strict=True):
            assert [text or None for text in row] == [None if v is None else as_javascript(v) for v in value]


def as_javascript(value):
    """Write a value as the browser does: 1.0 is 1, and tiny numbers have another exponent."""
    if isinstance(value, str):
        return value
    text = repr(int(value)) if float(value).is_integer() else repr(value)
    return re.sub(r"e-0*", "e-", text) if abs(value) < 1e-6 or abs(value) >= 1e-4 else format(value, "f").rstrip("0")


def test_the_numbers_of_a_chart_are_a_table_for_those_who_cannot_see_it(open_page):
    page = open_page()
    summary = page.locator('[data-table="error"] summary')
    summary.focus()
    page.keyboard.press("Enter")
    rows = page.locator('[data-table="error"] tbody tr')
    rows.first.wait_for()
    assert rows.count() == 6
    assert page.locator('[data-table="error"] thead th').all_inner_texts()[:3] == ["stage", "epoch", "step"]


def test_images_and_charts_have_words_and_headings_are_in_order(open_page):
    page = open_page()
    assert page.locator("img").count() >= 5
    assert all(len(image.get_attribute("alt")) > 20 for image in page.locator("img").all())
    assert all(len(plot.get_attribute("aria-label")) > 40 for plot in page.locator("[role=img]").all())
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(late <= early + 1 for early, late in itertools.pairwise(levels))
    unnamed = "[...document.querySelectorAll('button, a, summary')].filter((each) => !each.textContent.trim()).length"
    assert page.evaluate(unnamed) == 0


CONTRASTS = """() => {
    const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const found = [];
    for (const each of document.querySelectorAll("body *")) {
        if (![...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
        if (["SCRIPT", "NOSCRIPT"].includes(each.tagName)) continue;
        let behind = each;
        while (behind && rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        const colours = [getComputedStyle(each).color, getComputedStyle(behind ?? document.body).backgroundColor];
        const [a, b] = colours.map((colour) => luminance(rgb(colour)) + 0.05);
        found.push([Math.max(a, b) / Math.min(a, b), each.outerHTML.slice(0, 80)]);
    }
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(open_page, scheme):
    page = open_page(scheme=scheme)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert [each for each in contrasts if each[0] < 4.5] == []
    assert max(contrast for contrast, _ in contrasts) <= 21


def test_colours_of_the_data_stand_out_from_both_pages(open_page):
    from secateur.report.page.chart import COLOURS

    def luminance(colour):
        values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for colour in COLOURS:
        for behind in ("#ffffff", "#11151a"):
            dark, bright = sorted(luminance(each) + 0.05 for each in (colour, behind))
            assert bright / dark >= 3, (colour, behind)


def test_on_paper_it_is_light_and_without_buttons(open_page):
    page = open_page(scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert not page.locator("[data-download]").first.is_visible()
    assert len(page.pdf()) > 20_000
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 26)"


def test_without_scripts_words_tables_and_images_are_there(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator("#table-layers tbody tr").count() == 3
    assert "need JavaScript" in page.locator("noscript").inner_text()
    assert page.locator(".patterns img").first.is_visible()


def test_a_command_can_be_copied_or_is_selected_where_that_is_forbidden(open_page):
    page = open_page()
    page.locator(".copy").first.click()
    page.wait_for_function("['Copied', 'Selected'].includes(document.querySelector('.copy').textContent)")
