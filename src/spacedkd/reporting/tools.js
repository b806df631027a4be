"use strict";
/* Everything can be read without this script. It shows values under the pointer (or the arrow keys), enlarges a
   chart that is clicked (or Enter) until the next click (or Escape), and makes files of tables and pictures. A chart's values are those of the table of numbers beside it. */
{
  const make = (name, text, class_) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (class_) made.className = class_;
    return made;
  };
  const plain = (text) => text.replace(/\u2212/g, "-").replace(/\u2009/g, "").replace(/\s+/g, " ").trim();
  const isShown = (element) => element !== null && getComputedStyle(element).display !== "none";
  const drawing = (name, attributes) => {
    const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return made;
  };

  /* values under the pointer */

  const readChart = (svg) => {
    const table = svg.parentElement.querySelector("details.numbers table");
    const heads = [...table.tHead.rows[0].cells];
    const columns = heads.map((cell, place) => ({ key: cell.dataset.line, name: cell.textContent, place }));
    const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
    const number = (text) => parseFloat(plain(text));
    const scale = ([low, high, start, stop]) => (value) => start + ((value - low) / (high - low)) * (stop - start);
    const [x, y] = [svg.dataset.x, svg.dataset.y].map((text) => text.split(" ").map(Number));
    const pictured = rows.filter((row) => number(row[0]) >= x[0]);
    return { columns: columns.filter((one) => one.key), rows: pictured, number, x, y, toX: scale(x), toY: scale(y) };
  };

  const watch = (svg) => {
    let chart, tip, marks, at = -1;
    const hide = () => { tip?.remove(); marks?.remove(); tip = marks = undefined; at = -1; };
    const show = (row) => {
      hide();
      at = row;
      const cells = chart.rows[row], x = chart.toX(chart.number(cells[0]));
      marks = drawing("g", { "aria-hidden": "true", class: "marks" });
      marks.append(drawing("line", { class: "cross", x1: x, x2: x, y1: chart.y[3], y2: chart.y[2] }));
      tip = make("div", undefined, "tip");
      tip.setAttribute("role", "status");
      tip.append(make("b", `epoch ${cells[0]}`));
      const drawnAs = (column) => svg.querySelector(`g.${column.key} path.all`);
      const found = chart.columns
        .map((column) => ({ ...column, line: drawnAs(column), value: chart.number(cells[column.place]) }))
        .filter((one) => isShown(svg.querySelector(`g.${one.key}`)) && !Number.isNaN(one.value))
        .sort((one, other) => other.value - one.value);
      for (const one of found) {
        const y = chart.toY(one.value), line = make("div"), colour = one.line ? getComputedStyle(one.line).stroke : "";
        if (y >= chart.y[3] && y <= chart.y[2]) {
          const dot = drawing("circle", { class: "under", cx: x, cy: y, r: 3.6 });
          dot.style.fill = colour;
          marks.append(dot);
        }
        const key = drawing("svg", { viewBox: "0 0 18 8" });
        if (one.line) key.append(drawing("path", { d: "M0 4L18 4", class: one.line.getAttribute("class") }));
        line.append(key, make("span", one.name), make("span", cells[one.place]));
        tip.append(line);
      }
      svg.append(marks);
      svg.parentElement.append(tip);
      const box = svg.getBoundingClientRect(), near = svg.parentElement.getBoundingClientRect();
      const shift = (x / svg.viewBox.baseVal.width) * box.width;
      const left = shift > box.width / 2 ? shift - tip.offsetWidth - 14 : shift + 14;
      tip.style.left = `${Math.max(0, Math.min(left, near.width - tip.offsetWidth))}px`;
      tip.style.top = `${box.top - near.top + 18}px`;
    };
    const begin = () => (chart ??= readChart(svg));
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), [low, high, start, stop] = begin().x;
      const place = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const wanted = low + ((place - start) / (stop - start)) * (high - low);
      const far = chart.rows.map((row) => Math.abs(chart.number(row[0]) - wanted));
      const nearest = far.indexOf(Math.min(...far));
      if (nearest !== at) show(nearest);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    const zoom = (on) => {
      hide();
      const { width, height } = svg.viewBox.baseVal;
      svg.parentElement.classList.toggle("zoomed", on);
      svg.style.width = on ? `min(100%, ${((75 * width) / height).toFixed(1)}vh)` : "";
    };
    const isZoomed = () => svg.parentElement.classList.contains("zoomed");
    svg.classList.add("zooms");
    svg.addEventListener("click", () => zoom(!isZoomed()));
    svg.addEventListener("keydown", (event) => {
      const last = begin().rows.length - 1;
      const back = at < 0 ? last : Math.max(0, at - 1), on = Math.min(last, at + 1);
      const to = { ArrowLeft: back, ArrowRight: on, Home: 0, End: last }[event.key];
      if (event.key === "Escape") zoom(false);
      if (event.key === "Enter") zoom(!isZoomed());
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  };

  /* tables as CSV and LaTeX */

  const part = (cell, selector) => plain([...cell.querySelectorAll(selector)].map((one) => one.textContent).join(" "));
  const readCell = (cell) => {
    const rest = cell.cloneNode(true);
    rest.querySelectorAll(".half, .verdict, small").forEach((one) => one.remove());
    const half = part(cell, ".half").replace(/^\u00b1\s*/, "");
    return { text: plain(rest.textContent), half, verdict: part(cell, ".verdict"), note: part(cell, "small") };
  };
  const readTable = (table) => ({
    heads: [...table.tHead.rows[0].cells].map((cell) => plain(cell.textContent)),
    rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map(readCell)),
  });

  const csv = (table) => {
    const { heads, rows } = readTable(table);
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
    const columns = heads.flatMap((head, place) =>
      [["text", head], ["half", `${head} \u00b1`], ["verdict", `${head}, verdict`], ["note", `${head}, note`]]
        .filter(([name]) => name === "text" || rows.some((row) => row[place][name]))
        .map(([name, title]) => ({ title, of: (row) => row[place][name].replace(/^\u2013$/, "") })));
    const lines = [columns.map((one) => one.title), ...rows.map((row) => columns.map((one) => one.of(row)))];
    return lines.map((line) => line.map(quoted).join(",") + "\n").join("");
  };

  const WRITTEN = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", '"': "''", "[": "{[}",
    "\u2013": "--", "\u00b1": "$\\pm$", "\u00d7": "$\\times$",
  };
  const escaped = (text) =>
    text.replace(/[\\~^<>|"[\u2013\u00b1\u00d7]|[{}$&#%_]/g, (letter) => WRITTEN[letter] ?? `\\${letter}`)
      .replace(/(^|[\s(])-(?=\d)/g, "$1$-$");
  const latex = (table) => {
    const { heads, rows } = readTable(table);
    const cell = ({ text, half, note }, place) =>
      escaped(text) + (half ? ` $\\pm$ ${escaped(half)}` : "") + (note && place ? ` (${escaped(note)})` : "");
    return [
      "% needs \\usepackage{booktabs}", "\\begin{table}[t]", "\\centering",
      `\\caption{${escaped(plain(table.caption.textContent))}}`, `\\begin{tabular}{l${"r".repeat(heads.length - 1)}}`,
      "\\toprule", `${heads.map(escaped).join(" & ")} \\\\`, "\\midrule",
      ...rows.map((row) => `${row.map(cell).join(" & ")} \\\\`), "\\bottomrule", "\\end{tabular}", "\\end{table}", "",
    ].join("\n");
  };

  /* pictures as SVG: everything drawn inside an element, and its words, each where it stands */

  const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray",
    "stroke-linecap", "stroke-linejoin", "font-size", "font-weight", "font-family", "text-anchor"];
  const copied = (element) => {
    const copy = element.cloneNode(false), style = getComputedStyle(element);
    ["class", "tabindex", "role", "data-x", "data-y"].forEach((name) => copy.removeAttribute(name));
    STYLES.forEach((name) => copy.setAttribute(name, style.getPropertyValue(name)));
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) copy.append(child.textContent);
      else if (isShown(child) && child.getAttribute("class") !== "marks") copy.append(copied(child));
    }
    return copy;
  };
  const MARGIN = 10;
  const WORDS = "h3, small, .name, .value, .group-name, .legend li, .shown";
  const picture = (holder) => {
    const keys = legendFor(holder);
    const outer = holder.getBoundingClientRect();
    const whole = drawing("svg", {}), parts = [];
    let bottom = 0;
    for (const element of holder.querySelectorAll(`svg, ${WORDS}`)) {
      const box = element.getBoundingClientRect(), style = getComputedStyle(element);
      if (!box.width || element.closest("details, .tip, .tools") || element.parentElement.closest("svg")) continue;
      const [x, y] = [box.left - outer.left, box.top - outer.top];
      bottom = Math.max(bottom, y + box.height);
      if (element.matches("svg")) {
        const copy = copied(element);
        const place = { x, y, width: box.width, height: box.height, overflow: "visible" };
        for (const name in place) copy.setAttribute(name, place[name]);
        parts.push(copy);
        continue;
      }
      const words = [...element.childNodes].filter((one) => one.nodeType === Node.TEXT_NODE && one.textContent.trim());
      for (const one of words) {
        const range = document.createRange();
        range.selectNodeContents(one);
        const place = range.getBoundingClientRect(), size = parseFloat(style.fontSize);
        const text = drawing("text", {
          x: place.left - outer.left, y: place.top - outer.top + place.height / 2 + 0.35 * size, fill: style.color,
          "font-size": size, "font-weight": style.fontWeight, "font-family": style.fontFamily,
        });
        text.textContent = one.textContent;
        parts.push(text);
      }
    }
    keys?.remove();
    const size = { width: outer.width + 2 * MARGIN, height: bottom + 2 * MARGIN };
    const around = { x: -MARGIN, y: -MARGIN, ...size, fill: getComputedStyle(document.body).backgroundColor };
    whole.setAttribute("viewBox", `${-MARGIN} ${-MARGIN} ${size.width} ${size.height}`);
    for (const name in size) whole.setAttribute(name, size[name]);
    whole.append(drawing("rect", around), ...parts);
    return new XMLSerializer().serializeToString(whole);
  };
  const legendFor = (holder) => {
    /* the arms that are shown, below a picture of arms, as long as it is copied */
    const boxes = [...document.querySelectorAll(".chooser label")].filter((label) => {
      const box = label.querySelector("input");
      return box.checked && holder.querySelector(`g.${box.id.replace("show-", "")}`);
    });
    if (!boxes.length || holder.querySelector(".legend")) return undefined;
    const list = make("ul", undefined, "legend");
    for (const label of boxes) {
      const item = make("li");
      item.append(label.querySelector("svg").cloneNode(true), label.textContent);
      list.append(item);
    }
    holder.append(list);
    return list;
  };

  /* buttons */

  const nameOf = (element) =>
    plain(element.textContent).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "table";
  const save = (text, name, type) => {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const button = (words, said, action) => {
    const made = make("button", words);
    made.type = "button";
    made.setAttribute("aria-label", said);
    made.addEventListener("click", () => action(made));
    return made;
  };
  const copy = (tools, text, pressed) => {
    const area = tools.nextElementSibling?.matches("textarea") ? tools.nextElementSibling : make("textarea");
    area.readOnly = true;
    area.value = text;
    area.setAttribute("aria-label", "LaTeX of the table");
    tools.after(area);
    area.select();
    const done = () => { pressed.textContent = "LaTeX copied"; };
    navigator.clipboard?.writeText(text).then(done, () => document.execCommand("copy") && done());
  };
  const tools = (...buttons) => {
    const made = make("div", undefined, "tools");
    made.append(...buttons);
    return made;
  };
  const csvButton = (table, name) =>
    button("CSV", `Download ${name} as CSV`, () => save(csv(table), `${name}.csv`, "text/csv"));
  const svgButton = (holder, name) =>
    button("SVG", `Download ${name} as SVG`, () => save(picture(holder), `${name}.svg`, "image/svg+xml"));

  document.querySelectorAll("svg[data-x]").forEach(watch);
  for (const holder of document.querySelectorAll(".panel, figure:not(:has(.panel))")) {
    const name = nameOf(holder.querySelector("h3").firstChild), table = holder.querySelector("details.numbers table");
    const made = tools(...(table ? [csvButton(table, name)] : []), svgButton(holder, name));
    const numbers = holder.querySelector("details.numbers");
    if (numbers) numbers.before(made);
    else holder.append(made);
  }
  for (const table of document.querySelectorAll(".scroll > table")) {
    if (table.closest("details.numbers")) continue;
    const name = nameOf(table.caption);
    const toLatex = button("LaTeX", `Copy ${name} as LaTeX`, (pressed) => copy(made, latex(table), pressed));
    const made = tools(csvButton(table, name), toLatex);
    table.parentElement.after(made);
  }
  const chooser = document.querySelector(".chooser");
  if (chooser) {
    const all = (checked) => () => chooser.querySelectorAll("input").forEach((box) => { box.checked = checked; });
    chooser.append(button("all", "Show all arms", all(true)), button("none", "Hide all arms", all(false)));
  }
}
