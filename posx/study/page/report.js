// The page's behaviour: what is chosen above is what charts and tables show. Text is only ever set as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = { text: 0, protocol: 0, value: "perplexity", control: "both", log: true, off: new Set(), published: new Set(), sort: null, down: false };
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const ON_DARK = { "#000000": "#f2f2f2", "#0072B2": "#4da3e0", "#7F7F7F": "#a6a6a6" };
const NAMES = { perplexity: "perplexity", loss: "loss, nats per token", bits: "bits per byte", ratio: "ratio to truncation" };

const text = () => data.texts[state.text];
const protocol = () => text().protocols[state.protocol];

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) name in node ? (node[name] = value) : node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function tag(n) {
  for (const [unit, name] of [[1 << 20, "M"], [1 << 10, "K"]]) if (n >= unit && (n * 2) % unit === 0) return n / unit + name;
  return String(n);
}

const ink = (colour) => (dark.matches && ON_DARK[colour]) || colour;
const role = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shows = (curve) => !curve.control || state.control === "both" || curve.control === state.control;

// Values.

// The chosen value of a point with its lower and upper bound; null where there is none.
function measure(p, value) {
  const y = p[value], e = p.stderr || 0;
  if (y === null || y === undefined) return null;
  if (value === "perplexity") return [y, y * Math.exp(-e), y * Math.exp(e)];
  const scale = value === "loss" ? 1 : value === "bits" && p.loss ? p.bits / p.loss : 0;
  return [y, y - e * scale, y + e * scale];
}

function spell(p, value) {
  if (value === "perplexity") {
    const error = p.perplexity !== null && p.perplexity < 1000 && p.stderr !== null ? p.perplexity * p.stderr : null;
    return p.shown + (error === null ? "" : " ±" + (error < 10 ? error.toFixed(2) : error.toFixed(0)));
  }
  const m = measure(p, value);
  if (!m) return p.note ? p.shown : "–";
  return m[0] >= 1000 ? m[0].toExponential(1) : m[0].toFixed(3);
}

// Charts.

const COUNT = new Intl.NumberFormat("en");
const FEW = 16; // curves; bands of more would hide each other

// Rows for the charts by kind: plain curves, and each control. Looks and hover text are in the rows, for Vega to take as they are.
function rowsOf(curves, value) {
  const made = { plain: [], window: [], truncate: [] };
  for (const c of curves) {
    const look = { label: c.label, colour: ink(c.colour), dash: c.dash.length ? c.dash : [1, 0], shape: c.shape };
    for (const p of c.points) {
      const m = measure(p, value);
      if (!m || !Number.isFinite(m[0]) || (state.log && m[0] <= 0)) continue;
      made[c.control || "plain"].push({ ...look, x: p.x, y: m[0], low: state.log ? Math.max(m[1], m[0] / 10) : m[1], high: m[2], point: p });
    }
  }
  return made;
}

// What is drawn, controls as well, with a little room; bands may be cut.
function range(rows) {
  if (!rows.length) return [1, 10];
  const low = Math.min(...rows.map((row) => row.y)), high = Math.max(...rows.map((row) => row.y));
  if (!state.log) return [low - 0.04 * (high - low || low), high + 0.04 * (high - low || low)];
  const room = Math.max(1.02, (high / low) ** 0.04);
  return [low / room, high * room];
}

function spec(curves, rows, value, xTitle, xs) {
  const as = (field) => ({ field, type: "nominal", scale: null, legend: null });
  const x = {
    field: "x", type: "quantitative", title: xTitle, scale: { type: "log", base: 2, nice: false },
    axis: { values: xs, labelExpr: "datum.value >= 1024 ? format(datum.value / 1024, '~r') + 'K' : format(datum.value, '~r')", labelOverlap: true },
  };
  const domain = range([...rows.plain, ...rows.window, ...rows.truncate]);
  const y = { field: "y", type: "quantitative", title: NAMES[value], scale: { type: state.log ? "log" : "linear", domain, nice: false } };
  const line = { x, y, color: as("colour"), detail: { field: "label" } };
  // A layer without rows would make the scales complain.
  const layer = (kind, mark, encoding) => (rows[kind].length ? [{ data: { name: kind }, mark: { tooltip: null, invalid: null, ...mark }, encoding }] : []);
  const trained = [...new Set(curves.filter((c) => !c.published).map((c) => c.trained))].map((n) => ({ n }));
  const few = new Set(rows.plain.map((row) => row.label)).size <= FEW;
  const layers = [
    { data: { values: trained }, encoding: { x: { field: "n", type: "quantitative" } }, mark: { type: "rule", strokeDash: [3, 3], color: role("--soft"), tooltip: null } },
    ...layer("truncate", { type: "line", strokeDash: [5, 3], strokeWidth: 1.2, opacity: 0.6 }, line),
    ...layer("window", { type: "line", strokeDash: [1.5, 2.5], strokeWidth: 1.4, opacity: 0.6 }, line),
    ...(few ? layer("plain", { type: "area", opacity: 0.12, clip: true }, { ...line, y: { ...y, field: "low" }, y2: { field: "high" } }) : []),
    ...layer("plain", { type: "line", strokeWidth: 2 }, { ...line, strokeDash: as("dash") }),
    ...layer("plain", { type: "point", filled: true, size: 56, opacity: 1, tooltip: { content: "data" } }, { x, y, color: as("colour"), shape: as("shape") }),
  ];
  const axis = { labelColor: role("--soft"), titleColor: role("--ink"), gridColor: role("--grid"), domainColor: role("--line"), tickColor: role("--line") };
  return {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container", height: 340, background: null, padding: 4,
    autosize: { type: "fit", contains: "padding" }, datasets: rows, layer: layers,
    config: { axis: { ...axis, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" }, view: { stroke: null }, font: "system-ui, sans-serif" },
  };
}

// What a point says when the pointer is on it.
function hover(xTitle) {
  return (handler, event, item) => {
    const box = $("hover"), row = item && item.datum;
    box.hidden = !row || !row.point;
    if (box.hidden) return;
    const p = row.point, at = p.to ? `${COUNT.format(p.from)} to ${COUNT.format(p.to)}` : COUNT.format(p.x);
    const lines = [[xTitle, at], ["perplexity", spell(p, "perplexity")], ["loss", spell(p, "loss")]];
    if (p.bits !== null) lines.push(["bits per byte", spell(p, "bits")]);
    if (p.ratio !== null) lines.push(["ratio to truncation", spell(p, "ratio")]);
    if (p.seeds > 1 && p.stderr !== null) lines.push(["error over seeds", `${p.stderr.toFixed(4)} nats`]);
    if (p.documents_stderr !== null) lines.push(["error over documents", `${p.documents_stderr.toFixed(4)} nats`]);
    lines.push(["from", p.tokens ? `${COUNT.format(p.tokens)} targets, ${p.documents} documents, ${p.seeds} seed${p.seeds === 1 ? "" : "s"}` : "published"]);
    box.replaceChildren(make("b", {}, row.label), make("table", {}, ...lines.map(([name, said]) => make("tr", {}, make("td", {}, name), make("td", {}, said)))));
    // To the side where there is room.
    const left = event.clientX + 14 + box.offsetWidth < window.innerWidth ? event.clientX + 14 : event.clientX - 14 - box.offsetWidth;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, Math.min(event.clientY + 12, window.innerHeight - box.offsetHeight - 4))}px`;
  };
}

const charts = {};

async function draw(id, curves, value, xTitle, xs) {
  const on = curves.filter((c) => !c.control && !state.off.has(c.family + "\n" + c.extension));
  // No curve without its controls: those of an encoding are there as long as any curve of it is.
  const families = new Set(on.map((c) => c.family));
  const rows = rowsOf([...on, ...curves.filter((c) => c.control && shows(c) && families.has(c.family))], value);
  const turn = (charts[id] = charts[id] || { turn: 0 });
  const mine = ++turn.turn;
  const options = { mode: "vega-lite", ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip: hover(xTitle) };
  const made = await vegaEmbed($(id), spec(curves, rows, value, xTitle, xs), options);
  // A later choice has been drawn meanwhile: the page shows that one.
  if (mine !== turn.turn) return made.finalize();
  if (turn.made) turn.made.finalize();
  turn.made = made;
  $(id).setAttribute("aria-busy", "false");
}

function shownPublished() {
  return protocol().published.filter((p) => state.published.has(p.name)).flatMap((p) => p.curves.map((c) => ({ ...c, published: true })));
}

function drawCurves() {
  const beside = shownPublished().map((c) => ({ ...c, points: c.points.map((p) => ({ ...p, bits: null, ratio: null })) }));
  const curves = [...protocol().curves, ...beside];
  const xs = [...new Set(curves.flatMap((c) => c.points.map((p) => p.x)))].sort((a, b) => a - b);
  return draw("curves", curves, state.value, "tokens in the window", xs);
}

function drawPosition() {
  const at = text().positions[$("position-length").selectedIndex];
  $("position-section").hidden = !at;
  if (!at) return $("position").setAttribute("aria-busy", "false");
  const ends = [...new Set(at.curves.flatMap((c) => c.points.map((p) => p.to)))].sort((a, b) => a - b);
  return draw("position", at.curves, state.value === "ratio" ? "loss" : state.value, "position in the window", ends);
}

let waiting = 0;
function redraw() {
  for (const id of ["curves", "position"]) $(id).setAttribute("aria-busy", "true");
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => { drawCurves(); drawPosition(); });
}

// Keys, each a switch.

const SVG = "http://www.w3.org/2000/svg";
function key(curve) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "key");
  svg.setAttribute("viewBox", "0 0 38 14");
  svg.setAttribute("aria-hidden", "true");
  const add = (name, attributes) => {
    const node = document.createElementNS(SVG, name);
    for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
    svg.append(node);
  };
  const colour = ink(curve.colour);
  add("line", { x1: 1, x2: 37, y1: 7, y2: 7, stroke: colour, "stroke-width": 2, "stroke-dasharray": curve.dash.join(" ") || "none" });
  add("path", { d: curve.shape, transform: "translate(19 7) scale(4)", fill: colour });
  return svg;
}

function keys() {
  const wanted = $("find").value.toLowerCase();
  const curves = protocol().curves.filter((c) => !c.control);
  $("runs-toggles").replaceChildren(...curves.filter((c) => c.label.toLowerCase().includes(wanted)).map((c) => {
    const id = c.family + "\n" + c.extension;
    const box = make("input", { type: "checkbox", checked: !state.off.has(id) });
    box.addEventListener("change", () => { box.checked ? state.off.delete(id) : state.off.add(id); redraw(); });
    return make("label", {}, box, key(c), make("span", {}, c.label));
  }));
  $("published-box").hidden = !protocol().published.length;
  $("published").replaceChildren(...protocol().published.map((p) => {
    const box = make("input", { type: "checkbox", checked: state.published.has(p.name) });
    box.addEventListener("change", () => { box.checked ? state.published.add(p.name) : state.published.delete(p.name); keys(); redraw(); });
    const about = `trained at ${tag(p.trained)}; ${p.source}; ${p.setup}${p.note ? "; " + p.note : ""}`;
    const list = box.checked ? p.curves.map((c) => make("div", {}, key(c), " ", c.label)) : [];
    return make("div", {}, make("label", { title: about }, box, make("span", {}, p.title, make("span", { className: "remark" }, ` trained at ${tag(p.trained)}`))),
      ...list, ...(box.checked ? [make("p", { className: "remark" }, about)] : []));
  }));
}

function switchAll(on) {
  const wanted = $("find").value.toLowerCase();
  for (const c of protocol().curves) {
    if (c.control || !c.label.toLowerCase().includes(wanted)) continue;
    on ? state.off.delete(c.family + "\n" + c.extension) : state.off.add(c.family + "\n" + c.extension);
  }
  keys();
  redraw();
}

// Tables.

function head(names) {
  const left = ["curve", "that of"];
  return make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col", className: left.includes(name) ? "name" : "" }, name))));
}

function table() {
  const { curves, lengths } = protocol();
  const value = state.value, at = (c, n) => c.points.find((p) => p.x === n);
  const best = lengths.map((n) => Math.min(...curves.filter((c) => !c.control).map((c) => { const p = at(c, n); const m = p && measure(p, value); return m ? m[0] : Infinity; })));
  const wanted = $("filter").value.toLowerCase();
  const rows = curves.filter((c) => shows(c) && c.label.toLowerCase().includes(wanted));
  if (state.sort !== null) {
    const rank = (c) => { const p = at(c, state.sort), m = p && measure(p, value); return m ? m[0] : Infinity; };
    const order = state.sort === "" ? (a, b) => a.label.localeCompare(b.label) : (a, b) => (rank(a) === rank(b) ? 0 : rank(a) < rank(b) ? -1 : 1);
    // What has no number stays last whichever way.
    rows.sort((a, b) => (state.sort !== "" && (rank(a) === Infinity || rank(b) === Infinity) ? order(a, b) : state.down ? -order(a, b) : order(a, b)));
  }
  const columns = [["", "curve"], ...lengths.map((n) => [n, tag(n)])].map(([where, name]) => {
    const button = make("button", { type: "button" }, name);
    button.addEventListener("click", () => {
      state.down = state.sort === where && !state.down;
      state.sort = where;
      table();
      $("table").querySelectorAll("th button")[where === "" ? 0 : lengths.indexOf(where) + 1].focus();
    });
    const sorted = state.sort !== where ? "none" : state.down ? "descending" : "ascending";
    return make("th", { scope: "col", "aria-sort": sorted }, button);
  });
  $("table").replaceChildren(make("thead", {}, make("tr", {}, ...columns)), make("tbody", {}, ...rows.map((c) => {
    const cells = lengths.map((n, i) => {
      const p = at(c, n), m = p && measure(p, value), first = m && !c.control && m[0] === best[i];
      return make("td", { className: first ? "best" : "", title: p ? p.note : "" }, p ? spell(p, value) + (first ? "*" : "") : "–");
    });
    return make("tr", { className: c.control ? "control" : "" }, make("th", { scope: "row" }, c.label), ...cells);
  })));
  $("matches").textContent = `${rows.length} of ${curves.filter(shows).length} rows`;
}

function rankingTable() {
  const ranked = protocol().ranking[$("ranking-length").selectedIndex];
  const body = (ranked ? ranked.places : []).map((place) => {
    const d = place.difference;
    const shown = !d ? (place.told ? "" : "not tested") : d.half === null ? d.mean.toFixed(4) : `${d.mean.toFixed(4)} ±${d.half.toFixed(4)}`;
    const p = d && d.p !== null ? (d.p < 0.0001 ? "< 0.0001" : d.p.toFixed(4)) : "";
    return make("tr", {}, make("td", {}, place.told ? `${place.rank}.` : `${place.rank}. ?`), make("td", { className: "name" }, place.label),
      make("td", {}, place.perplexity), make("td", {}, shown), make("td", { className: "name" }, place.than), make("td", {}, p));
  });
  $("ranking").replaceChildren(head(["rank", "curve", "perplexity", "loss above", "that of", "p"]), make("tbody", {}, ...body));
}

function runs() {
  const { differing, common } = data;
  $("differences").className = $("common").className = "text";
  $("differences").replaceChildren(head(["run", "curve", "seed", ...differing.filter((k) => k !== "seed")]), make("tbody", {}, ...data.runs.map((r) =>
    make("tr", {}, make("th", { scope: "row" }, r.run), make("td", {}, r.label), make("td", {}, String(r.seed)),
      ...differing.filter((k) => k !== "seed").map((k) => make("td", {}, r.kept ? (k in r.settings ? r.settings[k] : "–") : "not kept"))))));
  $("common").replaceChildren(make("tbody", {}, ...Object.entries(common).map(([k, v]) => make("tr", {}, make("th", { scope: "row" }, k), make("td", {}, v)))));
  $("origins").replaceChildren(...data.runs.map((r) => {
    const o = r.origin, versions = Object.entries(o.versions || {}).map(([k, v]) => `${k} ${v}`).join(", ");
    const lines = [o.command && `command: ${o.command}`, versions && `versions: ${versions}`, o.devices && `devices: ${o.devices.join(", ")}`, o.init_from && `initial weights: ${o.init_from}`];
    for (const [k, v] of Object.entries(o)) if (!["command", "versions", "devices", "init_from"].includes(k) && v) lines.push(`${k}: ${typeof v === "string" ? v : JSON.stringify(v)}`);
    return make("details", {}, make("summary", {}, r.run), make("pre", {}, lines.filter(Boolean).join("\n") || "not kept beside the results"));
  }));
}

// Choices.

function fill(select, names) {
  select.replaceChildren(...names.map((name) => make("option", {}, name)));
}

function chooseProtocol() {
  const p = protocol();
  $("caption").textContent = p.caption.join(" ");
  const marks = { both: "dashed: truncate control; dotted: window control", truncate: "dashed: truncate control", window: "dotted: window control" };
  $("curves-remark").textContent = `Bands: one standard error. ${marks[state.control]}. Vertical line: the trained length.`;
  $("notes").replaceChildren(...p.notes.map((note) => make("li", {}, note)));
  const length = $("ranking-length").value;
  fill($("ranking-length"), p.ranking.map((r) => tag(r.length)));
  $("ranking-length").value = length;
  if ($("ranking-length").selectedIndex < 0) $("ranking-length").selectedIndex = p.ranking.length - 1;
  keys();
  table();
  rankingTable();
  redraw();
}

function chooseText() {
  state.protocol = 0;
  fill($("protocol"), text().protocols.map((p) => p.title));
  fill($("position-length"), text().positions.map((p) => tag(p.length)));
  $("disagreements").replaceChildren(...text().disagreements.map((line) => make("li", {}, `Protocols disagree: ${line}`)));
  chooseProtocol();
}

fill($("text"), data.texts.map((t) => t.name));
$("text").parentElement.hidden = data.texts.length < 2;
$("choices").addEventListener("submit", (event) => event.preventDefault());
$("text").addEventListener("change", () => { state.text = $("text").selectedIndex; chooseText(); });
$("protocol").addEventListener("change", () => { state.protocol = $("protocol").selectedIndex; chooseProtocol(); });
for (const name of ["value", "control"]) $(name).addEventListener("change", () => { state[name] = $(name).value; chooseProtocol(); });
$("log").addEventListener("change", () => { state.log = $("log").checked; redraw(); });
$("ranking-length").addEventListener("change", rankingTable);
$("position-length").addEventListener("change", redraw);
$("filter").addEventListener("input", table);
$("find").addEventListener("input", keys);
$("all").addEventListener("click", () => switchAll(true));
$("none").addEventListener("click", () => switchAll(false));
dark.addEventListener("change", () => { keys(); redraw(); });
runs();
chooseText();
