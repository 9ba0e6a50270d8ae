// The charts: rows from curves, a Vega-Lite specification, what the pointer shows.

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

// Where a logarithmic scale is labelled: more closely on a short one.
function roundNumbers(low, high) {
  const steps = high / low > 1000 ? [1] : high / low > 5 ? [1, 2, 3, 5] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
  const made = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) made.push(...steps.map((step) => Number(`${step}e${power}`)));
  return made.filter((y) => y >= low && y <= high);
}

function spec(curves, rows, value, xTitle, xs) {
  const as = (field) => ({ field, type: "nominal", scale: null, legend: null });
  const x = {
    field: "x", type: "quantitative", title: xTitle, scale: { type: "log", base: 2, nice: false },
    axis: { values: xs, labelExpr: "datum.value >= 1024 ? format(datum.value / 1024, '~r') + 'K' : format(datum.value, '~r')", labelOverlap: true },
  };
  const domain = range([...rows.plain, ...rows.window, ...rows.truncate]);
  const y = { field: "y", type: "quantitative", title: NAMES[value], scale: { type: state.log ? "log" : "linear", domain, nice: false } };
  if (state.log) y.axis = { values: roundNumbers(...domain) };
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
