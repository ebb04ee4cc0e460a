// The record button, the file's name, and what has become of it.

import { duration, number, quantity, size } from "./figures.js";
import { Gone, json, Refusal, request } from "./server.js";

const SELDOM_MS = 15000; // between questions for a collector that is not there

const element = (id) => document.getElementById(id);

export class Recording {
  constructor() {
    this.on = false;
    this.missing = false; // nobody is there to record
    this.asking = false;
    this.file = "";
    this.rest = 0; // until then nobody is asked
    element("download").addEventListener("click", () => this.download());
    element("record-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.toggle();
    });
  }

  async toggle() {
    if (this.asking || this.missing) return;
    this.asking = true;
    this.enable();
    problem("");
    const file = element("file").value.trim();
    const body = !this.on && file ? { file } : undefined;
    try {
      this.show(await json(`timeline/${this.on ? "stop" : "start"}`, { method: "POST", body }));
      element("file").value = ""; // the next one needs another
    } catch (error) {
      await this.look().catch(() => {}); // somebody else may have started or stopped it
      problem(error.message);
    } finally {
      this.asking = false;
      this.enable();
    }
  }

  // Save the last recording where the browser saves things. The key can't go along with a mere link.
  async download() {
    const link = document.createElement("a");
    element("download").setAttribute("aria-disabled", "true");
    problem("");
    try {
      const answer = await request("timeline/file");
      link.href = URL.createObjectURL(await answer.blob());
      link.download = this.file.split(/[\\/]/).pop();
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    } catch (error) {
      const told = error instanceof Refusal || error instanceof Gone;
      problem(told ? error.message : "The connection broke before the file's end.");
    } finally {
      element("download").removeAttribute("aria-disabled");
    }
  }

  // The collector is there: it has just been heard of.
  found() {
    this.rest = 0;
  }

  // Ask how it is, but seldom if nobody can know. Raises Gone if the server is.
  async look() {
    if (performance.now() < this.rest) return;
    try {
      this.show(await json("timeline/status"));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.missing = error.status !== 401; // one who lacks the key may have given it by the time the button is pressed
      if (error.status === 503) this.rest = performance.now() + SELDOM_MS;
      element("download").hidden = true;
      element("record-state").textContent = error.status === 401 ? "" : error.message;
    }
    this.enable();
  }

  // The button keeps the focus when nothing can be done with it, so it is never really disabled.
  enable() {
    element("record").setAttribute("aria-disabled", String(this.asking || this.missing));
  }

  show(state) {
    this.on = state.recording;
    this.missing = false;
    this.file = state.file ?? "";
    element("download").hidden = state.recording || !this.file;
    element("record").dataset.recording = String(state.recording);
    element("record-text").textContent = state.recording ? "Stop recording" : "Record";
    element("file").disabled = state.recording;
    const place = element("record-state");
    // Screen readers hear that it began or ended, not every second of it.
    place.setAttribute("aria-live", (this.shown ?? state.recording) === state.recording ? "off" : "polite");
    this.shown = state.recording;
    place.textContent = state.file ? `${state.recording ? "Recording" : "Recorded"} ${facts(state)}` : "";
    if (state.problem) problem(`The recording ended by itself: ${state.problem}`);
  }
}

function problem(text) {
  const place = element("record-problem");
  if (place.textContent !== text) place.textContent = text; // an alert is read out whenever it is set
}

function facts(state) {
  return [state.file, duration(state.seconds), quantity(number(state.spans), "spans"), size(state.bytes)].join(" · ");
}
