"use strict";
// What is drawn on a canvas. A row is painted span by span; what is narrower than a pixel is merged into its column.

const HEIGHTS = { host: 40, copy: 14, compute: 46, strip: 20 };
const ROW_GAP = 5;
const PROCESS_GAP = 12;
const RUN_GAP = 26;
const HEADING = 44; // a run's name and its figures; a single one's name is the page's
const FIGURES = 26;
const AXIS = 24;
const MOST_WAYS = 80; // more lines are a thicket
const DIMMED = 0.22;

/** Give each row its `y` and `height`; return how high it all is. */
function layOut(runs) {
  let y = AXIS;
  runs.forEach((run, number) => {
    run.y = y + (number ? RUN_GAP : 4);
    y = run.y + (runs.length > 1 ? HEADING : FIGURES);
    run.rows.forEach((row, at) => {
      if (at) y += row.opens ? PROCESS_GAP : ROW_GAP;
      row.y = y;
      row.height = HEIGHTS[row.shows];
      y += row.height;
    });
  });
  return y + 8;
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
    this.height = layOut(header.runs);
  }

  /** Paint everything; `selected` is a way of `run`, or null. */
  paint(selected) {
    const { context, width, height } = prepare(this.canvas, this.height);
    this.view.width = width;
    this.context = context;
    this.look = colours();
    this.axis(width, height);
    for (const run of this.header.runs) {
      const way = selected && selected.run === run ? selected.way : null;
      this.heading(run);
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

  axis(width, height) {
    const { context, view, look } = this;
    const step = tickStep(view.perPixel * 90);
    context.font = `12px ${FONT}`;
    context.textAlign = "center";
    context.fillStyle = look.grey;
    context.strokeStyle = look.line;
    context.lineWidth = 1;
    for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) {
      const x = Math.round(view.x(tick)) + 0.5;
      context.beginPath();
      context.moveTo(x, AXIS - 6);
      context.lineTo(x, height);
      context.stroke();
      if (x > GUTTER + 20 && x < width - 30) context.fillText(tick ? timeText(tick, step) : "0", x, AXIS / 2 - 2);
    }
  }

  heading(run) {
    const { context, look } = this;
    context.textAlign = "left";
    context.fillStyle = look.ink;
    context.font = `600 14px ${FONT}`;
    const several = this.header.runs.length > 1;
    if (several) this.fill(run.name, GUTTER, run.y + 8);
    context.font = `13px ${FONT}`;
    this.fill(run.figures, GUTTER, run.y + (several ? 27 : 9));
  }

  /** Write on paper: what is below does not shine through. */
  fill(text, x, y) {
    const { context, look } = this;
    context.save();
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = look.paper;
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
    context.restore();
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
      this.spans(run, row, header.shown);
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
    this.spans(run, row, header.work);
    context.globalAlpha = 1;
    if (way) this.spans(run, row, header.work, way.key);
    if (row.height > 20) this.names(run, row, way);
  }

  /** Fill the spans whose colour `accepts`; only those of the step `key`, if one is given. */
  spans(run, row, accepts, key = null) {
    const { context, view, header } = this;
    const [first, last] = seen(row, view.from + run.origin, view.to + run.origin);
    const offset = GUTTER - (view.from + run.origin) / view.perPixel, scale = 1 / view.perPixel;
    const { start, end, paint, y, height } = row;
    const edge = row.shows === "strip" || row.shows === "gaps" || row.shows === "line" ? 0 : 0.75;
    const shares = new Float64Array(header.palette.length), crowded = row.shows === "strip" || last - first > view.room;
    let column = -1, filled = 0;
    const flush = () => {
      if (filled) this.column(row, column, shares, crowded ? Math.max(filled, 1) : 0);
      filled = 0;
      shares.fill(0);
    };
    for (let i = first; i < last; i++) {
      const colour = paint[i];
      if (!accepts[colour] || (key !== null && keyOf(row, i) !== key)) continue;
      const left = offset + start[i] * scale, width = (end[i] - start[i]) * scale;
      if (width < 1) {
        const at = Math.floor(left);
        if (at !== column) { flush(); column = at; }
        filled += width || 1e-6;
        shares[crowded ? header.plain[colour] : colour] += width || 1e-6;
        continue;
      }
      context.fillStyle = header.palette[colour];
      const from = Math.max(left, GUTTER - 2), to = Math.min(left + width, view.width);
      context.fillRect(from, y, to - from - (width > 4 ? edge : 0), height);
    }
    flush();
  }

  /** Fill a pixel's column with what was in it, one above the other, `high` being the whole; if 0, with what was most. */
  column(row, x, shares, high) {
    const { context, header } = this;
    if (!high) {
      const before = context.globalAlpha;
      context.globalAlpha = before * Math.min(1, Math.max(0.35, shares.reduce((sum, share) => sum + share)));
      context.fillStyle = header.palette[shares.indexOf(Math.max(...shares))];
      context.fillRect(x, row.y, 1, row.height);
      context.globalAlpha = before;
      return;
    }
    let bottom = row.y + row.height;
    shares.forEach((share, colour) => {
      if (!share) return;
      const part = (share / high) * row.height;
      context.fillStyle = header.palette[colour];
      context.fillRect(x, bottom - part, 1, part);
      bottom -= part;
    });
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
