// The last minutes, as charts.

import { $, MINUTES, duration, element, write } from "./base.js";
import { newPlot } from "./plot.js";

const GAP = 5000; // nobody looked for so long, so nothing is known

let samples = [];
const plots = [
  { plot: newPlot($("held-chart"), "Locks held"), column: 1, format: String },
  { plot: newPlot($("waiters-chart"), "Waiting"), column: 2, format: String },
  { plot: newPlot($("oldest-chart"), "Oldest wait"), column: 3, format: duration },
];
const grants = newPlot($("grants-chart"), "Grants a second, a lower bound,");

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
  for (const { plot, column, format } of plots) {
    const points = [];
    let before = end;
    for (const sample of samples) {
      if (sample[0] - before > GAP) points.push([before, null]);
      points.push([sample[0], sample[column]]);
      before = sample[0];
    }
    plot.draw(points, end, format);
  }
  grants.draw(rates(4), end, frequency);
  write($("hand-overs"), frequency(rates(5).at(-1)[1] ?? 0));
}

const frequency = (n) => (n < 10 ? n.toFixed(1) : String(Math.round(n)));

// rates are how much a count has grown in a second, over the ten seconds before each sample.
function rates(column) {
  let from = 0;
  return samples.map((sample, i) => {
    if (i > 0 && sample[0] - samples[i - 1][0] > GAP) from = i;
    while (sample[0] - samples[from][0] > 10_000) from++;
    return [sample[0], from === i ? null : ((sample[column] - samples[from][column]) * 1000) / (sample[0] - samples[from][0])];
  });
}

// ---------- how long those who wait have waited ----------

const LENGTHS = ["under 1 s", "1 to 5 s", "5 to 30 s", "30 to 60 s", "over 1 min", "other"];
const cells = LENGTHS.map((text) => {
  const row = element("tr");
  const name = element("th", "", text);
  name.scope = "row";
  const cell = element("td");
  cell.append(element("span", "fill"), element("span", "", "–"));
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
