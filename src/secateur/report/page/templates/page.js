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

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function drawCharts() {
  const places = [...document.querySelectorAll(".plot")];
  if (places.length) {
    try {
      const library = document.createElement("script");
      library.textContent = await unpacked("library");
      document.head.append(library);
      const items = JSON.parse(await unpacked("items"));
      for (const place of places) await Bokeh.embed.embed_item(items[place.dataset.chart], place.id);
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

for (const heading of document.querySelectorAll("thead th[aria-sort]")) {
  heading.querySelector("button").addEventListener("click", () => {
    const before = heading.getAttribute("aria-sort");
    const first = heading.cellIndex === 0 ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    sortBy(heading, before === first ? other : first);
  });
  if (heading.getAttribute("aria-sort") !== "none") sortBy(heading, heading.getAttribute("aria-sort"));
}

// Numbers of the charts: to be downloaded, or read as a table.
const numbers = JSON.parse(document.getElementById("numbers").textContent);

function rowsOf(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, index) => names.map((name) => columns[name][index] ?? ""));
}

function asCsv(columns) {
  const quoted = (value) => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  return [Object.keys(columns), ...rowsOf(columns)].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

for (const button of document.querySelectorAll("[data-download]")) {
  button.addEventListener("click", () => {
    const { title, columns } = numbers[button.dataset.chart], kind = button.dataset.download;
    const text = kind === "csv" ? asCsv(columns) : JSON.stringify({ title, columns }, null, 1);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind === "csv" ? "text/csv" : "application/json" }));
    link.download = `${button.dataset.chart}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

for (const details of document.querySelectorAll("[data-table]")) {
  details.addEventListener("toggle", () => {
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
  });
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {  // a page on disk may not: select it instead
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

applyTheme(theme);
drawCharts();
