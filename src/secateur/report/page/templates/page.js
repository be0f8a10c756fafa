"use strict";

// Theme: what the system prefers, or what the reader chose. A page on disk may have no storage: then it forgets.
const themes = ["auto", "light", "dark"];
const stored = { get: () => { try { return localStorage.getItem("secateur-theme"); } catch { return null; } },
                 set: (name) => { try { localStorage.setItem("secateur-theme", name); } catch { /* forgets */ } } };
let theme = themes.includes(stored.get()) ? stored.get() : "auto";

function applyTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
  colourCharts();
}

document.getElementById("theme").addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  stored.set(theme);
  applyTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colourCharts);
addEventListener("beforeprint", () => {
  applyTheme("light");
  if (typeof Bokeh !== "undefined") {
    for (const view of Bokeh.index) view.paint?.();  // now: paper does not wait for the next frame
  }
});
addEventListener("afterprint", () => applyTheme(theme));

// Charts take text, axes and grids from the page; the colours of the data suit both themes.
function colourCharts() {
  if (typeof Bokeh === "undefined") return;
  const style = getComputedStyle(document.documentElement);
  const [ink, muted, line] = ["--ink", "--muted", "--line"].map((name) => style.getPropertyValue(name).trim());
  for (const document_ of Bokeh.documents) {
    for (const model of document_._all_models.values()) {
      if (model.type.endsWith("Axis")) {
        model.setv({ axis_label_text_color: muted, major_label_text_color: muted,
                     axis_line_color: line, major_tick_line_color: line });
      } else if (model.type === "Grid" && model.dimension === 1) model.grid_line_color = line;
      else if (model.tags.includes("ink")) {
        if (model.type === "Label") model.text_color = ink;
        else model.line_color = muted;
      }
    }
  }
}

async function unpacked(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const drawn = new Map();  // the Bokeh document of every chart, by the chart's name

async function drawCharts(root) {
  const places = [...document.querySelectorAll(".plot")];
  const packed = (id) => unpacked(root.getElementById(id));
  if (places.length) {
    try {
      if (typeof Bokeh === "undefined") {
        const library = document.createElement("script");
        library.textContent = await packed("library");
        document.head.append(library);
      }
      const items = JSON.parse(await packed("items"));
      for (const place of places) {
        const name = place.dataset.chart;
        if (!place.childElementCount || !refreshed(drawn.get(name), items[name])) await draw(place, items[name]);
      }
    } catch (error) {
      for (const place of places) {
        if (!place.childElementCount) place.textContent = "This browser is too old to draw the chart; its numbers are below.";
      }
      console.warn(error);
    }
  }
  colourCharts();
  document.documentElement.dataset.ready = "yes";
}

// Draw a chart out of sight, then put it in the place of what was there: the place is never empty.
async function draw(place, item) {
  const next = place.cloneNode(false), name = place.dataset.chart;
  forget(drawn.get(name));
  next.id = `${place.id}-next`;
  next.classList.add("unseen");
  place.after(next);
  await Bokeh.embed.embed_item(item, next.id);
  drawn.set(name, Bokeh.documents.at(-1));
  place.remove();
  next.id = place.id;
  next.classList.remove("unseen");
}

function forget(document_) {
  const index = Bokeh.documents.indexOf(document_);
  if (index >= 0) Bokeh.documents.splice(index, 1);
}

// What changes in a chart while a run goes on. If anything else has changed, the chart is drawn anew.
const changing = { ColumnDataSource: ["data"], Range1d: ["start", "end"], FixedTicker: ["ticks"], Span: ["location"],
                   BoxAnnotation: ["left", "right"], Label: ["x", "text"], Line: [], Quad: [], Scatter: [] };

function refreshed(document_, item) {
  if (!document_) return false;
  const wanted = document_.constructor.from_json(item.doc);
  forget(wanted);
  const [before, after] = [document_, wanted].map((each) =>
    [...each.roots()[0].references()].filter((model) => model.type in changing));
  if (before.length !== after.length || before.some((model, index) => model.type !== after[index].type)) return false;
  before.forEach((model, index) => {
    model.setv(Object.fromEntries(changing[model.type].map((name) => [name, after[index][name]])));
  });
  return true;
}

// Tables: a heading sorts by its column, numbers by value; largest first at the first click, as one mostly wants.
function keyOf(row, column) {
  const key = row.cells[column].dataset.key;
  if (key === undefined) return null;
  return Number.isNaN(Number(key)) ? key : Number(key);
}

function sortBy(heading, direction) {
  const table = heading.closest("table"), column = heading.cellIndex, body = table.tBodies[0];
  for (const each of table.tHead.rows[0].cells) each.setAttribute("aria-sort", each === heading ? direction : "none");
  const rows = [...body.rows].map((row) => [row, keyOf(row, column) ?? (row.cells[column].dataset.key === undefined
    && !row.cells[column].textContent.startsWith("–") ? row.cells[column].textContent.trim() : null)]);
  const sign = direction === "ascending" ? 1 : -1;
  rows.sort(([, a], [, b]) => {
    if (a === null || b === null) return (a === null) - (b === null);  // what is not known stays at the end
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  });
  body.append(...rows.map(([row]) => row));
}

// Numbers of the charts: to be downloaded, or read as a table.
let numbers = JSON.parse(document.getElementById("numbers").textContent);

function rowsOf(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, index) => names.map((name) => columns[name][index] ?? ""));
}

function asCsv(columns) {
  const quoted = (value) => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  return [Object.keys(columns), ...rowsOf(columns)].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

function download(button) {
  const { title, columns } = numbers[button.dataset.chart], kind = button.dataset.download;
  const text = kind === "csv" ? asCsv(columns) : JSON.stringify({ title, columns }, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind === "csv" ? "text/csv" : "application/json" }));
  link.download = `${button.dataset.chart}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function showNumbers(details) {
  if (!details.open || details.querySelector("table")) return;
  const { title, columns } = numbers[details.dataset.table];
  const region = document.createElement("div"), table = document.createElement("table");
  region.className = "scroll";
  region.tabIndex = 0;
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", `Numbers of ${title}`);
  const shown = (value) => typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 6 }) : value;
  const fill = (row, kind, values) => values.forEach((value) => {
    const cell = row.appendChild(document.createElement(kind));
    cell.textContent = shown(value);
    if (kind === "th") cell.scope = "col";
  });
  fill(table.createTHead().insertRow(), "th", Object.keys(columns));
  const body = table.createTBody();
  for (const values of rowsOf(columns)) fill(body.insertRow(), "td", values);
  region.append(table);
  details.append(region);
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {  // a page on disk may not: select it instead
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

// Say under a table that part of it lies beyond the edge, until the reader has scrolled there.
function hint(region) {
  const left = region.scrollWidth - region.clientWidth - region.scrollLeft;
  region.nextElementSibling?.classList.toggle("needed", left > 1);
}

// Give the headings, buttons and details of a part of the page what they do.
function wire(root) {
  for (const heading of root.querySelectorAll("thead th[aria-sort]")) {
    heading.querySelector("button").addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const first = heading.cellIndex === 0 ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      sortBy(heading, before === first ? other : first);
    });
    if (heading.getAttribute("aria-sort") !== "none") sortBy(heading, heading.getAttribute("aria-sort"));
  }
  for (const button of root.querySelectorAll("[data-download]")) button.addEventListener("click", () => download(button));
  for (const details of root.querySelectorAll("[data-table]")) details.addEventListener("toggle", () => showNumbers(details));
  for (const button of root.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
  for (const region of root.querySelectorAll(".sheet .scroll")) {
    region.addEventListener("scroll", () => hint(region), { passive: true });
    new ResizeObserver(() => hint(region)).observe(region);
  }
}

// A run in progress: put what a newer page says into this one and keep the reader's place, the order of tables, what is
// open and what has the focus. Returns false if the text is no page of a run.
async function updatePage(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  if (!fresh.getElementById("numbers")) return false;
  const before = document.querySelector("main"), after = document.adoptNode(fresh.querySelector("main"));
  const reachable = (root) => [...root.querySelectorAll("a, button, summary, [tabindex]")];
  const focus = reachable(before).indexOf(document.activeElement), top = scrollY;
  const sorted = [...before.querySelectorAll("[aria-sort=ascending], [aria-sort=descending]")]
    .map((heading) => [heading.closest("table").id, heading.cellIndex, heading.getAttribute("aria-sort")]);
  const open = [...before.querySelectorAll("details[open]")].map((details) => details.dataset.table);
  for (const place of after.querySelectorAll(".plot")) {
    const chart = before.querySelector(`#${CSS.escape(place.id)}`);
    if (!chart) continue;
    chart.setAttribute("aria-label", place.getAttribute("aria-label"));
    place.replaceWith(chart);
  }
  document.title = fresh.title;
  for (const part of [".badges", "nav"]) document.querySelector(part)?.replaceWith(document.adoptNode(fresh.querySelector(part)));
  before.replaceWith(after);
  numbers = JSON.parse(fresh.getElementById("numbers").textContent);
  wire(after);
  for (const [table, column, direction] of sorted) {
    const heading = document.getElementById(table)?.tHead.rows[0].cells[column];
    if (heading) sortBy(heading, direction);
  }
  for (const name of open) after.querySelector(`details[data-table="${CSS.escape(name)}"]`)?.setAttribute("open", "");
  if (focus >= 0) reachable(after)[focus]?.focus({ preventScroll: true });
  scrollTo({ top, behavior: "instant" });
  await drawCharts(fresh);
  return true;
}

applyTheme(theme);
wire(document);
drawCharts(document);
