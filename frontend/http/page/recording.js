// The record button, the file's name, and what has become of it.

import { duration, number, quantity, size } from "./figures.js";
import { json, Refusal } from "./server.js";

const element = (id) => document.getElementById(id);

export class Recording {
  constructor() {
    this.on = false;
    this.missing = false; // nobody is there to record
    this.asking = false;
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

  // Ask how it is. Raises Gone if the server is.
  async look() {
    try {
      this.show(await json("timeline/status"));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.missing = true;
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
