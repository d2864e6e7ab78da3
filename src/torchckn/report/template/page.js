"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";

  /** With so many digits after the point; what rounds to zero has no sign. */
  const fixed = (value, digits) => (Number(value.toFixed(digits)) + 0).toFixed(digits);

  const write = {
    percent: (value) => `${fixed(100 * value, 1)} %`,
    number: (value) => Number(value.toPrecision(4)).toString(),
    step: (value) => `step ${Math.round(value)}`,
    seconds: (value) => `${fixed(value, value < 100 ? 1 : 0)} s`,
    power: (value) => `lambda = 2^${Number(value.toFixed(2))}`,
  };

  function element(parent, name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function html(parent, name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  /** About `count` round numbers that cover the range from low to high. */
  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const first = Math.floor(low / step + 1e-9);
    const last = Math.ceil(high / step - 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }

  const nearest = (places, x) =>
    places.reduce((best, place, i) => (Math.abs(place - x) < Math.abs(places[best] - x) ? i : best), 0);

  class Chart {
    constructor(figure) {
      this.spec = data.charts[figure.dataset.chart];
      this.plot = figure.querySelector(".plot");
      this.readout = figure.querySelector(".readout");
      this.axis = 0;
      this.minor = false;
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.draw()).observe(this.plot);
      this.choose();
    }

    /** Select the lines to show, and move to the point with a ring, or to the last one. */
    choose(axis = this.axis, minor = this.minor) {
      [this.axis, this.minor] = [Math.min(axis, this.spec.axes.length - 1), minor];
      const major = this.spec.series.filter((line) => !line.minor);
      this.lines = (this.minor || !major.length ? this.spec.series : major)
        .map((line) => {
          const all = line.y.map((y, i) => [line.x[this.axis][i], y]);
          const points = all.filter(([, y]) => y !== null);
          return { ...line, points, ring: points.find((point) => point === all[line.marked]) };
        })
        .filter((line) => line.points.length);
      const leading = this.lines.some((line) => !line.minor) ? this.lines.filter((line) => !line.minor) : this.lines;
      this.places = [...new Set(leading.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
      const ring = this.lines.map((line) => line.ring).filter(Boolean).pop();
      this.at = ring ? this.places.indexOf(ring[0]) : this.places.length - 1;
      this.plot.setAttribute("aria-valuemax", this.places.length - 1);
      this.draw();
    }

    draw() {
      const width = this.plot.clientWidth;
      if (!width || !this.lines.length) return;
      const height = Math.max(240, Math.min(340, width * 0.62));
      const box = { left: 50, right: width - 10, top: 10, bottom: height - 44 };
      const xs = this.lines.flatMap((line) => line.points.map(([x]) => x));
      const ys = this.lines.flatMap((line) => line.points.map(([, y]) => y));
      const range = (values) => {
        const [low, high] = [Math.min(...values), Math.max(...values)];
        return low < high ? [low, high] : [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
      };
      const [left, right] = range(xs);
      const yTicks = ticks(...range(ys), 5);
      const [low, high] = [yTicks[0], yTicks[yTicks.length - 1]];
      this.toX = (x) => box.left + ((x - left) / (right - left)) * (box.right - box.left);
      this.toY = (y) => box.bottom - ((y - low) / (high - low)) * (box.bottom - box.top);
      this.fromX = (pixels) => left + ((pixels - box.left) / (box.right - box.left)) * (right - left);
      this.box = box;

      this.plot.replaceChildren();
      const svg = element(this.plot, "svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
      const percent = this.spec.form === "percent";
      for (const y of yTicks) {
        const place = this.toY(y);
        element(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: place, y2: place });
        const label = percent ? `${Number((100 * y).toPrecision(6))} %` : y;
        element(svg, "text", { x: box.left - 8, y: place + 4, "text-anchor": "end" }, label);
      }
      for (const x of ticks(left, right, Math.max(2, Math.floor(width / 110))).filter((x) => x >= left && x <= right)) {
        element(svg, "text", { x: this.toX(x), y: box.bottom + 18, "text-anchor": "middle" }, x);
      }
      const middle = (box.left + box.right) / 2;
      element(svg, "text", { x: middle, y: height - 6, "text-anchor": "middle" }, this.spec.axes[this.axis][0]);
      for (const line of this.lines) this.drawLine(svg, line);
      this.cursor = element(svg, "g", {});
      this.show();
    }

    drawLine(svg, line) {
      const path = line.points.map(([x, y], i) => `${i ? "L" : "M"}${this.toX(x).toFixed(1)},${this.toY(y).toFixed(1)}`);
      const kind = line.minor ? "curve minor" : "curve";
      element(svg, "path", { class: kind, d: path.join(""), stroke: line.colour, "stroke-dasharray": line.dash });
      if (!line.minor && line.points.length <= 60) {
        for (const [x, y] of line.points) {
          element(svg, "circle", { class: "dot", cx: this.toX(x), cy: this.toY(y), r: 3.5, fill: line.colour });
        }
      }
      if (line.ring) {
        const [x, y] = line.ring;
        element(svg, "circle", { class: "ring", cx: this.toX(x), cy: this.toY(y), r: 8, stroke: line.colour });
      }
    }

    /** The values at the cursor: a line through the chart, and the list below it. */
    show() {
      const x = this.places[this.at];
      const place = write[this.spec.axes[this.axis][1]];
      this.cursor.replaceChildren();
      const { top, bottom } = this.box;
      element(this.cursor, "line", { class: "cursor", x1: this.toX(x), x2: this.toX(x), y1: top, y2: bottom });
      this.readout.replaceChildren();
      html(this.readout, "div", "place", place(x));
      const list = html(this.readout, "ul");
      const words = [];
      for (const line of this.lines) {
        const [ownX, y] = line.points[nearest(line.points.map(([own]) => own), x)];
        element(this.cursor, "circle", { class: "dot", cx: this.toX(ownX), cy: this.toY(y), r: 5, fill: line.colour });
        const item = html(list, "li");
        const sample = element(item, "svg", { width: 40, height: 10, "aria-hidden": "true" });
        const stroke = { stroke: line.colour, "stroke-dasharray": line.dash, "stroke-width": line.minor ? 1.25 : 2.5 };
        element(sample, "line", { x1: 0, x2: 40, y1: 5, y2: 5, ...stroke });
        html(item, "span", "name", line.name);
        const value = html(item, "span", "value", write[this.spec.form](y));
        const elsewhere = place(ownX) !== place(x) ? `at ${place(ownX)}` : "";
        if (elsewhere) html(value, "small", "", elsewhere);
        words.push(`${line.name} ${write[this.spec.form](y)} ${elsewhere}`.trim());
      }
      this.plot.setAttribute("aria-valuenow", this.at);
      this.plot.setAttribute("aria-valuetext", `${place(x)}: ${words.join("; ")}`);
    }

    go(index) {
      this.at = Math.max(0, Math.min(this.places.length - 1, index));
      this.show();
    }

    point(event) {
      if (this.lines.length) this.go(nearest(this.places, this.fromX(event.clientX - this.plot.getBoundingClientRect().left)));
    }

    key(event) {
      const moves = {
        ArrowLeft: this.at - 1,
        ArrowDown: this.at - 1,
        ArrowRight: this.at + 1,
        ArrowUp: this.at + 1,
        PageDown: this.at - 10,
        PageUp: this.at + 10,
        Home: 0,
        End: this.places.length - 1,
      };
      if (!(event.key in moves) || !this.lines.length) return;
      event.preventDefault();
      this.go(moves[event.key]);
    }
  }

  const charts = [...document.querySelectorAll(".chart")].filter((figure) => figure.querySelector(".plot"));
  const drawn = new Map(charts.map((figure) => [figure.dataset.chart, new Chart(figure)]));

  const controls = document.querySelector(".controls");
  const update = () => {
    const minor = controls.elements.minor ? controls.elements.minor.checked : false;
    for (const name of ["accuracy", "loss"]) drawn.get(name)?.choose(Number(controls.elements.axis.value), minor);
  };
  controls.addEventListener("change", update);
  update(); // a browser may remember what was chosen before

  for (const box of document.querySelectorAll("[data-filters]")) {
    const { steps, images } = data.filters[Number(box.dataset.filters)];
    const [slider, picture, output] = ["input", ".moving", "output"].map((what) => box.querySelector(what));
    slider.addEventListener("input", () => {
      const index = Number(slider.value);
      picture.src = images[index];
      picture.alt = picture.dataset.alt + steps[index];
      output.textContent = steps[index];
      slider.setAttribute("aria-valuetext", `step ${steps[index]}`);
    });
  }
})();
