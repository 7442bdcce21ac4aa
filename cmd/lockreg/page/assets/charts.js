// The last minutes, as charts.

import { $, MINUTES, duration, element, write } from "./base.js";

let samples = [];

// began takes what the server knows of the time before.
export function began(history) {
  samples = history;
  charts();
}

// sampled takes what a pass has found, once a second.
export function sampled(sample) {
  const last = samples.at(-1);
  if (last && sample[0] - last[0] < 1000) return;
  samples.push(sample);
  while (samples.length > MINUTES * 60) samples.shift();
  charts();
}

function charts() {
  if (samples.length === 0) return;
  const end = samples.at(-1)[0];
  // As much as there is, but for the first minute.
  const span = Math.min(MINUTES * 60_000, Math.max(60_000, end - samples[0][0]));
  chart("held", 1, end, span, "Locks held", String);
  chart("waiters", 2, end, span, "Waiting", String);
  chart("oldest", 3, end, span, "Oldest wait", duration);
}

function chart(id, column, end, span, name, format) {
  const most = samples.reduce((m, s) => Math.max(m, s[column]), 0);
  const lines = [];
  const areas = [];
  let before = null;
  for (const sample of samples) {
    const x = 600 - ((end - sample[0]) / span) * 600;
    const y = most === 0 ? 59 : 59 - (sample[column] / most) * 56;
    const point = `${x.toFixed(1)} ${y.toFixed(1)}`;
    if (before === null || sample[0] - before.time > 5000) {
      // Nobody looked in between, so nothing is known.
      if (before !== null) areas.push(`L${before.x} 60Z`);
      lines.push(`M${point}`);
      areas.push(`M${x.toFixed(1)} 60L${point}`);
    } else {
      lines.push(`L${point}`);
      areas.push(`L${point}`);
    }
    before = { time: sample[0], x: x.toFixed(1) };
  }
  if (before !== null) areas.push(`L${before.x} 60Z`);
  const svg = $(id);
  svg.querySelector(".line").setAttribute("d", lines.join(""));
  svg.querySelector(".area").setAttribute("d", areas.join(""));
  const now = format(samples.at(-1)[column]);
  write($(`${id}-now`), now);
  write($(`${id}-most`), `peak ${format(most)}`);
  svg.setAttribute("aria-label", `${name} in the last ${duration(span)}: ${now} now, ${format(most)} at most`);
}

// ---------- how long those who wait have waited ----------

const LENGTHS = ["under 1 s", "1 to 5 s", "5 to 30 s", "30 to 60 s", "over 1 min", "other"];
const cells = LENGTHS.map((text) => {
  const row = element("tr");
  const name = element("th", "", text);
  name.scope = "row";
  const cell = element("td");
  cell.append(element("span", "fill"), element("span", "", "0"));
  row.append(name, cell);
  $("waits-rows").append(row);
  return cell;
});

// waits shows how many have waited for how long. The server tells the length of those that it knows.
export function waits(known, waiters) {
  const counts = [...known, Math.max(0, waiters - known.reduce((sum, n) => sum + n, 0))];
  const most = Math.max(1, ...counts);
  counts.forEach((n, i) => {
    write(cells[i].lastChild, String(n));
    cells[i].firstChild.style.width = `${(n / most) * 75}%`;
  });
}
