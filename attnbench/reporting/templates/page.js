"use strict";
// Everything from records is written as text (textContent), never as HTML.
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  function make(name, text, attributes = {}) {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  function draw(parent, name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  // Light and dark: the system's choice until the switch is used.
  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const nameToggle = () => { toggle.textContent = isDark() ? "Light colours" : "Dark colours"; };
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameToggle();
  });
  systemDark.addEventListener("change", nameToggle);
  nameToggle();
  toggle.hidden = false;

  // Sorting. Cells without a value stay at the end, whichever way.
  function keyOf(row, index, kind) {
    const cell = row.cells[index];
    if (kind === "text") return cell.textContent.trim();
    return cell.dataset.sort === "" ? null : Number(cell.dataset.sort);
  }

  function sort(table, header, output) {
    const kind = header.dataset.kind;
    const first = kind === "score" ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const direction = header.getAttribute("aria-sort") === first ? other : first;
    const sign = direction === "ascending" ? 1 : -1;
    for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", direction);
    const body = table.tBodies[0];
    const keyed = Array.from(body.rows, (row) => [keyOf(row, header.cellIndex, kind), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (kind === "text" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    });
    body.append(...keyed.map(([, row]) => row));
    output.textContent = `sorted by ${header.querySelector("span").textContent}, ${direction}`;
  }

  // Filtering: all words must occur.
  const words = (input) => input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (text, wanted) => wanted.every((word) => text.includes(word));

  function filterRows(table, form, output) {
    const wanted = words(form.elements.rows);
    const stale = !form.elements.stale || form.elements.stale.checked;
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const visible = holds(row.cells[0].textContent.toLowerCase(), wanted) && (stale || !row.classList.contains("stale"));
      row.hidden = !visible;
      shown += visible;
    }
    output.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
  }

  function filterColumns(table, form, output) {
    const wanted = words(form.elements.columns);
    const heads = Array.from(table.tHead.rows[0].cells);
    const hidden = heads.map((head) => "task" in head.dataset && !holds(head.dataset.task.toLowerCase(), wanted));
    for (const row of table.rows) {
      for (let index = 0; index < hidden.length; index += 1) row.cells[index].hidden = hidden[index];
    }
    const tasks = heads.filter((head) => "task" in head.dataset);
    output.textContent = `${tasks.filter((head) => !head.hidden).length} of ${tasks.length} tasks`;
  }

  for (const form of document.querySelectorAll("form.tools")) {
    const table = document.getElementById(form.dataset.for);
    const output = form.querySelector("output");
    for (const head of table.tHead.rows[0].cells) {
      const button = make("button", undefined, { type: "button" });
      const label = make("span", head.firstChild.textContent.trim());
      button.append(label, ...Array.from(head.childNodes).slice(1));
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(table, head, output));
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.elements.rows.addEventListener("input", () => filterRows(table, form, output));
    if (form.elements.columns) form.elements.columns.addEventListener("input", () => filterColumns(table, form, output));
    if (form.elements.stale) form.elements.stale.addEventListener("change", () => filterRows(table, form, output));
    form.hidden = false;
  }

  // What a cell opens.
  const data = JSON.parse(document.getElementById("data").textContent);
  const dialog = document.getElementById("cell");

  function list(facts) {
    const names = make("dl");
    for (const [name, value] of facts) {
      if (value === "") names.append(make("dt", name, { class: "part" }));
      else names.append(make("dt", name), make("dd", value));
    }
    return names;
  }

  function folded(title, parts) {
    const element = make("details");
    element.append(make("summary", title));
    element.addEventListener("toggle", () => {
      if (element.childElementCount === 1) element.append(...parts.map((place) => list(data.parts[place])));
    });
    return element;
  }

  const number = (value) => String(Number(value.toPrecision(4)));

  function line(svg, kind, steps, values, [left, right, top, bottom], low, high, span) {
    const x = (step) => left + ((step - steps[0]) / (span || 1)) * (right - left);
    const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
    const points = values.map((value, index) => `${x(steps[index]).toFixed(1)},${y(value).toFixed(1)}`);
    if (points.length > 1) draw(svg, "polyline", { class: kind, points: points.join(" ") });
    else draw(svg, "circle", { class: kind, cx: x(steps[0]), cy: y(values[0]), r: 3 });
    return x;
  }

  function curve(run) {
    const { step, validation, loss, best, of } = run.curve;
    const [width, height, left, right, top, bottom] = [560, 220, 46, 500, 30, 180];
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("class", "curve");
    svg.setAttribute("role", "img");
    const last = step.length - 1;
    const said = `Learning curve of seed ${run.seed}: validation ${number(validation[0])} at step ${step[0]}, ` +
      `${number(validation[last])} at step ${step[last]}; training loss ${number(loss[0])} to ${number(loss[last])}.`;
    svg.setAttribute("aria-label", said);
    draw(svg, "title", {}, said);
    draw(svg, "path", { class: "axis", fill: "none", d: `M${left} ${top}V${bottom}H${right}V${top}` });
    const box = [left, right, top, bottom];
    const ends = (values, floor) => [Math.min(floor, ...values), Math.max(...values)];
    const span = step[last] - step[0];
    const [low, high] = ends(validation, 0);
    const [least, most] = ends(loss, 0);
    const x = line(svg, "validation", step, validation, box, low, Math.max(high, 1e-9), span);
    line(svg, "loss", step, loss, box, least, Math.max(most, 1e-9), span);
    if (best !== null) draw(svg, "path", { class: "best", d: `M${x(best)} ${top}V${bottom}` });
    draw(svg, "text", { class: "validation", x: left, y: 16 }, "validation score, left");
    draw(svg, "text", { class: "loss", x: right, y: 16, "text-anchor": "end" }, "training loss, right");
    const scale = [[left - 4, "end", low, high], [right + 4, "start", least, most]];
    for (const [place, anchor, from, to] of scale) {
      draw(svg, "text", { x: place, y: bottom, "text-anchor": anchor }, number(from));
      draw(svg, "text", { x: place, y: top + 8, "text-anchor": anchor }, number(to));
    }
    draw(svg, "text", { x: left, y: bottom + 18 }, String(step[0]));
    const many = of > step.length ? ` (${step.length} of ${of} points)` : "";
    const middle = `step${best === null ? "" : `; tested at ${best}`}${many}`;
    draw(svg, "text", { x: (left + right) / 2, y: bottom + 18, "text-anchor": "middle" }, middle);
    draw(svg, "text", { x: right, y: bottom + 18, "text-anchor": "end" }, String(step[last]));
    return svg;
  }

  function block(run, open) {
    const element = make("details", undefined, { class: "run" });
    element.open = open;
    element.append(make("summary", `Seed ${run.seed}: ${[run.score, run.status].filter(Boolean).join(", ")}`));
    element.append(list(run.facts), make("code", run.command));
    if (run.curve) element.append(curve(run));
    element.append(folded("Configuration", run.configuration), folded("Environment", run.environment));
    return element;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-cell]");
    if (!button) return;
    const cell = data.cells[Number(button.dataset.cell)];
    document.getElementById("cell-title").textContent = cell.title;
    const runs = cell.runs.map((run) => block(run, cell.runs.length === 1));
    document.getElementById("cell-body").replaceChildren(list(cell.facts), ...runs);
    dialog.showModal();
    dialog.scrollTop = 0;
  });
  document.getElementById("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
})();
