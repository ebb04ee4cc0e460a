// Numbers as people read them, and where they stand on the page.

const element = (id) => document.getElementById(id);

export function number(value) {
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

// A number and its unit, which no line's end comes between.
export function quantity(text, unit) {
  return `${text}\u00a0${unit}`;
}

export function duration(seconds) {
  if (seconds < 1) return quantity(Math.round(1000 * seconds), "ms");
  if (seconds < 60) return quantity(seconds.toFixed(seconds < 10 ? 1 : 0), "s");
  const minutes = Math.floor(seconds / 60);
  return `${quantity(minutes, "min")} ${quantity(Math.floor(seconds - 60 * minutes), "s")}`;
}

export function size(bytes) {
  const units = ["B", "KB", "MB", "GB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) {
    bytes /= 1000;
    at += 1;
  }
  return quantity(number(bytes), units[at]);
}

export function showFigures(view) {
  show("busy", (100 * view.busy).toFixed(1), "%");
  if (view.step_ms === 0) show("step", "–");
  else if (view.step_ms < 1) show("step", number(1000 * view.step_ms), "µs");
  else if (view.step_ms < 1000) show("step", number(view.step_ms), "ms");
  else show("step", number(view.step_ms / 1000), "s");
  show("tokens", number(view.tokens_per_second));
  show("running", number(view.running));
  show("waiting", number(view.waiting));
  const used = view.blocks ? (100 * view.blocks_used) / view.blocks : 0;
  show("kv", used.toFixed(used > 0 && used < 10 ? 1 : 0), "%");
  element("kv-meter").style.width = `${used}%`;
  element("kv").title = `${number(view.blocks_used)} of ${number(view.blocks)} blocks`;
}

export function clearFigures() {
  for (const id of ["busy", "step", "tokens", "running", "waiting", "kv"]) show(id, "–");
  element("kv-meter").style.width = "0";
  element("kv").removeAttribute("title");
}

function show(id, text, unit = "") {
  const place = element(id);
  const shown = `${text} ${unit}`;
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  place.textContent = text;
  if (unit) {
    const small = document.createElement("small");
    small.textContent = unit;
    place.append("\u00a0", small);
  }
}
