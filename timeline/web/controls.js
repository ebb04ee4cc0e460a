"use strict";
// What is done with mouse, fingers and keys, and what is said about it.

const ZOOM = 1.5;
const MOVE = 0.2;
const CLICK = 4; // pixels that a hand trembles

class Controls {
  constructor(header) {
    this.header = header;
    this.view = new View(header.runs, header.opening);
    this.canvas = document.getElementById("timeline");
    this.painter = new Painter(this.canvas, header, this.view);
    this.overview = new Overview(document.getElementById("overview"), header, this.view);
    this.tip = document.getElementById("tip");
    this.said = document.getElementById("said");
    this.selected = null; // {run, way}
    this.pointers = new Map();
    this.listen();
    this.resize();
    this.say();
  }

  // ------------------------------------------------------------ painting, at most once a frame

  paint() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.painter.paint(this.selected);
      this.overview.paint();
    });
  }

  resize() {
    this.view.width = this.canvas.clientWidth;
    this.overview.redraw();
    this.paint();
  }

  // ------------------------------------------------------------ what can be done

  change(how) {
    how(this.view);
    this.tip.hidden = true;
    this.paint();
  }

  select(run, way) {
    this.selected = way ? { run, way } : null;
    if (way) {
      const times = [way.planned, way.began, way.ended, way.settled].filter((time) => time !== null);
      this.view.reveal(Math.min(...times) - run.origin, Math.max(...times) - run.origin);
    }
    document.getElementById("step").value = way ? way.step : "";
    this.say();
    this.paint();
  }

  /** Select the step that is `by` further than the selected one, or the first one in sight. */
  stepBy(by) {
    const run = this.selected ? this.selected.run : this.header.runs[0];
    const { keys, of } = run.ways;
    if (!keys.length) return;
    let at = this.selected ? keys.indexOf(this.selected.way.key) + by
      : keys.findIndex((key) => of.get(key).began - run.origin >= this.view.from);
    at = Math.min(Math.max(at, 0), keys.length - 1);
    this.select(run, of.get(keys[at]));
  }

  /** Select a step by its number: of the run that has one selected, else of the first run that has it. */
  go(number) {
    const runs = this.selected ? [this.selected.run, ...this.header.runs] : this.header.runs;
    for (const run of runs) {
      for (const way of run.ways.of.values()) if (way.step === number) return this.select(run, way);
    }
    this.said.textContent = `Step ${number} was not computed.`;
  }

  say() {
    if (!this.selected) {
      const runs = this.header.runs;
      this.said.textContent = runs.map((run) => run.notes).filter(Boolean).join(" ") || "Click a step to follow it.";
      return;
    }
    const { run, way } = this.selected;
    const name = this.header.runs.length > 1 ? `${run.name}, step ${way.step}` : `Step ${way.step}`;
    const parts = [`${name}: ${way.rows} rows, ${way.tokens} tokens, computed in ${timeText(way.ended - way.began)}`];
    if (way.planned !== null) {
      const ahead = way.began - way.planned;
      const before = this.before(run, way);
      const meanwhile = before && way.planned < before.ended && way.planned > before.began;
      parts.push(`planned ${timeText(ahead)} before the device began` + (meanwhile ? `, while it computed step ${before.step}` : ""));
    }
    if (way.settled !== null) parts.push(`settled ${timeText(way.settled - way.ended)} after it ended`);
    this.said.textContent = parts.join("; ") + ".";
  }

  /** Return what the same device computed before. */
  before(run, way) {
    const { keys, of } = run.ways;
    let at = keys.indexOf(way.key) - 1;
    while (at >= 0 && of.get(keys[at]).row !== way.row) at--;
    return at < 0 ? null : of.get(keys[at]);
  }

  // ------------------------------------------------------------ what is under the pointer

  /** Return {run, row, i} or null. */
  under(x, y) {
    if (x < GUTTER) return null;
    for (const run of this.header.runs) {
      for (const row of run.rows) {
        if (y < row.y || y >= row.y + row.height) continue;
        const time = this.view.time(x) + run.origin, near = 2 * this.view.perPixel;
        const [first, last] = seen(row, time - near, time + near);
        let best = -1, distance = Infinity;
        for (let i = first; i < last && i < first + 1000; i++) {
          const away = Math.max(row.start[i] - time, time - row.end[i], 0);
          if (away < distance || (away === distance && row.end[i] - row.start[i] < row.end[best] - row.start[best])) {
            [best, distance] = [i, away];
          }
        }
        return best < 0 ? null : { run, row, i: best };
      }
    }
    return null;
  }

  hover(x, y) {
    const found = this.under(x, y);
    this.tip.hidden = !found;
    if (!found) return;
    const { row, i } = found;
    const kind = row.shows === "strip" ? this.header.moments[row.kind[i]] : this.header.kinds[row.kind[i]];
    const title = document.createElement("b"), table = document.createElement("table");
    title.textContent = kind.name;
    const line = (name, value) => {
      const cells = table.insertRow();
      cells.append(document.createElement("th"), document.createElement("td"));
      cells.firstChild.textContent = name;
      cells.lastChild.textContent = value;
    };
    line("process", row.device ? `${row.process} (${row.device})` : row.process);
    if (row.shows !== "strip") {
      if (row.step[i]) line("step", `${row.step[i]}`);
      for (const name of ["rows", "tokens", "decodes", "wasted"]) if (row[name][i]) line(name, row[name][i].toLocaleString("en"));
    }
    line("start", `${(row.start[i] / 1e9).toFixed(6)} s`); // as `--from` takes it
    line("duration", timeText(row.end[i] - row.start[i]));
    this.tip.replaceChildren(title, table);
    const stage = this.canvas.parentElement.clientWidth;
    const left = x + 16 + this.tip.offsetWidth > stage ? x - 16 - this.tip.offsetWidth : x + 16;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${y + 14}px`;
  }

  click(x, y) {
    const found = this.under(x, y);
    const way = found && found.row.shows !== "strip" && found.run.ways.of.get(keyOf(found.row, found.i));
    this.select(found && found.run, way || null);
  }

  // ------------------------------------------------------------ events

  listen() {
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    on("zoom-in", () => this.change((view) => view.zoom(1 / ZOOM)));
    on("zoom-out", () => this.change((view) => view.zoom(ZOOM)));
    on("all", () => this.change((view) => view.show(view.first, view.last)));
    on("opening", () => this.change((view) => view.show(...view.opening)));
    on("previous", () => this.stepBy(-1));
    on("next", () => this.stepBy(1));
    document.getElementById("step").addEventListener("change", (event) => {
      const text = event.target.value.trim();
      if (text === "") this.select(null, null);
      else if (/^\d+$/.test(text)) this.go(Number(text));
      else this.said.textContent = `“${text}” is no step's number.`;
    });
    document.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.down(event));
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, (event) => this.up(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    const jump = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      event.preventDefault();
      const middle = this.overview.time(event.offsetX);
      this.change((view) => view.show(middle - view.span / 2, middle + view.span / 2));
    };
    this.overview.canvas.addEventListener("pointerdown", jump);
    this.overview.canvas.addEventListener("pointermove", jump);
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.resize());
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || (event.target.tagName === "INPUT" && event.key !== "Escape")) return;
    const acts = {
      "+": () => this.change((view) => view.zoom(1 / ZOOM)),
      "=": () => this.change((view) => view.zoom(1 / ZOOM)),
      "-": () => this.change((view) => view.zoom(ZOOM)),
      ArrowLeft: () => this.change((view) => view.move(event.shiftKey ? -1 : -MOVE)),
      ArrowRight: () => this.change((view) => view.move(event.shiftKey ? 1 : MOVE)),
      Home: () => this.change((view) => view.show(view.first, view.first + view.span)),
      End: () => this.change((view) => view.show(view.last - view.span, view.last)),
      0: () => this.change((view) => view.show(view.first, view.last)),
      o: () => this.change((view) => view.show(...view.opening)),
      n: () => this.stepBy(1),
      p: () => this.stepBy(-1),
      Escape: () => this.select(null, null),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
  }

  wheel(event) {
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? 18 : event.deltaMode === 2 ? 400 : 1; // lines, pages
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.change((view) => view.move((sideways * pixels) / view.room));
    } else {
      const speed = event.ctrlKey ? 0.01 : 0.002; // a pinch on a touchpad comes as small turns with Ctrl
      this.change((view) => view.zoom(Math.exp(event.deltaY * pixels * speed), event.offsetX));
    }
  }

  down(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.pressed = this.pointers.size === 1 ? [event.offsetX, event.offsetY] : null;
  }

  moved(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.hover(event.offsetX, event.offsetY);
    const now = [event.offsetX, event.offsetY];
    if (this.pressed && Math.hypot(now[0] - this.pressed[0], now[1] - this.pressed[1]) > CLICK) {
      this.pressed = null;
      this.canvas.classList.add("dragging");
    }
    if (this.pressed) return undefined;
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    if (others.length) {
      const other = others[0][0];
      const was = Math.abs(before[0] - other), is = Math.abs(now[0] - other);
      this.change((view) => view.zoom(Math.max(was, 8) / Math.max(is, 8), other));
    } else {
      this.change((view) => view.move((before[0] - now[0]) / view.room));
    }
    this.pointers.set(event.pointerId, now);
    return undefined;
  }

  up(event) {
    if (event.type === "pointerup" && this.pressed) this.click(...this.pressed);
    this.pointers.delete(event.pointerId);
    this.pressed = null;
    if (!this.pointers.size) this.canvas.classList.remove("dragging");
  }
}

function legend(header) {
  const list = document.getElementById("legend");
  const add = (name, ...marks) => {
    const item = document.createElement("li");
    item.append(...marks, name);
    list.append(item);
    return item;
  };
  const mark = (colour, line = false) => {
    const box = document.createElement("i");
    box.style.background = colour;
    if (line) box.className = "line";
    return box;
  };
  const newLine = () => {
    const item = add("");
    item.className = "new";
    item.setAttribute("aria-hidden", "true");
  };
  const seen = header.moments.filter((_, number) => header.momentsSeen.has(number));
  for (const moment of [...seen.filter((each) => each.colour).reverse(), ...seen.filter((each) => !each.colour)]) {
    if (moment.idle) add(`${moment.name}, in the strip and above it`, mark(moment.colour), mark(`color-mix(in srgb, ${moment.colour} calc(100% * var(--tint)), var(--lane))`));
    else add(moment.name, mark(moment.colour || "var(--lane)"));
  }
  add("What shares a pixel is stacked, by its shares of the time.").className = "note";
  newLine();
  add("planned → computed", mark(header.kinds[header.plan].colour, true));
  add("computed → settled", mark(header.kinds[header.settle].colour, true));
  add("waiting", mark("var(--wait)", true));
  newLine();
  for (const number of header.seen) {
    const kind = header.kinds[number];
    if (kind.odd) add(`${kind.name}, of even and odd steps`, mark(kind.colour), mark(kind.odd));
    else add(kind.name, mark(kind.colour));
  }
}

readTrace().then((header) => {
  legend(header);
  window.page = new Controls(header); // for the console
}, (error) => {
  document.getElementById("said").textContent = `This browser cannot read the timeline: ${error.message}`;
});
