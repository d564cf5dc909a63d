// What the pages need besides htmx: plots, the live tail, copying, and keys.
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PLOT_EVERY_MS = 10_000;
const TAIL_ROWS_MAX = 200;

function short(value, unit) {
  if (value == null) return "";
  const step = unit === "bytes" ? 1024 : 1000;
  const units = unit === "bytes" ? ["B", "KB", "MB", "GB", "TB"] : ["", "k", "M", "G", "T"];
  let at = 0;
  while (Math.abs(value) >= step && at < units.length - 1) { value /= step; at += 1; }
  const digits = Number.isInteger(value) ? 0 : value < 10 ? 2 : 1;
  return `${value.toFixed(digits)} ${units[at]}`.trim();
}

// ---- Plots

const BYTE_STEPS = Array.from({ length: 45 }, (_, power) => 2 ** power);
const clock = (at, hasSeconds) => new Date(at * 1000).toISOString().slice(11, hasSeconds ? 19 : 16);

function showPoint(plot, box, unit) {
  const at = plot.cursor.idx;
  const value = at == null ? null : plot.data[1][at];
  box.parentElement.querySelector("[data-point]").textContent = value == null ? "" : `${clock(plot.data[0][at], true)} UTC: ${short(value, unit)}${unit === "bytes" ? "" : ` ${unit}`}`;
}

function options(box, unit) {
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width: box.clientWidth, height: 180, legend: { show: false }, cursor: { y: false },
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    hooks: { setCursor: [(plot) => showPoint(plot, box, unit)] },
    scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, space: 70, size: 32, values: (_, ticks, __, ___, step) => ticks.map((at) => clock(at, step < 60)) },
      { ...axis, size: 66, values: (_, ticks) => ticks.map((tick) => short(tick, unit)), ...(unit === "bytes" ? { incrs: BYTE_STEPS } : {}) }],
    series: [{}, { label: unit, stroke: color("--accent"), width: 2, fill: color("--accent-fill"), points: { show: false } }],
  };
}

async function draw(box) {
  const response = await fetch(box.dataset.plot, { headers: { accept: "application/json" } });
  if (!response.ok) return;
  const { times, values } = await response.json();
  if (values.filter((value) => value != null).length < 2) return;
  if (box.drawn) { box.drawn.setData([times, values]); return; }
  box.replaceChildren();
  box.drawn = new uPlot(options(box, box.dataset.unit), [times, values], box);
  box.dataset.drawn = "1";
}

function plots() {
  const boxes = $$("[data-plot]");
  if (!boxes.length || typeof uPlot === "undefined") return;
  const all = () => boxes.forEach((box) => draw(box).catch(() => {}));
  all();
  setInterval(() => { if (!document.hidden) all(); }, PLOT_EVERY_MS);
  addEventListener("resize", () => boxes.forEach((box) => box.drawn?.setSize({ width: box.clientWidth, height: 180 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => boxes.forEach((box) => { box.drawn?.destroy(); box.drawn = null; draw(box).catch(() => {}); }));
}

// ---- Live tail

function cell(row, text, name) {
  const td = row.insertCell();
  td.textContent = text;
  td.className = name;
  return td;
}

function tail(section) {
  const button = section.querySelector("[data-tail-toggle]");
  const state = section.querySelector("[data-tail-state]");
  const box = section.querySelector(".table-box");
  const body = section.querySelector("tbody");
  let source = null;
  const stop = (text) => { source?.close(); source = null; button.setAttribute("aria-pressed", "false"); button.textContent = "Follow live"; state.textContent = text; };
  button.addEventListener("click", () => {
    if (source) { stop("stopped"); return; }
    const form = new FormData(document.querySelector("form.search"));
    const query = new URLSearchParams([...form].filter(([name, value]) => value && ["key", "text", "where", "partition"].includes(name)));
    source = new EventSource(`${section.dataset.tail}?${query}`);
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Stop";
    state.textContent = "connecting";
    box.hidden = false;
    source.addEventListener("ready", () => { state.textContent = "follows"; });
    source.addEventListener("over", () => stop("ended after 15 minutes"));
    source.addEventListener("failed", (event) => stop(JSON.parse(event.data)));
    source.onerror = () => stop("the connection was lost");
    source.onmessage = (event) => {
      const record = JSON.parse(event.data);
      const row = body.insertRow(0);
      cell(row, record.partition, "num");
      const link = document.createElement("a");
      link.href = `${section.dataset.tail.replace(/tail$/, "messages")}/${record.partition}/${record.offset}`;
      link.textContent = record.offset.toLocaleString("en");
      cell(row, "", "num").append(link);
      cell(row, record.time, "nowrap");
      cell(row, record.key, "mono key");
      cell(row, record.value, "mono value");
      while (body.rows.length > TAIL_ROWS_MAX) body.deleteRow(-1);
      state.textContent = record.leftOut ? `follows; ${record.leftOut} were too fast to show` : "follows";
    };
  });
}

// ---- Copying and keys

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; } catch { button.textContent = "Not allowed"; }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  } else if (before === "g") {
    const link = document.querySelector(`.main-nav [data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); location.href = link.href; }
  }
  before = before === "g" ? "" : event.key;
});

plots();
$$("[data-tail]").forEach(tail);
