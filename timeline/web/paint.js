"use strict";
// What is drawn on a canvas. A row is painted span by span; a crowded one, and a strip, pixel by pixel: see `shares`.

const HEIGHTS = { host: 40, copy: 14, compute: 46, strip: 20 };
const ROW_GAP = 5;
const PROCESS_GAP = 12;
const RUN_GAP = 22;
const NAME = 22; // a run's name; a single one's is the page's
const FIGURES = 19; // a line of them
const AXIS = 24;
const NARROW = 600; // a screen whose headings begin at its edge
const SEPARATOR = "  ·  ";
const MOST_WAYS = 80; // more lines are a thicket
const DIMMED = 0.22;

/** Give each run its place, the lines of its heading and its axis, each row its `y` and `height`; return how high all is. */
function layOut(runs, context, width) {
  let y = 4;
  runs.forEach((run, number) => {
    run.y = y + (number ? RUN_GAP : 0);
    run.left = width < NARROW ? 0 : GUTTER;
    context.font = `13px ${FONT}`;
    run.lines = wrapped(context, run.figures, width - run.left - RIGHT);
    run.axis = run.y + (runs.length > 1 ? NAME : 0) + FIGURES * run.lines.length;
    y = run.axis + AXIS;
    run.rows.forEach((row, at) => {
      if (at) y += row.opens ? PROCESS_GAP : ROW_GAP;
      row.y = y;
      row.height = HEIGHTS[row.shows];
      y += row.height;
    });
    run.bottom = y;
  });
  return y + 8;
}

/** Return the lines of a text that may be broken between its parts. */
function wrapped(context, parts, room) {
  const lines = [];
  for (const part of parts) {
    const longer = lines.length ? lines.at(-1) + SEPARATOR + part : "";
    if (longer && context.measureText(longer).width <= room) lines[lines.length - 1] = longer;
    else lines.push(part);
  }
  return lines;
}

/** Return as much of a text as there is room for, with … in its middle if that is not all. */
function shortened(context, text, room) {
  let kept = text.length, short = text;
  while (kept && context.measureText(short).width > room) {
    kept--;
    short = `${text.slice(0, (kept + 1) >> 1)}…${text.slice(text.length - (kept >> 1))}`;
  }
  return short;
}

/** Return {context, width, height} of a canvas with `height` CSS pixels, sharp on this screen. */
function prepare(canvas, height) {
  const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
  const wide = Math.round(width * scale), high = Math.round(height * scale);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.textBaseline = "middle";
  return { context, width, height };
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["paper", "ink", "grey", "lane", "line", "accent", "wait", "tint"]
    .map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const FONT = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

class Painter {
  constructor(canvas, header, view) {
    Object.assign(this, { canvas, header, view });
  }

  /** Paint everything; `selected` is a way of `run`, or null. */
  paint(selected) {
    const high = layOut(this.header.runs, this.canvas.getContext("2d"), this.canvas.clientWidth);
    const { context, width, height } = prepare(this.canvas, high);
    this.view.width = width;
    this.context = context;
    this.look = colours();
    for (const run of this.header.runs) {
      const way = selected && selected.run === run ? selected.way : null;
      this.axis(run, width);
      this.heading(run, width);
      run.rows.forEach((row) => this.label(row));
      context.save();
      context.beginPath();
      context.rect(GUTTER, 0, this.view.room, height);
      context.clip();
      run.rows.forEach((row) => this.row(run, row, selected ? way : undefined));
      this.ways(run, way);
      context.restore();
    }
  }

  /** Draw a run's axis: its times count from where its recording began. */
  axis(run, width) {
    const { context, view, look } = this;
    const step = tickStep(view.perPixel * 90);
    context.font = `12px ${FONT}`;
    context.textAlign = "center";
    context.fillStyle = look.grey;
    context.strokeStyle = look.line;
    context.lineWidth = 1;
    for (let tick = Math.ceil((view.from + run.origin) / step) * step; tick <= view.to + run.origin; tick += step) {
      const x = Math.round(view.x(tick - run.origin)) + 0.5;
      context.beginPath();
      context.moveTo(x, run.axis + AXIS - 6);
      context.lineTo(x, run.bottom);
      context.stroke();
      if (x > GUTTER + 20 && x < width - 30) context.fillText(tick ? timeText(tick, step) : "0", x, run.axis + AXIS / 2 - 1);
    }
  }

  heading(run, width) {
    const { context, look } = this;
    context.textAlign = "left";
    context.fillStyle = look.ink;
    context.font = `600 14px ${FONT}`;
    let y = run.y + FIGURES / 2;
    if (this.header.runs.length > 1) {
      context.fillText(shortened(context, run.name, width - run.left - RIGHT), run.left, y);
      y += NAME;
    }
    context.font = `13px ${FONT}`;
    for (const line of run.lines) {
      context.fillText(line, run.left, y);
      y += FIGURES;
    }
  }

  label(row) {
    const { context, look } = this;
    context.textAlign = "right";
    context.fillStyle = row.shows === "host" ? look.ink : look.grey;
    context.font = row.shows === "host" ? `600 12.5px ${FONT}` : `12px ${FONT}`;
    context.fillText(row.label, GUTTER - 10, row.y + row.height / 2, GUTTER - 14);
  }

  /** `way`: undefined if nothing is selected, null if it is in another run. */
  row(run, row, way) {
    const { context, view, look, header } = this;
    const [first, last] = [Math.max(0, view.x(row.whole[0] - run.origin)), view.x(row.whole[1] - run.origin)];
    context.fillStyle = look.lane;
    context.fillRect(first, row.y, last - first, row.height);
    if (row.shows === "strip") {
      this.shares(run, row, header.shown);
      return;
    }
    const strip = row.shows === "compute" && run.rows.find((other) => other.shows === "strip" && other.process === row.process);
    if (strip) {
      context.globalAlpha = Number(look.tint);
      this.spans(run, { ...strip, shows: "gaps", y: row.y, height: row.height }, header.idle);
      context.globalAlpha = 1;
    }
    if (row.shows === "host") {
      header.palette[header.wait] = look.wait;
      this.spans(run, { ...row, shows: "line", y: row.y + row.height / 2 - 1, height: 2 }, header.waits);
    }
    if (way !== undefined) context.globalAlpha = DIMMED;
    const paint = this.crowded(run, row) ? this.shares : this.spans;
    paint.call(this, run, row, header.work);
    context.globalAlpha = 1;
    if (way) this.spans(run, row, header.work, way.key);
    if (row.height > 20) this.names(run, row, way);
  }

  /** Return whether a row has more spans than pixels. */
  crowded(run, row) {
    const [first, last] = seen(row, this.view.from + run.origin, this.view.to + run.origin);
    return last - first > this.view.room;
  }

  /** Fill the spans whose colour `accepts`; only those of the step `key`, if one is given. */
  spans(run, row, accepts, key = null) {
    const { context, view, header } = this;
    const [first, last] = seen(row, view.from + run.origin, view.to + run.origin);
    const offset = GUTTER - (view.from + run.origin) / view.perPixel, scale = 1 / view.perPixel;
    const dots = window.devicePixelRatio || 1;
    const { start, end, paint, y, height } = row;
    const edge = row.shows === "host" ? 0.75 : 0; // touching steps of a device have no gap
    const shares = new Float64Array(header.palette.length);
    let column = -1, filled = false;
    const flush = () => {
      if (filled && row.shows !== "gaps") this.most(row, column, shares);
      filled = false;
      shares.fill(0);
    };
    for (let i = first; i < last; i++) {
      const colour = paint[i];
      if (!accepts[colour] || (key !== null && keyOf(row, i) !== key)) continue;
      const left = offset + start[i] * scale, width = (end[i] - start[i]) * scale;
      if (width < 1) {
        const at = Math.floor(left);
        if (at !== column) { flush(); column = at; }
        filled = true;
        shares[colour] += width || 1e-6;
        continue;
      }
      context.fillStyle = header.palette[colour];
      const from = Math.round(Math.max(left, GUTTER - 2) * dots) / dots;
      const to = Math.round(Math.min(left + width, view.width) * dots) / dots;
      context.fillRect(from, y, to - from - (width > 4 ? edge : 0), height);
    }
    flush();
  }

  /** Fill a pixel's column with what it has most of, the paler the less that is. */
  most(row, x, shares) {
    const { context, header } = this;
    const before = context.globalAlpha;
    context.globalAlpha = before * Math.min(1, Math.max(0.35, shares.reduce((sum, share) => sum + share)));
    context.fillStyle = header.palette[shares.indexOf(Math.max(...shares))];
    context.fillRect(x, row.y, 1, row.height);
    context.globalAlpha = before;
  }

  /** Fill each column of the screen's dots with all that is in it, one above the other, by shares of its time. */
  shares(run, row, accepts) {
    const { context, view, header } = this;
    const scale = window.devicePixelRatio || 1, count = Math.round(view.room * scale), perDot = view.span / count;
    const origin = view.from + run.origin;
    const left = Math.round(GUTTER * scale), top = Math.round(row.y * scale);
    const high = Math.round((row.y + row.height) * scale) - top;
    const [first, last] = seen(row, origin, view.to + run.origin);
    const shares = new Float64Array(header.palette.length);
    let dot = -1, sum = 0;
    const add = (colour, share) => { shares[colour] += share; sum += share; };
    const flush = () => {
      if (!sum) return;
      let below = 0;
      const all = Math.max(sum, 1);
      shares.forEach((share, colour) => {
        if (!share) return;
        const from = Math.round((below / all) * high), to = Math.round(((below + share) / all) * high);
        context.fillStyle = header.palette[colour];
        context.fillRect(left + dot, top + high - to, 1, to - from);
        below += share;
      });
      shares.fill(0);
      sum = 0;
    };
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    for (let i = first; i < last; i++) {
      if (!accepts[row.paint[i]]) continue;
      const colour = header.plain[row.paint[i]];
      const begin = Math.max(0, (row.start[i] - origin) / perDot), end = Math.min(count, (row.end[i] - origin) / perDot);
      if (end <= begin) continue;
      const at = Math.floor(begin), stop = Math.floor(end);
      if (at !== dot) { flush(); dot = at; }
      if (stop === at) { add(colour, end - begin); continue; }
      add(colour, at + 1 - begin);
      flush();
      context.fillStyle = header.palette[colour];
      context.fillRect(left + at + 1, top, stop - at - 1, high);
      dot = stop;
      if (end > stop) add(colour, end - stop);
    }
    flush();
    context.restore();
  }

  names(run, row, way) {
    const { context, view, header } = this;
    const [first, last] = seen(row, view.from + run.origin, view.to + run.origin);
    if (last - first > 3000) return;
    context.textAlign = "center";
    context.font = `11.5px ${FONT}`;
    for (let i = first; i < last; i++) {
      const kind = header.kinds[row.kind[i]];
      if (!kind.work || (way !== undefined && !(way && keyOf(row, i) === way.key))) continue;
      const left = Math.max(view.x(row.start[i] - run.origin), GUTTER);
      const right = Math.min(view.x(row.end[i] - run.origin), GUTTER + view.room);
      if (right - left < 16) continue;
      const step = row.step[i];
      const text = (step ? [`${kind.name} ${step}`, `${step}`] : [kind.name])
        .find((each) => context.measureText(each).width < right - left - 8);
      if (!text) continue;
      context.fillStyle = (step % 2 && kind.oddInk) || kind.ink;
      context.fillText(text, (left + right) / 2, row.y + row.height / 2 + 0.5);
    }
  }

  /** Draw lines from plans to computations to where they are settled; the selected one's thick. */
  ways(run, selected) {
    const { view, header } = this;
    const starts = run.ways.keys;
    const time = (at) => run.ways.of.get(starts[at]).began - run.origin;
    let low = 0, high = starts.length;
    while (low < high) { const middle = (low + high) >> 1; if (time(middle) < view.from - view.span) low = middle + 1; else high = middle; }
    let until = low;
    while (until < starts.length && until - low <= 3 * MOST_WAYS && time(until) < view.to + view.span) until++;
    if (until - low <= 3 * MOST_WAYS && !selected) {
      for (let at = low; at < until; at++) this.way(run, run.ways.of.get(starts[at]), 1, 0.55);
    }
    if (selected) this.way(run, selected, 2.5, 1);
  }

  way(run, way, width, alpha) {
    const { context, view, header } = this;
    const below = run.rows[way.row];
    const line = (from, row, to, colour) => {
      if (from === null) return;
      context.strokeStyle = colour;
      context.beginPath();
      context.moveTo(view.x(from - run.origin), row.y + row.height);
      context.lineTo(view.x(to - run.origin), below.y);
      context.stroke();
    };
    context.lineWidth = width;
    context.globalAlpha = alpha;
    line(way.planned, run.rows[way.planRow], way.began, header.kinds[header.plan].colour);
    line(way.settled, run.rows[way.settleRow], way.ended, header.kinds[header.settle].colour);
    context.globalAlpha = 1;
  }
}
