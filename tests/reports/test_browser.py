"""A page in a real browser: it loads, zooms, answers the pointer and the keyboard, asks for nothing, fits its window.

The browser is Debian's (`apt-get install chromium`), or the one that CHROMIUM names; Playwright drives it and brings
none of its own. Without one these tests skip; CI has one.
"""

import base64
import os
import random

import pytest
from playwright.sync_api import sync_playwright

import downset as ds
from downset.clusters.model import Cluster, Device, Network
from downset.reports.arena_view import arena_view
from downset.reports.document import Document, Picture, Section, Table, Verdict, columns
from downset.reports.page.memory_figure import memory_figure
from downset.reports.page.render import embedded, render
from downset.reports.page.trade_figure import TradeAxes, TradePoint, trade_figure
from downset.reports.pipeline_documents import served_document, split_document
from downset.results.serving import DeviceUse, Served
from tests.models import branchy_model
from tests.needs import program
from tests.plain_graphs import random_graph

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def browser():
    names = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else ["chromium", "google-chrome"]
    found = program(*names, brings="apt-get install chromium, or name a browser in CHROMIUM")
    with sync_playwright() as playwright:
        # Tests may run as root and in containers, where Chromium's own sandbox and GPU process do not start.
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        running = playwright.chromium.launch(executable_path=found, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Files by name: a fit with long and hostile names, and a pipeline."""
    folder = tmp_path_factory.mktemp("pages")
    graph = random_graph(random.Random(11), 40)
    from dataclasses import replace

    names = ["<script>document.title='owned'</script>", "a" * 300]
    tensors = tuple(
        replace(tensor, name=f"{names[index]}{index}" if index < 2 else tensor.name)
        for index, tensor in enumerate(graph.tensors)
    )
    graph = replace(graph, tensors=tensors)
    order = ds.plan_order(graph)
    ds.report(graph, order, ds.plan_arena(graph, order)).save(folder / "memory.html")
    arena = ds.plan_arena(graph, order)
    nbytes = arena.arena_bytes
    views = [
        replace(arena_view("x", graph, order.steps, arena, bound_bytes=nbytes - nbytes // 99), tail_bytes=nbytes // 9)
    ]
    figure = memory_figure(views, limit_bytes=nbytes + nbytes // 50)
    page = Document(
        "limit",
        "",
        Verdict("plain", "many names close together"),
        (Section("Memory", (Picture(lambda: figure),)),),
    )
    (folder / "limit.html").write_text(render(page))
    network = ds.load(branchy_model(folder / "net.onnx"))
    cluster = Cluster((Device("one", 2e6), Device("two", 1e6)), Network("links", 1e6, 1e-4))
    plan = ds.plan_pipeline(network, cluster, time_limit_s=2)
    (folder / "pipeline.html").write_text(render(split_document(plan, model="net.onnx")))
    uses = tuple(DeviceUse(device.name, 0.3, 0.2, 0.7, 1.0, 0.1, 0.4, 9, 150 << 20) for device in cluster.devices)
    served = Served(9, 9, 1.0, 0.1, plan.period_s, plan.period_s, (0.1, 0.2, 0.3, 0.4), 0.05, 0, uses, ())
    run = served_document(plan, served, model="net.onnx", simulation=ds.simulate(plan, frames=40))
    (folder / "served.html").write_text(render(run))
    return folder


@pytest.fixture(scope="module")
def tab(browser):
    """One page for all tests, without a network: each new one takes a process of the browser."""
    context = browser.new_context(offline=True)
    yield context.new_page()
    context.close()


@pytest.fixture
def opened(tab, pages):
    """`opened(name, width)` -> the page in a window of that width, held to errors and requests when the test ends."""
    wrong, addresses = [], set()
    heard = {
        "console": lambda message: wrong.append(message.text),
        "pageerror": lambda error: wrong.append(str(error)),
        "request": lambda request: wrong.append(request.url) if request.url.split("#")[0] not in addresses else None,
    }

    def call(name, width=1280, scheme="light"):
        addresses.add((pages / name).as_uri())
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.goto((pages / name).as_uri())
        return tab

    for event, hear in heard.items():
        tab.on(event, hear)
    yield call
    for event, hear in heard.items():
        tab.remove_listener(event, hear)
    assert wrong == []


@pytest.mark.parametrize("name", ["memory.html", "pipeline.html", "served.html"])
@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_is_wider_than_the_window(opened, name, width):
    page = opened(name, width)
    for details in page.query_selector_all("summary"):
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    too_wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg, pre') && "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert too_wide == []
    # Text of axes stays readable: a picture is drawn for the width that it has.
    assert page.evaluate("document.querySelector('svg.chart text').getBoundingClientRect().height") >= 9


@pytest.mark.parametrize("width", [400, 1600])
def test_every_column_of_the_devices_of_a_run_can_be_seen(opened, width):
    """All at once in a wide window. In a narrow one the table scrolls inside its box, to the last column."""
    page = opened("served.html", width)
    boxes = page.query_selector_all("#devices .scroll")
    assert [len(box.query_selector_all("th")) for box in boxes] == [7, 10]  # shares of the time; as planned
    last = "e => e.querySelector('th:last-child').getBoundingClientRect().right <= e.getBoundingClientRect().right + 1"
    for box in boxes:
        inside, shown = box.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert (inside <= shown) == (width == 1600)
        assert box.evaluate(last) == (width == 1600)
        box.evaluate("e => { e.scrollLeft = e.scrollWidth }")
        assert box.evaluate(last)
        assert box.evaluate("e => getComputedStyle(e).overflowX") == "auto"


@pytest.mark.parametrize("width", [400, 1600])
def test_no_name_in_a_picture_lies_over_another(opened, width):
    """Boxes of the letters, less the ascent and descent that a line leaves free."""
    page = opened("limit.html", width)
    covered = page.evaluate(
        "[...document.querySelectorAll('.overlay')].flatMap(overlay => {"
        "const boxes = [...overlay.querySelectorAll('text')].filter(e => e.textContent).map(e => {"
        "const b = e.getBoundingClientRect(); return [b.left, b.top + 3, b.right, b.bottom - 3, e.textContent]});"
        "return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => a[0] < b[2] - 1 && b[0] < a[2] - 1 && "
        "a[1] < b[3] && b[1] < a[3]).map(b => [a[4], b[4]]))})"
    )
    assert covered == []
    said = page.evaluate("[...document.querySelectorAll('.overlay text')].map(e => e.textContent)")
    for name in ("arena", "in all", "limit", "bound", "peak"):
        assert any(text.startswith(name) for text in said), (name, said)


def view_box(page, chart=0):
    box = page.evaluate(f"document.querySelectorAll('figure .plot')[{chart}].getAttribute('viewBox')")
    return [float(number) for number in box.split()]


def test_zoom_by_buttons_pointer_and_keyboard(opened):
    page = opened("memory.html")
    first, _, steps, _ = view_box(page)
    page.click("[data-zoom=in]")
    assert view_box(page)[2] == pytest.approx(steps / 2)
    assert view_box(page, 1)[2] == pytest.approx(steps / 2)  # the strip of operators below goes along
    page.focus("figure svg.chart")
    page.keyboard.press("+")
    assert view_box(page)[2] == pytest.approx(steps / 4)
    page.keyboard.press("Shift+ArrowLeft")
    assert view_box(page)[0] < first + steps * 3 / 8
    page.keyboard.press("0")
    assert view_box(page)[:1] + view_box(page)[2:3] == [first, steps]
    page.dblclick("figure svg.chart .frame", position={"x": 30, "y": 30}, force=True)
    assert view_box(page)[2] == pytest.approx(steps / 2)
    page.click("[data-zoom=all]")
    assert view_box(page)[2] == steps


def test_the_pointer_over_a_tensor_tells_what_its_row_says(opened):
    page = opened("memory.html")
    mark = page.query_selector("figure svg.chart [data-r]")
    cells = page.evaluate(
        "r => [...document.getElementById(r).cells].map(c => c.textContent.trim())", mark.get_attribute("data-r")
    )
    assert page.is_hidden("#tip")
    mark.hover(force=True)
    told = page.inner_text("#tip")
    assert page.is_visible("#tip")
    assert [cell for cell in cells if cell not in told] == []
    page.mouse.move(1, 1)
    assert page.is_hidden("#tip")
    assert page.title() != "owned"


def test_a_click_marks_the_tensor_everywhere_and_enter_opens_its_row(opened):
    page = opened("memory.html")
    mark = page.query_selector("figure svg.chart [data-r]")
    row = mark.get_attribute("data-r")
    mark.click(force=True)
    assert page.eval_on_selector_all(".marks .on", "marks => new Set(marks.map(m => m.dataset.r)).size") == 1
    assert page.inner_text(".detail")
    page.focus("figure svg.chart")
    page.keyboard.press("Enter")
    assert page.is_visible(f"#{row}")
    page.keyboard.press("ArrowRight")
    assert page.eval_on_selector(".marks .on", "mark => mark.dataset.r") != row
    page.keyboard.press("Escape")
    assert page.query_selector(".marks .on") is None and page.inner_text(".detail") == ""


def test_dark_and_light_have_other_colours_and_enough_contrast(opened):
    """At least 4.5 to 1 between text and what is behind it, as the accessibility guidelines ask."""
    surfaces = set()
    for scheme in ("light", "dark"):
        page = opened("memory.html", scheme=scheme)
        colours = page.evaluate(
            "[...document.querySelectorAll('h1, .subtitle, .verdict h2, figcaption, a, summary, th')].map(e => {"
            "let at = e; while (getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)') at = at.parentElement;"
            "return [getComputedStyle(e).color, getComputedStyle(at).backgroundColor]})"
        )
        surfaces.add(colours[0][1])
        for ink, surface in colours:
            lighter, darker = sorted((luminance(ink), luminance(surface)), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (scheme, ink, surface)
    assert len(surfaces) == 2


def luminance(colour):
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(browser, pages, tmp_path):
    (tmp_path / "notebook.html").write_text(embedded((pages / "memory.html").read_text()))
    page = browser.new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("figure svg.chart")
    frame.click("[data-zoom=in]")
    assert frame.evaluate("document.querySelector('svg.chart').classList.contains('zoomed')")
    page.close()


def test_without_scripts_the_pictures_are_there(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((pages / "memory.html").as_uri())
    assert page.locator("figure svg.chart .axes text").count() > 5
    context.close()


_COUNT = """async ([png, colour]) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  let count = 0;
  for (let k = 0; k < data.length; k += 4) count += colour.every((part, c) => Math.abs(data[k + c] - part) < 4);
  return count;
}"""


@pytest.mark.parametrize("seconds", [1e-6, 1e-3, 10.0])
@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_dots_are_drawn_whatever_the_costs(tab, tmp_path, width, seconds):
    """Chromium leaves out dots whose plot is much less than one unit wide: the pixels of each colour are counted."""
    points = [TradePoint(0.0, 100.0, "original"), TradePoint(0.4 * seconds, 60.0, "chosen"), TradePoint(seconds, 40.0)]
    table = Table(columns("a"), [(str(place),) for place in range(3)])
    figure = trade_figure("t", points, table, TradeAxes("cost", "s", "bytes"))
    path = tmp_path / "t.html"
    path.write_text(render(Document("t", "", Verdict("plain", "v"), (Section("Choices", (Picture(lambda: figure),)),))))
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(path.as_uri())
    for style in ("c8", "c6", "c5"):
        dot = tab.locator(f".dot.{style}").first
        colour = dot.evaluate("dot => getComputedStyle(dot).stroke.match(/[0-9]+/g).slice(0, 3).map(Number)")
        png = base64.b64encode(tab.locator("svg .plot").first.screenshot()).decode()
        assert tab.evaluate(_COUNT, [png, colour]) > 12, style


def test_it_prints(browser, pages):
    page = browser.new_page()
    page.goto((pages / "memory.html").as_uri())
    page.emulate_media(media="print")
    assert page.is_hidden(".tools") and page.is_visible("figure svg.chart")
    assert page.pdf().startswith(b"%PDF")
    page.close()
