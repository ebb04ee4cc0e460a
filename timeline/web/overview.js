"use strict";

/** The whole of all runs in little: their strips, and which part is seen. */
class Overview {
  constructor(canvas, header, view) {
    Object.assign(this, { canvas, header, view, picture: document.createElement("canvas") });
  }

  get height() { return 8 + 18 * this.header.runs.flatMap((run) => run.rows.filter((row) => row.shows === "strip")).length; }

  x(time) { return GUTTER + ((time - this.view.first) / (this.view.last - this.view.first)) * this.view.room; }
  time(x) { return this.view.first + ((x - GUTTER) / this.view.room) * (this.view.last - this.view.first); }

  /** Draw the strips anew: the width has changed, or the colours have. */
  redraw() {
    const whole = new View(this.header.runs, this.view.opening);
    whole.width = this.canvas.clientWidth;
    whole.show(whole.first, whole.last);
    const painter = Object.create(Painter.prototype);
    const { context } = prepare(this.canvas, this.height);
    Object.assign(painter, { context, view: whole, header: this.header, look: colours() });
    let y = 4;
    for (const run of this.header.runs) {
      for (const row of run.rows.filter((each) => each.shows === "strip")) {
        const small = { ...row, y, height: 14 };
        painter.row(run, small, undefined);
        painter.label({ ...small, label: this.header.runs.length > 1 ? run.name : row.process });
        y += 18;
      }
    }
    this.picture.width = this.canvas.width;
    this.picture.height = this.canvas.height;
    if (this.canvas.width && this.canvas.height) this.picture.getContext("2d").drawImage(this.canvas, 0, 0);
  }

  paint() {
    const { context, height } = prepare(this.canvas, this.height);
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (this.picture.width && this.picture.height) context.drawImage(this.picture, 0, 0);
    context.restore();
    const look = colours();
    const left = this.x(this.view.from), right = Math.max(left + 2, this.x(this.view.to));
    context.fillStyle = look.paper;
    context.globalAlpha = 0.55;
    context.fillRect(GUTTER, 0, left - GUTTER, height);
    context.fillRect(right, 0, GUTTER + this.view.room - right, height);
    context.globalAlpha = 1;
    context.strokeStyle = look.accent;
    context.lineWidth = 2;
    context.strokeRect(left, 1, right - left, height - 2);
  }
}
