"use strict";
// What the page was given: runs, their rows, and a typed array for each column.

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

/** Return the header. Each row of its runs has the columns it names, start and end in nanoseconds, and its paint. */
async function readTrace() {
  const header = JSON.parse(document.getElementById("header").textContent);
  const text = atob(document.getElementById("columns").textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(unpacked).arrayBuffer();
  mix(header);
  header.momentsSeen = new Set();
  let at = 0;
  for (const run of header.runs) {
    for (const row of run.rows) {
      for (const [name, type, count] of row.columns) {
        const size = count * ARRAYS[type].BYTES_PER_ELEMENT;
        row[name] = new ARRAYS[type](bytes.slice(at, at + size));
        at += size;
      }
      row.start = summed(row.since);
      row.end = row.start.map((start, i) => start + row.lasts[i]);
      row.until = highest(row.end);
      row.paint = row.shows === "strip" ? row.kind.map((moment) => header.ofMoment[moment])
        : row.kind.map((kind, i) => (row.step[i] % 2 && header.ofOdd[kind]) || header.ofKind[kind]);
    }
    run.rows.filter((row) => row.shows === "strip").forEach((row) => row.kind.forEach((moment) => header.momentsSeen.add(moment)));
    run.ways = waysOf(run, header.plan, header.settle);
  }
  return header;
}

/** Give the header its palette, where each kind's and moment's colour is in it, and masks of it; its first is none. */
function mix(header) {
  header.palette = [""];
  const add = (colour) => (colour ? header.palette.push(colour) - 1 : 0);
  header.ofMoment = header.moments.map((moment) => add(moment.colour));
  header.ofKind = header.kinds.map((kind) => add(kind.work && kind.colour));
  header.ofOdd = header.kinds.map((kind) => add(kind.odd));
  header.wait = add("wait"); // the page's style says which colour
  header.kinds.forEach((kind, number) => { if (kind.waits) header.ofKind[number] = header.wait; });
  header.plain = header.palette.map((_, index) => index); // odd steps' colours as those of even ones
  header.ofOdd.forEach((index, kind) => { if (index) header.plain[index] = header.ofKind[kind]; });
  const mask = (indices) => Uint8Array.from(header.palette, (_, index) => (index && indices.includes(index) ? 1 : 0));
  header.shown = mask(header.ofMoment);
  header.idle = mask(header.moments.map((moment, number) => (moment.idle ? header.ofMoment[number] : 0)));
  header.waits = mask([header.wait]);
  header.work = mask([...header.ofKind.filter((index) => index !== header.wait), ...header.ofOdd]);
}

function summed(differences) {
  const sums = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < sums.length; i++) sums[i] = sum += differences[i];
  return sums;
}

/** Return the latest end so far: what stands sorted, even if spans overlap by what their clocks may be off. */
function highest(ends) {
  const highs = new Float64Array(ends.length);
  let high = -Infinity;
  for (let i = 0; i < highs.length; i++) highs[i] = high = Math.max(high, ends[i]);
  return highs;
}

/** Return the index of the first value of a sorted array that is more than `value`. */
function firstAfter(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

/** Return the indices [first, last) of the spans that may be seen from `from` to `to`. */
function seen(row, from, to) {
  return [firstAfter(row.until, from), firstAfter(row.start, to)];
}

// A step's way: where it was planned, computed and settled. `key` is its session and its number in one number.

function keyOf(row, i) {
  return row.session[i] * 2 ** 40 + row.step[i];
}

/** Return {of: key -> way, keys: those of the computed steps, in order of time}. */
function waysOf(run, plan, settle) {
  const of = new Map();
  run.rows.forEach((row, number) => {
    if (row.shows !== "compute") return;
    for (let i = 0; i < row.start.length; i++) {
      if (!row.step[i]) continue;
      const key = keyOf(row, i), way = of.get(key);
      if (way) way.ended = Math.max(way.ended, row.end[i]);
      else {
        of.set(key, {
          key, step: row.step[i], row: number, began: row.start[i], ended: row.end[i],
          rows: row.rows[i], tokens: row.tokens[i], planned: null, settled: null, planRow: -1, settleRow: -1,
        });
      }
    }
  });
  run.rows.forEach((row, number) => {
    if (row.shows !== "host") return;
    for (let i = 0; i < row.start.length; i++) {
      if (row.kind[i] !== plan && row.kind[i] !== settle) continue;
      const way = of.get(keyOf(row, i));
      if (!way) continue;
      if (row.kind[i] === plan) { way.planned = row.end[i]; way.planRow = number; }
      else { way.settled = row.start[i]; way.settleRow = number; }
    }
  });
  const keys = [...of.keys()].sort((a, b) => of.get(a).began - of.get(b).began);
  return { of, keys };
}
