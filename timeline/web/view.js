"use strict";
// Which time is seen, where. All runs share one scale; each has an origin, and `from` counts from there.

const GUTTER = 118;
const RIGHT = 14;
const NARROWEST = 200; // nanoseconds that may fill the screen

class View {
  constructor(runs, opening) {
    this.first = Math.min(...runs.map((run) => run.whole[0] - run.origin));
    this.last = Math.max(...runs.map((run) => run.whole[1] - run.origin));
    this.opening = opening;
    this.width = 800;
    this.show(...opening);
  }

  get to() { return this.from + this.span; }
  get perPixel() { return this.span / this.room; }
  get room() { return Math.max(50, this.width - GUTTER - RIGHT); }

  x(time) { return GUTTER + (time - this.from) / this.perPixel; }
  time(x) { return this.from + (x - GUTTER) * this.perPixel; }

  show(from, to) {
    const all = Math.max(this.last - this.first, NARROWEST);
    this.span = Math.min(Math.max(to - from, NARROWEST), all);
    this.from = Math.min(Math.max(from, this.first), this.first + all - this.span);
  }

  /** Show `factor` times as much; what is under `x` stays there. */
  zoom(factor, x = GUTTER + this.room / 2) {
    const fixed = this.time(x);
    const span = this.span * factor;
    const from = fixed - ((x - GUTTER) / this.room) * span;
    this.show(from, from + span);
  }

  /** Move by a share of what is seen. */
  move(share) { this.show(this.from + share * this.span, this.to + share * this.span); }

  /** Bring a stretch of time into sight, if it is not, without changing the scale unless it must. */
  reveal(from, to) {
    if (from >= this.from && to <= this.to) return;
    const span = Math.max(this.span, (to - from) * 1.2);
    const middle = (from + to) / 2;
    this.show(middle - span / 2, middle + span / 2);
  }
}

/** Return "12.3 µs"; nanoseconds, with as many digits as a step of `fine` nanoseconds needs. */
function timeText(ns, fine = Math.abs(ns) / 1000) {
  const size = Math.abs(ns);
  const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.min(9, Math.max(0, Math.ceil(Math.log10(unit / Math.max(fine, 1e-9)))));
  return `${(ns / unit).toFixed(unit === 1 ? 0 : digits)} ${name}`;
}

/** Return the distance between ticks: 1, 2 or 5 times a power of ten, at least `least`. */
function tickStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least);
}
