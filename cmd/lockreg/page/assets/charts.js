// The last minutes or hours, as charts.

import { $, MINUTES, duration, element, serverNow, write } from "./base.js";
import { newPlot } from "./plot.js";
import { number } from "./prefixes.js";

// A sample is a time, why nothing is known from then on, and for each prefix five figures.
const HEAD = 2;
const FIGURES = 5;
const [HELD, WAITERS, OLDEST, GRANTS, HAND_OVERS] = [0, 1, 2, 3, 4];
const MOSTS = 3; // of the figures, which are the most of a while; the others are counts
const WHY = ["", "nobody looked", "no answer"]; // known, and why not

const FINE = MINUTES * 60_000; // for so long samples are a second apart
const COARSE = 6 * 3_600_000; // and then ten, for so long

let samples = [];
let old = 0; // so many of them are thinned out
let shown = MINUTES;
const plots = [
  { plot: newPlot($("held-chart"), "Locks held"), column: HELD, format: String },
  { plot: newPlot($("waiters-chart"), "Waiting"), column: WAITERS, format: String },
  { plot: newPlot($("oldest-chart"), "Oldest wait"), column: OLDEST, format: duration },
];
const grants = newPlot($("grants-chart"), "Grants a second, a lower bound,");

// began takes what the server knows of the time before.
export function began(history) {
  samples = history;
  old = 0;
  thin(samples.at(-1)?.[0] ?? 0);
  charts();
}

// sampled takes what a pass has found, once a second.
export function sampled(at, of) {
  const last = samples.at(-1);
  if (last && last[1] === 0 && at - last[0] < 1000) return;
  if (last && at < last[0]) return; // it is of before the gap
  samples.push([at, 0, ...of.flatMap((one) => [one.held, one.waiters, one.oldest, one.grants, one.handoffs])]);
  thin(at);
  charts();
}

// failed says that Redis could not be asked.
export function failed() {
  const last = samples.at(-1);
  if (last?.[1] === 0) samples.push([Math.max(last[0], serverNow()), 2]);
  charts();
}

// thin thins out what is no longer young, as the server does, and forgets what is too old.
function thin(now) {
  while (samples[old]?.[0] < now - FINE) {
    if (old === 0 || !near(samples[old - 1], samples[old])) {
      old++;
      continue;
    }
    samples[old - 1] = samples[old - 1].map((n, i) => (i >= HEAD && (i - HEAD) % FIGURES < MOSTS ? Math.max(n, samples[old][i]) : n));
    samples.splice(old, 1);
  }
  let drop = 0;
  while (samples[drop]?.[0] < now - COARSE) drop++;
  samples.splice(0, drop);
  old = Math.max(0, Math.min(samples.length, old - drop));
}

const near = (a, b) => a[1] === 0 && b[1] === 0 && b[0] - a[0] < 10_000;

// figure is one of a sample's, of the prefix that is listed, or of all.
function figure(sample, column) {
  const at = number();
  if (at >= 0) return sample[HEAD + at * FIGURES + column];
  let all = 0;
  for (let i = HEAD + column; i < sample.length; i += FIGURES) all = column === OLDEST ? Math.max(all, sample[i]) : all + sample[i];
  return all;
}

// size is how many samples are kept.
export const size = () => samples.length;

// charts draws them anew.
export function charts() {
  if (samples.length === 0) return;
  const last = samples.at(-1);
  const end = last[1] === 0 ? last[0] : Math.max(last[0], serverNow());
  const gaps = samples.flatMap(([time, why], i) => (why === 0 ? [] : [[time, samples[i + 1]?.[0] ?? end, WHY[why]]]));
  for (const { plot, column, format } of plots) {
    const points = samples.map((sample) => [sample[0], sample[1] === 0 ? figure(sample, column) : null]);
    plot.draw(points, end, format, shown, gaps);
  }
  grants.draw(rates(GRANTS), end, frequency, shown, gaps);
  write($("handoffs"), frequency(rates(HAND_OVERS).at(-1)[1] ?? 0));
}

const frequency = (n) => (n < 10 ? n.toFixed(1) : String(Math.round(n)));

// rates are how much a count has grown in a second, over the ten seconds before each sample, or since the one before it.
function rates(column) {
  let from = 0;
  return samples.map((sample, i) => {
    if (sample[1] !== 0) {
      from = i + 1;
      return [sample[0], null];
    }
    while (from < i - 1 && sample[0] - samples[from][0] > 10_000) from++;
    const grown = figure(sample, column) - figure(samples[from], column);
    return [sample[0], from >= i ? null : (grown * 1000) / (sample[0] - samples[from][0])];
  });
}

for (const button of $("spans").children) {
  button.addEventListener("click", () => {
    shown = Number(button.dataset.minutes);
    for (const one of $("spans").children) one.setAttribute("aria-pressed", String(one === button));
    charts();
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
export function waits(of) {
  const at = number();
  const some = at < 0 ? of : [of[at]];
  const known = LENGTHS.slice(1).map((_, i) => some.reduce((sum, one) => sum + one.waits[i], 0));
  const waiters = some.reduce((sum, one) => sum + one.waiters, 0);
  const counts = [...known, Math.max(0, waiters - known.reduce((sum, n) => sum + n, 0))];
  const most = Math.max(1, ...counts);
  counts.forEach((n, i) => {
    write(cells[i].lastChild, String(n));
    cells[i].firstChild.style.width = `${(n / most) * 75}%`;
  });
}
