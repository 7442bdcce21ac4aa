// How many have waited for each path, for as long as the page is open.

import { $, MINUTES, clock } from "./base.js";
import { newPlot } from "./plot.js";

const PATHS = 300; // that are remembered
const STEPS = 600; // of each

const trails = new Map(); // by id: steps, each a time and how many wait from then on. Those that changed last are at the end
const plot = newPlot($("trail"), "Waiting for it");

// follow remembers how many wait for a path, if anybody ever did.
export function follow(id, time, waiters) {
  let steps = trails.get(id);
  if (steps === undefined) {
    if (waiters === 0) return;
    steps = [];
  }
  trails.delete(id);
  trails.set(id, steps);
  if (trails.size > PATHS) trails.delete(trails.keys().next().value);
  if (steps.at(-1)?.[1] !== waiters) steps.push([time, waiters]);
  while (steps.length > STEPS || (steps.length > 1 && steps[1][0] < time - MINUTES * 60_000)) steps.shift();
}

// lose says that nothing is known from now on, until it is told anew.
export function lose() {
  for (const steps of trails.values()) if (steps.at(-1)[1] !== null) steps.push([clock.lastPass, null]);
}

// drawTrail shows the steps of a path.
export function drawTrail(id) {
  const steps = trails.get(id);
  const end = clock.lastPass;
  const first = end - MINUTES * 60_000;
  const points = [];
  steps?.forEach(([time, waiters], i) => {
    const next = steps[i + 1]?.[0] ?? end;
    if (next < first) return;
    points.push([Math.max(time, first), waiters]);
    if (waiters !== null) points.push([Math.max(next, time), waiters]);
  });
  $("trail").hidden = !points.some(([, waiters]) => waiters > 0);
  if (!$("trail").hidden) plot.draw(points, end, String);
}
