// The page's behaviour: what is chosen above is what charts and tables show.

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

function grid() {
  const g = data.grids[$("grid-choice").selectedIndex];
  const most = g.share ? 1 : Math.max(0.5, ...g.rows.flatMap((r) => r.values.map((v) => Math.abs(v || 0))));
  const cell = (v) => {
    const td = make("td", {}, v === null ? "–" : v.toFixed(2));
    if (v !== null) td.style.background = `color-mix(in srgb, var(${v < 0 ? "--below" : "--mark"}) ${Math.round((55 * Math.abs(v)) / most)}%, transparent)`;
    return td;
  };
  $("grid").replaceChildren(make("caption", {}, g.title), head([g.corner, ...g.columns]), make("tbody", {}, ...g.rows.map((r) =>
    make("tr", {}, make("th", { scope: "row" }, r.name), ...r.values.map(cell)))));
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
$("grid-choice").addEventListener("change", grid);
dark.addEventListener("change", () => { if (data.texts.length) { keys(); redraw(); } });
runs();
fill($("grid-choice"), data.grids.map((g) => g.title));
$("grid-section").hidden = !data.grids.length;
if (data.grids.length) grid();
// A study of tasks alone has no losses of a text.
for (const part of [$("choices"), ...document.querySelectorAll(".of-text")]) part.hidden = part.hidden || !data.texts.length;
if (data.texts.length) chooseText();
