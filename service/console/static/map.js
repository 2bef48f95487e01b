// Draws maps of results. Each <canvas data-map="..."> fetches its data and shows the cell under the pointer as text.
"use strict";
(() => {
  const LIGHT = { ground: "#ffffff", ink: "#222222", line: "#444444", strongest: 0 };
  const DARK = { ground: "#14171a", ink: "#e8eaed", line: "#c8ced4", strongest: 255 };
  const GREY = "#888888";
  const IMAGE_CELLS = 256; // approximate resolution of the longer side, so that the density is smooth
  const HATCH_PIXELS = 7;
  const LABEL_PIXELS = 12; // least distance of two labels above each other
  const SEAT_PIXELS = 12; // radius of the number of a cluster, with its ring
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const look = () => (scheme.matches ? DARK : LIGHT);
  const MAX_HEIGHT = 520; // pixels, so that a map and its readout fit on one screen
  const EDGE = { left: 52, right: 20, top: 10, bottom: 40 };
  const round = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  const degrees = (value, below, above) => `${round(Math.abs(value))}°${value < 0 ? below : value > 0 ? above : ""}`;

  const turn = (longitude) => (Math.abs(longitude) <= 180 ? longitude : longitude - Math.sign(longitude) * 360 * Math.ceil((Math.abs(longitude) - 180) / 360));
  const meridian = (value) => degrees(turn(value), "W", "E");

  // Returns the place of a value along an axis, 0 at its lower and 1 at its upper bound. The latitude of a place is at its sine,
  // so that areas are as they are on Earth.
  const sine = (latitude) => Math.sin((Math.min(Math.max(latitude, -90), 90) * Math.PI) / 180);
  function share(axis, value) {
    const on = axis.sines ? sine : Number;
    return (on(value) - on(axis.lower)) / (on(axis.upper) - on(axis.lower));
  }

  function valueAt(axis, part) {
    if (!axis.sines) return axis.lower + part * (axis.upper - axis.lower);
    const at = sine(axis.lower) + part * (sine(axis.upper) - sine(axis.lower));
    return (Math.asin(at) * 180) / Math.PI;
  }

  function unpack(text, Kind) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    return new Kind(bytes.buffer);
  }

  function rgb(hex) {
    return [1, 3, 5].map((start) => Number.parseInt(hex.slice(start, start + 2), 16));
  }

  // Returns the ground for tone 0, the hue at 0.62 and beyond it a darker shade, in dark mode a lighter one. In light mode
  // sfumato.plotting.shading.shade uses the same formula.
  function shade(hue, tone) {
    const { ground, strongest } = look();
    const base = rgb(ground);
    const near = Math.min(tone / 0.62, 1);
    const beyond = 0.55 * Math.min(Math.max((tone - 0.62) / 0.38, 0), 1);
    return hue.map((part, channel) => {
      const mixed = base[channel] + (part - base[channel]) * near;
      return mixed + (strongest - mixed) * beyond;
    });
  }

  // Returns the place of a pixel between two cell centres: the lower cell, the higher cell, and the share of the higher. On a
  // circle, the last cell is beside the first.
  function between(pixel, factor, count, { periodic }) {
    const place = (pixel + 0.5) / factor - 0.5;
    const at = periodic ? place : Math.min(Math.max(place, 0), count - 1);
    const low = Math.floor(at);
    const part = at - low;
    return periodic ? [(low + count) % count, (low + 1) % count, part] : [low, Math.min(low + 1, count - 1), part];
  }

  // Draws each cell in the hue of its cluster. The tone is interpolated, unless the cells differ in size.
  function cellImage(map) {
    const { columns, rows, mean, peak, adaptive } = map.cells;
    const factor = Math.max(1, Math.round(IMAGE_CELLS / Math.max(columns, rows)));
    const image = new ImageData(columns * factor, rows * factor);
    const hues = map.colours.map(rgb);
    const tones = map.density === null ? null : map.density.map((value) => (peak > 0 ? Math.log1p(value / mean) / peak : 0));
    for (let y = 0; y < image.height; y += 1) {
      const [low, high, up] = between(y, factor, rows, map.up);
      const row = Math.floor(y / factor);
      for (let x = 0; x < image.width; x += 1) {
        const own = row * columns + Math.floor(x / factor);
        let tone = 0.3;
        if (tones !== null && adaptive) tone = tones[own];
        else if (tones !== null) {
          const [left, right, across] = between(x, factor, columns, map.across);
          const below = tones[low * columns + left] * (1 - across) + tones[low * columns + right] * across;
          const above = tones[high * columns + left] * (1 - across) + tones[high * columns + right] * across;
          tone = below * (1 - up) + above * up;
        }
        image.data.set([...shade(hues[map.labels[own]], tone), 255], 4 * ((image.height - 1 - y) * image.width + x)); // from the top
      }
    }
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  class Drawing {
    constructor(canvas) {
      this.canvas = canvas;
      this.figure = canvas.closest("figure");
      this.isFixed = "fixed" in canvas.dataset; // shows its own pair of features
      this.readout = this.figure.querySelector("[data-readout]");
      canvas.addEventListener("pointermove", (event) => this.describeCell(event));
      canvas.addEventListener("pointerleave", () => this.showText(""));
      new ResizeObserver(() => this.map && this.width !== canvas.clientWidth && this.draw()).observe(canvas);
    }

    async load() {
      const address = new URL(this.canvas.dataset.map, document.baseURI);
      if (!this.isFixed) {
        const view = new FormData(document.querySelector("form[data-view]"));
        for (const name of ["across", "up"]) if (view.has(name)) address.searchParams.set(name, view.get(name));
      }
      const response = await fetch(address, { headers: { accept: "application/json" } });
      if (response.redirected || !response.ok) {
        this.showText(response.redirected ? "The session has ended. Sign in again." : "The map is not available.");
        return;
      }
      const map = await response.json();
      const start = performance.now();
      map.labels = map.cells === null ? null : unpack(map.cells.labels, Uint16Array);
      map.density = map.cells === null || map.cells.density === null ? null : unpack(map.cells.density, Float32Array);
      this.map = map;
      this.paint();
      this.canvas.dataset.milliseconds = String(performance.now() - start);
    }

    // Computes the image again, because its colours depend on the scheme.
    paint() {
      if (!this.map) return;
      this.map.image = this.map.cells === null ? null : cellImage(this.map);
      this.draw();
    }

    x(value) { return EDGE.left + share(this.map.across, value) * this.inner.width; }

    y(value) { return EDGE.top + (1 - share(this.map.up, value)) * this.inner.height; }

    draw() {
      const { canvas, map } = this;
      const shown = new Set(new FormData(document.querySelector("form[data-view]")).getAll("show"));
      const ratio = Math.min(Math.max(map.ratio, 0.5), 4);
      canvas.closest(".beside")?.style.setProperty("--map-width", `${Math.ceil(MAX_HEIGHT * ratio) + EDGE.left + EDGE.right}px`);
      this.width = canvas.clientWidth;
      const height = Math.min(Math.max((this.width - EDGE.left - EDGE.right) / ratio, 80), MAX_HEIGHT);
      const width = Math.max(Math.min(this.width - EDGE.left - EDGE.right, height * ratio), 50); // keeps the aspect ratio
      this.inner = { width, height };
      const pixelRatio = window.devicePixelRatio || 1;
      canvas.width = Math.round(this.width * pixelRatio);
      canvas.height = Math.round((height + EDGE.top + EDGE.bottom) * pixelRatio);
      canvas.style.height = `${height + EDGE.top + EDGE.bottom}px`;
      const pen = canvas.getContext("2d");
      pen.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
      pen.fillStyle = look().ground;
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.save();
      pen.beginPath();
      pen.rect(EDGE.left, EDGE.top, width, height);
      pen.clip();
      if (map.image !== null && shown.has("density")) this.cells(pen);
      if (map.image !== null) this.hatch(pen);
      if (map.image !== null && shown.has("borders")) this.borders(pen);
      this.lines(pen);
      if (shown.has("ellipses")) this.ellipses(pen);
      pen.restore();
      this.axes(pen);
      if (shown.has("centres")) this.numbers(pen);
      this.scaleBar(pen);
    }

    cells(pen) {
      const [wide, high] = this.map.cells.reach;
      pen.imageSmoothingEnabled = false;
      const tall = this.inner.height * high;
      pen.drawImage(this.map.image, EDGE.left, EDGE.top + this.inner.height - tall, this.inner.width * wide, tall);
    }

    // Hatches the cells of doubtful clusters.
    hatch(pen) {
      const { labels, doubtful } = this.map;
      if (!doubtful.includes(true)) return;
      const { columns, rows, reach } = this.map.cells;
      const wide = (this.inner.width * reach[0]) / columns;
      const high = (this.inner.height * reach[1]) / rows;
      const area = new Path2D();
      for (let cell = 0; cell < labels.length; cell += 1) {
        if (!doubtful[labels[cell]]) continue;
        area.rect(EDGE.left + (cell % columns) * wide, EDGE.top + this.inner.height - (Math.floor(cell / columns) + 1) * high, wide, high);
      }
      pen.save();
      pen.clip(area);
      pen.beginPath();
      for (let start = -this.inner.height; start < this.inner.width; start += HATCH_PIXELS) {
        pen.moveTo(EDGE.left + start, EDGE.top + this.inner.height);
        pen.lineTo(EDGE.left + start + this.inner.height, EDGE.top);
      }
      pen.strokeStyle = look().line;
      pen.lineWidth = 0.8;
      pen.stroke();
      pen.restore();
    }

    borders(pen) {
      const { labels, density } = this.map;
      const { columns, rows, adaptive, reach } = this.map.cells;
      const wide = (this.inner.width * reach[0]) / columns;
      const high = (this.inner.height * reach[1]) / rows;
      const bottom = EDGE.top + this.inner.height;
      const edges = (differ) => {
        const path = new Path2D();
        for (let row = 0; row < rows; row += 1) {
          for (let column = 0; column < columns; column += 1) {
            const here = row * columns + column;
            const [x, y] = [EDGE.left + (column + 1) * wide, bottom - (row + 1) * high];
            if (column + 1 < columns && differ(here, here + 1)) { path.moveTo(x, y); path.lineTo(x, y + high); }
            if (row + 1 < rows && differ(here, here + columns)) { path.moveTo(x - wide, y); path.lineTo(x, y); }
          }
        }
        return path;
      };
      if (adaptive) { // outlines the cells, which differ in size
        pen.strokeStyle = "#88888899";
        pen.lineWidth = 0.5;
        pen.stroke(edges((one, other) => density[one] !== density[other]));
      }
      const path = edges((one, other) => labels[one] !== labels[other]);
      pen.strokeStyle = look().ground;
      pen.lineWidth = 2.5;
      pen.stroke(path);
      pen.strokeStyle = look().line;
      pen.lineWidth = 1;
      pen.stroke(path);
    }

    lines(pen) {
      const { map } = this;
      pen.beginPath();
      for (const flat of map.coasts) {
        for (let start = 0; start < flat.length; start += 2) {
          pen[start === 0 ? "moveTo" : "lineTo"](this.x(flat[start]), this.y(flat[start + 1]));
        }
      }
      pen.strokeStyle = look().line;
      pen.lineWidth = 0.7;
      pen.stroke();
      pen.beginPath();
      for (const at of map.meridians) { pen.moveTo(this.x(at), EDGE.top); pen.lineTo(this.x(at), EDGE.top + this.inner.height); }
      for (const at of map.parallels) { pen.moveTo(EDGE.left, this.y(at)); pen.lineTo(EDGE.left + this.inner.width, this.y(at)); }
      pen.strokeStyle = GREY;
      pen.lineWidth = 0.5;
      pen.setLineDash([1, 3]);
      pen.stroke();
      pen.setLineDash([]);
    }

    // On a circle, an ellipse over the seam is drawn at both ends.
    ellipses(pen) {
      const { map } = this;
      const turns = ({ periodic }) => (periodic ? [-1, 0, 1] : [0]);
      pen.strokeStyle = look().ink;
      for (const { centre, reach, apart } of map.centres) {
        const [x, y] = [this.x(centre[0]), this.y(centre[1])];
        pen.lineWidth = 1.3;
        if (apart) { pen.beginPath(); pen.moveTo(x - 5, y); pen.lineTo(x + 5, y); pen.moveTo(x, y - 5); pen.lineTo(x, y + 5); pen.stroke(); }
        if (reach === null) continue;
        const across = Math.abs(this.x(centre[0] + reach[0]) - this.x(centre[0] - reach[0])) / 2;
        const up = Math.abs(this.y(centre[1] + reach[1]) - this.y(centre[1] - reach[1])) / 2;
        pen.beginPath();
        for (const right of turns(map.across)) {
          for (const above of turns(map.up)) {
            const [left, top] = [x + right * this.inner.width, y - above * this.inner.height];
            pen.moveTo(left + across, top);
            pen.ellipse(left, top, across, up, 0, 0, 2 * Math.PI);
          }
        }
        pen.strokeStyle = look().ground;
        pen.lineWidth = 3;
        pen.stroke();
        pen.strokeStyle = look().ink;
        pen.lineWidth = 1.3;
        pen.stroke();
      }
    }

    axes(pen) {
      const { map } = this;
      pen.strokeStyle = GREY;
      pen.lineWidth = 1;
      pen.strokeRect(EDGE.left, EDGE.top, this.inner.width, this.inner.height);
      pen.fillStyle = look().line;
      pen.font = "12px system-ui, sans-serif";
      const label = ({ name, unit }) => (unit ? `${name} (${unit})` : name);
      const ticks = (axis, given) => given.length > 0 ? given : [0, 0.25, 0.5, 0.75, 1].map((part) => axis.lower + part * (axis.upper - axis.lower));
      const bottom = EDGE.top + this.inner.height;
      pen.textAlign = "center";
      const step = this.inner.width < 380 ? 2 : 1; // a phone has room for every second label
      for (const [index, at] of ticks(map.across, map.meridians).entries()) {
        if (index % step === 0) pen.fillText(map.meridians.length > 0 ? meridian(at) : round(at), this.x(at), bottom + 15);
      }
      pen.fillText(label(map.across), EDGE.left + this.inner.width / 2, bottom + 33, this.inner.width);
      pen.textAlign = "right";
      let last = Infinity;
      for (const at of ticks(map.up, map.parallels)) {
        if (last - this.y(at) < LABEL_PIXELS) continue; // near the poles, parallels are closer than their labels
        last = this.y(at);
        pen.fillText(map.parallels.length > 0 ? degrees(at, "S", "N") : round(at), EDGE.left - 5, last + 4, EDGE.left - 18);
      }
      pen.save();
      pen.translate(11, EDGE.top + this.inner.height / 2);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "center";
      pen.fillText(label(map.up), 0, 0, this.inner.height);
      pen.restore();
    }

    numbers(pen) {
      pen.font = "bold 11px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      for (const { cluster, seat } of this.map.centres.toReversed()) { // draw the largest cluster last, on top
        const [x, y] = [this.x(seat[0]), this.y(seat[1])];
        pen.beginPath();
        pen.arc(x, y, 9, 0, 2 * Math.PI);
        pen.fillStyle = look().ground;
        pen.fill();
        pen.strokeStyle = this.map.colours[cluster];
        pen.lineWidth = 2.5;
        pen.stroke();
        pen.fillStyle = look().ink;
        pen.fillText(String(cluster), x, y + 0.5);
      }
      pen.textBaseline = "alphabetic";
    }

    // Returns the start of a scale bar in the first corner without a centre, from the bottom left. If every corner has one,
    // the bar is below the map, between the labels of the axis.
    freeCorner(wide, high) {
      const { width, height } = this.inner;
      const [left, right] = [EDGE.left + 12, EDGE.left + width - wide - 4];
      const [bottom, top] = [EDGE.top + height - 12, EDGE.top + high];
      const centres = this.map.centres.flatMap((each) => [each.seat, each.centre]).map(([across, up]) => [this.x(across), this.y(up)]);
      const isFree = ([x, y]) => centres.every(([cx, cy]) => cx < x - 4 - SEAT_PIXELS || cx > x - 4 + wide + SEAT_PIXELS || cy < y - 20 - SEAT_PIXELS || cy > y + 7 + SEAT_PIXELS);
      return [[left, bottom], [right, bottom], [right, top], [left, top]].find(isFree) ?? [left + width / 4, EDGE.top + height + EDGE.bottom - 8];
    }

    scaleBar(pen) {
      const { scale, across } = this.map;
      if (scale === null) return;
      const long = (scale.degrees / (across.upper - across.lower)) * this.inner.width;
      pen.font = "11px system-ui, sans-serif";
      const wide = Math.max(long, pen.measureText(scale.text).width) + 8;
      const [x, y] = this.freeCorner(wide, 27);
      pen.fillStyle = `${look().ground}cc`;
      pen.fillRect(x - 4, y - 20, wide, 27);
      pen.fillStyle = pen.strokeStyle = look().ink;
      pen.textAlign = "left";
      pen.fillText(scale.text, x, y - 7);
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x, y - 3); pen.lineTo(x, y + 3); pen.moveTo(x, y); pen.lineTo(x + long, y); pen.moveTo(x + long, y - 3); pen.lineTo(x + long, y + 3);
      pen.stroke();
    }

    describeCell(event) {
      const { map } = this;
      if (!map) return;
      const box = this.canvas.getBoundingClientRect();
      const right = (event.clientX - box.left - EDGE.left) / this.inner.width;
      const above = 1 - (event.clientY - box.top - EDGE.top) / this.inner.height;
      if (right < 0 || right >= 1 || above < 0 || above >= 1) { this.showText(""); return; }
      const shown = (axis, value) => round(axis.turns ? turn(value) : value);
      const coordinate = (axis, part) => `${axis.name} ${shown(axis, valueAt(axis, part))}`;
      let text = `${coordinate(map.across, right)}, ${coordinate(map.up, above)}`;
      if (map.cells !== null) {
        const { columns, rows, reach } = map.cells;
        const cell = Math.floor((above / reach[1]) * rows) * columns + Math.floor((right / reach[0]) * columns);
        text += `: cluster ${map.labels[cell]}`;
        if (map.density !== null) text += `, ${(100 * map.density[cell]).toPrecision(3)} % of people in this cell (estimated)`;
      }
      this.showText(text);
    }

    showText(text) { this.readout.textContent = text; }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const maps = [...document.querySelectorAll("canvas[data-map]")].map((canvas) => new Drawing(canvas));
    const form = document.querySelector("form[data-view]");
    for (const hidden of document.querySelectorAll("form[data-view], [data-figure]")) hidden.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => {
      if (event.target.name !== "show") maps.forEach((each) => each.isFixed || each.load());
      else maps.forEach((each) => each.draw());
    });
    scheme.addEventListener("change", () => maps.forEach((each) => each.paint()));
    for (const each of maps) {
      if (!each.isFixed) each.load();
      else each.canvas.closest("details").addEventListener("toggle", () => each.load(), { once: true });
    }
  });
})();
