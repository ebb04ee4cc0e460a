// Ties the page together. It asks only while it is seen, and goes on asking when the server is gone.

import { Ask } from "./ask.js";
import { clearFigures, showFigures } from "./figures.js";
import { Recording } from "./recording.js";
import { Gone, json, Refusal, useKey } from "./server.js";
import { Strip } from "./strip.js";

const LIVE_MS = 250;
const SLOW_MS = 1000;
const RETRY_MS = 1000;

const element = (id) => document.getElementById(id);
const strip = new Strip(element("strip"));
const recording = new Recording();
new Ask();

// ---------------------------------------------------------------- the last seconds

async function live() {
  const { view } = await json("timeline/live");
  element("key-form").hidden = true;
  strip.show(view);
  if (view) {
    showFigures(view);
    recording.found();
  } else {
    clearFigures();
  }
  note(view ? "" : "No timeline yet: its collector has sent nothing.");
  const seconds = strip.seconds.toFixed(0);
  element("span-seconds").textContent = view ? `${seconds} seconds` : "seconds";
  element("axis-start").textContent = view ? `${seconds} s ago` : "";
}

function lost(error) {
  strip.show(null);
  clearFigures();
  if (error instanceof Gone) note(`${error.message} Trying again …`);
  else if (error.status === 401) askForKey();
  else note(error.message);
}

function note(text) {
  const place = element("strip-note");
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}

// ---------------------------------------------------------------- health, the model, the recording

let model = "";

async function look() {
  try {
    await json("health");
    health("good", "Serving");
  } catch (error) {
    if (error instanceof Gone) {
      model = ""; // whoever comes back may serve another one
      health("bad", "Server is gone");
      throw error;
    }
    health("warn", error.message);
  }
  await recording.look();
  if (!model) {
    model = (await json("v1/models")).data[0].id;
    element("model").textContent = model;
    document.title = `${model} · Stepahead`;
  }
}

function health(state, text) {
  const place = element("health");
  if (place.dataset.state === state && element("health-text").textContent === text) return;
  place.dataset.state = state;
  element("health-text").textContent = text;
}

// ---------------------------------------------------------------- the key

function askForKey() {
  const form = element("key-form");
  note("Waiting for the API key");
  if (!form.hidden) return;
  form.hidden = false;
  if (sessionStorage.length) element("key-problem").textContent = "The key is wrong.";
  element("key").focus();
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value);
  element("key").value = "";
  element("key-form").hidden = true;
  element("prompt").focus();
  for (const loop of loops) loop.now();
});

// ---------------------------------------------------------------- again and again

// Does `work` every `pause` ms while the page is seen; `failed` hears of what goes wrong, and it goes on.
function loop(work, pause, failed = () => {}) {
  let timer = null;
  let working = false;
  async function turn() {
    timer = null;
    if (working || document.hidden) return;
    working = true;
    let wait = pause;
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Gone || error instanceof Refusal)) throw error;
      failed(error);
      wait = Math.max(pause, RETRY_MS);
    } finally {
      working = false;
      timer ??= setTimeout(turn, wait);
    }
  }
  function now() {
    clearTimeout(timer);
    turn();
  }
  document.addEventListener("visibilitychange", now);
  now();
  return { now };
}

const loops = [loop(live, LIVE_MS, lost), loop(look, SLOW_MS)];
