// The strip: the last seconds, moving. Views come four times a second and each has all that is seen, so the newest is
// drawn alone, shifted by the time since it came; what is shown lags behind by LAG_MS, so that it rarely runs out.

const LAG_MS = 500;
const MARGIN_MS = 200; // beyond the left edge, for views that are early or late
const BAND_HEIGHT = 72; // CSS pixels; style.css has the labels beside them
const LANE_HEIGHT = 14;
const LANE_GAP = 8;
const PAUSE_MS = 100; // the device idle for as long as this, and the CPUs too: no gap in the work, but none to be done
const QUIET = 0.1; // what the CPUs may do in a pause: heartbeats

export class Strip {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.view = null;
    this.offset = 0; // the view's clock less this page's, in ms
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.restyle());
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.restyle();
    const frame = (now) => {
      if (!this.calm.matches) this.draw(now);
      requestAnimationFrame(frame); // none comes while the page is hidden
    };
    requestAnimationFrame(frame);
  }

  // Seconds that are seen.
  get seconds() {
    return this.view ? Math.max(1, Math.floor((this.view.count * this.view.bin_ms - LAG_MS - MARGIN_MS) / 1000)) : 0;
  }

  // Take the newest view, or none.
  show(view) {
    if (view === null) {
      this.view = null;
    } else if (this.view?.start_ms !== view.start_ms) {
      const device = bytes(view.device);
      const end = view.start_ms + device.length * view.bin_ms;
      const offset = end - performance.now();
      // A late view would make the strip jump: its clock follows slowly, unless it is another clock altogether.
      this.offset = this.view && Math.abs(offset - this.offset) < 1500 ? this.offset + 0.1 * (offset - this.offset) : offset;
      this.view = {
        ...view,
        count: device.length,
        device,
        scheduler: bytes(view.scheduler),
        worker: bytes(view.worker),
        both: bytes(view.both),
      };
      this.paint();
    }
    if (this.calm.matches) this.draw(performance.now());
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    const names = ["both", "device", "idle", "nothing", "unknown", "scheduler", "worker", "compute"];
    this.colours = Object.fromEntries(names.map((name) => [name, rgb(style.getPropertyValue(`--${name}`).trim())]));
    this.tick = style.getPropertyValue("--tick").trim();
    this.nothing = style.getPropertyValue("--nothing").trim();
    this.unknown = style.getPropertyValue("--unknown").trim();
    this.paint();
    this.draw(performance.now());
  }

  resize() {
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * scale);
    this.canvas.height = Math.round(this.canvas.clientHeight * scale);
    this.draw(performance.now());
  }

  // Colour the bins, one pixel each: rows that `draw` stretches, one for each lane and several for the band: shares of
  // several devices are not mixed, but fill as many rows from below.
  paint() {
    if (!this.view) return;
    const { bin_ms, count, known, devices, device, scheduler, worker, both } = this.view;
    const colours = this.colours;
    const pause = pauses(device.subarray(0, known), (at) => Math.max(scheduler[at], worker[at]) / 255, PAUSE_MS / bin_ms);
    const rows = Math.max(1, devices);
    const share = (column, at, below) => Math.min(1, Math.max(0, (rows * column[at]) / 255 - below));
    const band = Array.from({ length: rows }, (_, fromTop) =>
      row(count, (at) => {
        if (at >= known) return colours.unknown;
        if (pause[at]) return colours.nothing;
        const below = rows - 1 - fromTop;
        const busy = share(device, at, below);
        const together = Math.min(share(both, at, below), busy);
        const alone = busy - together;
        const idle = 1 - busy;
        return colours.both.map((_, i) => together * colours.both[i] + alone * colours.device[i] + idle * colours.idle[i]);
      }),
    );
    const lanes = [[scheduler, "scheduler"], [worker, "worker"], [device, "compute"]].map(([column, name]) => [
      row(count, (at) => {
        if (at >= known) return colours.unknown;
        const part = column[at] / 255;
        return colours.nothing.map((empty, i) => empty + part * (colours[name][i] - empty));
      }),
    ]);
    this.lanes = [band, ...lanes];
  }

  draw(now) {
    const { width, height } = this.canvas;
    const pen = this.pen;
    const scale = devicePixelRatio || 1;
    pen.clearRect(0, 0, width, height);
    let top = 0;
    for (let lane = 0; lane < 4; lane += 1) {
      const tall = Math.round((lane ? LANE_HEIGHT : BAND_HEIGHT) * scale);
      pen.save();
      pen.beginPath();
      pen.roundRect(0, top, width, tall, (lane ? 3 : 5) * scale);
      pen.clip();
      pen.fillStyle = this.view ? this.unknown : this.nothing; // seen beyond the bins, if the next view is late
      pen.fillRect(0, top, width, tall);
      if (this.view) {
        const rows = this.lanes[lane];
        const edge = (at) => top + Math.round((at * tall) / rows.length);
        rows.forEach((bins, at) => this.drawBins(bins, now, width, edge(at), edge(at + 1) - edge(at)));
      }
      pen.restore();
      top += tall + Math.round(LANE_GAP * scale);
    }
    if (this.view) this.drawSeconds(now, width, height, scale);
  }

  drawBins(bins, now, width, top, tall) {
    const { count, bin_ms, start_ms } = this.view;
    const perBin = (width * bin_ms) / (1000 * this.seconds);
    const left = (this.leftEdge(now) - start_ms) / bin_ms; // the bin at the left edge, and a fraction
    this.pen.imageSmoothingEnabled = perBin < 4;
    this.pen.imageSmoothingQuality = "high"; // where a pixel holds several bins, each counts
    this.pen.drawImage(bins, -left * perBin, top, count * perBin, tall);
  }

  // A line a second, fixed to the clock: it moves along.
  drawSeconds(now, width, height, scale) {
    const left = this.leftEdge(now);
    this.pen.fillStyle = this.tick;
    for (let second = Math.ceil(left / 1000); second * 1000 < left + this.seconds * 1000; second += 1) {
      this.pen.fillRect(((second * 1000 - left) / (1000 * this.seconds)) * width, 0, scale, height);
    }
  }

  leftEdge(now) {
    return now + this.offset - LAG_MS - 1000 * this.seconds;
  }
}

// Return for each bin whether it belongs to a pause, of at least `least` bins; what an edge cuts off counts as long.
function pauses(device, work, least) {
  const count = device.length;
  const found = new Array(count).fill(false);
  let first = 0;
  let worked = 0;
  for (let at = 0; at <= count; at += 1) {
    if (at < count && device[at] === 0) {
      worked += work(at);
      continue;
    }
    const long = at - first >= least || first === 0 || at === count;
    if (long && worked < QUIET * (at - first)) found.fill(true, first, at);
    first = at + 1;
    worked = 0;
  }
  return found;
}

function row(count, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, count);
  canvas.height = 1;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(canvas.width, 1);
  for (let at = 0; at < count; at += 1) {
    image.data.set(colour(at), 4 * at);
    image.data[4 * at + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

// They are mixed as they are, which the eye takes for even steps; mixed as light, half a dark colour would hardly show.
function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
