"use strict";
// Zoom, hover and keyboard of the page's charts. A chart's plot is in data units: zooming changes its viewBox, and the
// axes and labels around it are drawn again. What a rectangle says stands in the table row that its data-r names.
(() => {
  const NS = "http://www.w3.org/2000/svg", LEFT = 86, RIGHT = 14, CHARACTER = 6.4;
  const tip = document.getElementById("tip");
  const charts = [];
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  function size(bytes) {
    for (const [factor, unit] of [[2 ** 30, "GB"], [2 ** 20, "MB"], [1024, "KB"]])
      if (Math.abs(bytes) >= factor) {
        const value = bytes / factor;
        return `${Math.abs(value) >= 100 ? value.toFixed(0) : +value.toPrecision(3)} ${unit}`;
      }
    return `${Math.round(bytes)} B`;
  }
  function tickText(value, unit, extent) {
    if (unit === "bytes") return size(value);
    if (unit === "share") return `${+(value * 100).toPrecision(4)}%`;
    if (unit === "µs") return tickText(value / 1e6, "s", extent / 1e6);
    if (unit === "s") {
      const [factor, name] = extent >= 1 ? [1, "s"] : extent >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
      return `${+(value * factor).toPrecision(6)} ${name}`;
    }
    return (+value.toPrecision(6)).toLocaleString("en-US");
  }
  function ticks(low, high, unit, count) {
    const extent = high - low;
    const scale = unit === "bytes" ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(extent, 1)) / Math.log(1024))) : 1;
    const rough = extent / scale / count, power = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * (1 - 1e-9)) * scale;
    if (scale > 1 && rough < 1) step = 2 ** Math.ceil(Math.log2(rough)) * scale;
    if (unit === "steps" || unit === "count") step = Math.max(1, step);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + extent * 1e-9; k++) found.push(k * step);
    return found;
  }
  function shortened(text, most) {
    if (text.length <= most) return text;
    if (most < 3) return text.slice(0, Math.max(most, 0));
    const tail = Math.floor((most - 1) / 2);
    return text.slice(0, most - 1 - tail) + "…" + text.slice(text.length - tail);
  }
  function add(parent, name, attributes, text) {
    const element = document.createElementNS(NS, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  class Chart {
    constructor(svg) {
      this.svg = svg;
      this.g = JSON.parse(svg.dataset.chart);
      this.plot = svg.querySelector(".plot");
      this.figure = svg.closest("figure");
      this.lanes = this.g.y[2] === "lanes";
      this.x = [this.g.x[0], this.g.x[1]];
      this.y = [this.g.y[0], this.g.y[1]];
      this.marks = [...this.plot.querySelectorAll("[data-r]")];
    }
    get zoomed() { return this.x[0] > this.g.x[0] || this.x[1] < this.g.x[1] || this.y[0] > this.g.y[0] || this.y[1] < this.g.y[1]; }
    px(x) { return LEFT + (x - this.x[0]) / (this.x[1] - this.x[0]) * this.width; }
    py(y) {
      const share = (y - this.y[0]) / (this.y[1] - this.y[0]);
      return this.g.top + (this.lanes ? share : 1 - share) * this.g.height;
    }
    draw() {
      const full = Math.max(this.svg.parentNode.clientWidth, 240), g = this.g;
      this.width = full - LEFT - RIGHT;
      const height = g.height + (g.bare ? 14 : 44);
      this.svg.setAttribute("viewBox", `0 0 ${full} ${height}`);
      for (const box of [this.plot, this.svg.querySelector(".frame")]) box.setAttribute("width", this.width);
      const down = this.lanes ? this.y[0] - g.y[0] : g.y[1] - this.y[1];
      this.plot.setAttribute("viewBox", `${this.x[0]} ${down} ${this.x[1] - this.x[0]} ${this.y[1] - this.y[0]}`);
      this.svg.classList.toggle("zoomed", this.zoomed);
      this.axes();
      this.overlay();
    }
    axes() {
      const g = this.g, axes = this.svg.querySelector(".axes"), floor = g.top + g.height;
      axes.textContent = "";
      if (!g.bare) {
        for (const tick of ticks(this.x[0], this.x[1], g.x[2], clamp(Math.floor(this.width / 85), 3, 8))) {
          const at = this.px(tick);
          add(axes, "path", {class: "grid", d: `M${at} ${g.top}V${floor}`});
          const anchor = at < LEFT + 8 ? "start" : "middle"; // beside the label of the other axis's first tick
          add(axes, "text", {x: at, y: floor + 14, "text-anchor": anchor}, tickText(tick, g.x[2], this.x[1] - this.x[0]));
        }
        add(axes, "text", {x: LEFT + this.width / 2, y: floor + 30, "text-anchor": "middle"}, g.x[3]);
      }
      if (this.lanes) {
        g.names.forEach((name, lane) =>
          add(axes, "text", {x: LEFT - 6, y: this.py(lane + 0.5) + 4, "text-anchor": "end"}, shortened(name, 12)));
        return;
      }
      for (const tick of ticks(this.y[0], this.y[1], g.y[2], g.height < 150 ? 4 : 6)) {
        const at = this.py(tick);
        add(axes, "path", {class: "grid", d: `M${LEFT} ${at}H${LEFT + this.width}`});
        add(axes, "text", {x: LEFT - 6, y: at + 4, "text-anchor": "end"}, tickText(tick, g.y[2], this.y[1] - this.y[0]));
      }
      add(axes, "text", {transform: `translate(13 ${g.top + g.height / 2}) rotate(-90)`, "text-anchor": "middle"}, g.y[3]);
    }
    overlay() {
      // Names of levels, moments and rectangles, in this order: what finds no room is left out.
      const g = this.g, taken = [];
      const inside = (x, y) => x >= LEFT && x <= LEFT + this.width && y >= g.top && y <= g.top + g.height;
      const take = (x, y, wide) => {
        const box = [x - wide, y - 10, x, y + 3];
        if (box[0] < LEFT || x > LEFT + this.width + 1) return false;
        if (taken.some(b => box[0] < b[2] && b[0] < box[2] && box[1] < b[3] && b[1] < box[3])) return false;
        taken.push(box);
        return true;
      };
      const place = (note, text, x, y) => {
        note.textContent = text;
        note.setAttribute("x", x);
        note.setAttribute("y", y);
      };
      const notes = [...this.svg.querySelectorAll(".overlay .note")];
      const named = notes.filter(one => one.dataset.y !== undefined), lines = named.map(one => this.py(+one.dataset.y));
      const crossed = foot => lines.some(line => foot - 10 < line && line < foot + 3);
      for (const note of named) {
        const at = this.py(+note.dataset.y), full = note.dataset.text;
        const tried = [];
        for (const text of [full, full.split(", ")[0]])
          for (const right of [LEFT + this.width - 4, ...taken.map(box => box[0] - 8).sort((a, b) => b - a)])
            for (const foot of [at - 4, at + 13]) tried.push([text, right, foot]);
        tried.sort((a, b) => crossed(a[2]) - crossed(b[2]));
        const found = inside(LEFT, at) && tried.find(([text, right, foot]) => take(right, foot, text.length * 7));
        place(note, ...(found || ["", LEFT, at]));
      }
      for (const note of notes.filter(one => one.dataset.x !== undefined)) {
        const at = this.px(+note.dataset.x), late = at > LEFT + 0.6 * this.width, wide = note.dataset.text.length * 7;
        const x = at + (late ? -5 : 5), feet = Array.from({length: Math.floor(g.height / 14)}, (_, k) => g.top + 12 + 14 * k);
        const foot = inside(at, g.top) && feet.find(y => take(late ? x : x + wide, y, wide));
        note.setAttribute("text-anchor", late ? "end" : "start");
        place(note, foot ? note.dataset.text : "", x, foot || g.top + 12);
      }
      for (const label of this.svg.querySelectorAll(".overlay .label")) {
        const [x, y, w, h] = label.dataset.at.split(" ").map(Number);
        const left = Math.max(x - w / 2, this.x[0]), right = Math.min(x + w / 2, this.x[1]);
        const wide = (right - left) / (this.x[1] - this.x[0]) * this.width, high = h / (this.y[1] - this.y[0]) * g.height;
        const room = Math.floor(wide / CHARACTER), at = [this.px((left + right) / 2), this.py(y)];
        const text = room >= 6 && high >= 12 && inside(...at) ? shortened(label.dataset.text, room) : "";
        const width = text.length * CHARACTER;
        place(label, text && take(at[0] + width / 2, at[1] + 4, width) ? text : "", at[0], at[1] + 4);
      }
    }
    limit(window, low, high, least) {
      const extent = clamp(window[1] - window[0], least, high - low);
      const start = clamp(window[0], low, high - extent);
      return [start, start + extent];
    }
    show(x, y) {
      const least = this.g.x[2] === "steps" ? 4 : (this.g.x[1] - this.g.x[0]) / 2000;
      const wanted = this.limit(x, this.g.x[0], this.g.x[1], Math.min(least, this.g.x[1] - this.g.x[0]));
      for (const other of charts) {
        if (other !== this && (other.figure !== this.figure || other.g.x[2] !== this.g.x[2])) continue;
        other.x = other.limit(wanted, other.g.x[0], other.g.x[1], 1e-12);
        if (other === this && y && this.g.y[2] === "bytes")
          this.y = this.limit(y, this.g.y[0], this.g.y[1], (this.g.y[1] - this.g.y[0]) / 500);
        other.draw();
      }
    }
    zoom(factor, x, y) {
      const around = (window, at) => window.map(end => at + (end - at) * factor);
      x = x ?? (this.x[0] + this.x[1]) / 2;
      this.show(around(this.x, x), y === undefined ? undefined : around(this.y, y));
    }
    all() {
      this.y = [this.g.y[0], this.g.y[1]];
      this.show([this.g.x[0], this.g.x[1]], this.y);
    }
    pan(dx, dy) {
      this.show(this.x.map(end => end + dx), dy ? this.y.map(end => end + dy) : undefined);
    }
    at(event) {
      const box = this.svg.getBoundingClientRect(), scale = (this.width + LEFT + RIGHT) / box.width;
      const across = (event.clientX - box.left) * scale - LEFT, down = (event.clientY - box.top) * scale - this.g.top;
      const share = down / this.g.height;
      return [this.x[0] + across / this.width * (this.x[1] - this.x[0]),
              this.y[0] + (this.lanes ? share : 1 - share) * (this.y[1] - this.y[0])];
    }
  }

  const row = mark => document.getElementById(mark.dataset.r);
  function told(line) {
    const names = [...line.closest("table").tHead.rows[0].cells].map(cell => cell.textContent);
    return [...line.cells].map((cell, place) => [names[place], cell.textContent.trim()]).filter(([, text]) => text);
  }
  function showTip(mark, x, y) {
    const line = mark && row(mark);
    tip.hidden = !line;
    if (!line) return;
    tip.textContent = "";
    told(line).forEach(([name, text], place) => {
      const part = tip.appendChild(document.createElement(place ? "div" : "b"));
      if (place) part.appendChild(document.createElement("span")).textContent = `${name} `;
      part.append(text);
    });
    const box = tip.getBoundingClientRect();
    tip.style.left = `${clamp(x + 14, 4, innerWidth - box.width - 4)}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  }
  function select(chart, id) {
    for (const other of charts) {
      if (other.figure !== chart.figure) continue;
      for (const mark of other.marks) mark.classList.toggle("on", id !== undefined && mark.dataset.r === id);
    }
    for (const line of chart.figure.querySelectorAll("tr.on")) line.classList.remove("on");
    chart.figure.selected = id;
    const line = id === undefined ? null : document.getElementById(id);
    if (line) line.classList.add("on");
    chart.figure.querySelector(".detail").textContent =
      line ? told(line).map(([name, text], place) => place ? `${name} ${text}` : text).join(" · ") : "";
  }
  function open(chart) {
    const line = chart.figure.selected && document.getElementById(chart.figure.selected);
    if (!line) return;
    const details = line.closest("details");
    if (details) details.open = true;
    line.scrollIntoView({block: "center"});
  }
  function walk(chart, way) {
    const ids = [...new Set(chart.marks.map(mark => mark.dataset.r))];
    if (!ids.length) return;
    const at = ids.indexOf(chart.figure.selected);
    const next = at < 0 ? (way > 0 ? 0 : ids.length - 1) : clamp(at + way, 0, ids.length - 1);
    select(chart, ids[next]);
  }
  function keys(chart, event) {
    const step = (chart.x[1] - chart.x[0]) / 5;
    const actions = {
      "+": () => chart.zoom(0.5), "=": () => chart.zoom(0.5), "-": () => chart.zoom(2), "0": () => chart.all(),
      Enter: () => open(chart), Escape: () => { select(chart); tip.hidden = true; chart.all(); },
      ArrowRight: () => event.shiftKey ? chart.pan(step) : walk(chart, 1),
      ArrowLeft: () => event.shiftKey ? chart.pan(-step) : walk(chart, -1),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  for (const svg of document.querySelectorAll("figure svg.chart")) {
    const chart = new Chart(svg);
    charts.push(chart);
    let from = null, moved = false;
    svg.addEventListener("pointermove", event => {
      if (from) {
        const [x, y] = chart.at(event);
        if (Math.abs(event.clientX - from.clientX) + Math.abs(event.clientY - from.clientY) > 4) moved = true;
        if (moved && chart.zoomed) chart.pan(from.x - x, from.y - y);
        tip.hidden = true;
        return;
      }
      showTip(event.target.closest?.("[data-r]"), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; from = null; });
    svg.addEventListener("pointerdown", event => {
      const [x, y] = chart.at(event);
      from = {x, y, clientX: event.clientX, clientY: event.clientY};
      moved = false;
    });
    svg.addEventListener("pointerup", () => { from = null; });
    svg.addEventListener("click", event => {
      if (moved) return;
      const mark = event.target.closest("[data-r]");
      select(chart, mark ? mark.dataset.r : undefined);
    });
    svg.addEventListener("dblclick", event => { event.preventDefault(); chart.zoom(0.5, ...chart.at(event)); });
    svg.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      chart.zoom(event.deltaY > 0 ? 1.25 : 0.8, ...chart.at(event));
    }, {passive: false});
    svg.addEventListener("keydown", event => keys(chart, event));
  }
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      const chart = charts.find(one => one.figure === button.closest("figure"));
      const all = charts.filter(one => one.figure === button.closest("figure"));
      if (!chart) return;
      if (button.dataset.zoom === "all") all.forEach(one => one.all());
      else chart.zoom(button.dataset.zoom === "in" ? 0.5 : 2);
    });
  }
  const redraw = () => charts.forEach(chart => chart.draw());
  let waits = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waits); waits = requestAnimationFrame(redraw); });
  addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});
  redraw();
})();
