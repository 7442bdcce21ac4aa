// A line over the last minutes, with an axis on two sides.

import { MINUTES, duration, element, write } from "./base.js";

const WIDTH = 600;
const HEIGHT = 60;

function shape(name, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, text] of Object.entries(attributes)) node.setAttribute(key, text);
  return node;
}

function mark(className, text) {
  const node = element("span", className, text);
  node.setAttribute("aria-hidden", "true"); // the image's label tells it
  return node;
}

// newPlot makes one in a figure, whose caption has a place for the newest value.
export function newPlot(figure, name) {
  const svg = shape("svg", { role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" });
  const [area, line] = [shape("path", { class: "area" }), shape("path", { class: "line" })];
  svg.append(area, line);
  const [most, zero, from, now] = [mark("most"), mark("zero", "0"), mark("from"), mark("now", "now")];
  const plot = element("div", "plot");
  plot.append(most, zero, svg, from, now);
  figure.append(plot);

  // draw shows points, each a time and a value, up to a time. From a value of null on nothing is known.
  function draw(points, end, format) {
    const first = Math.max(points[0][0], end - MINUTES * 60_000);
    const span = Math.max(60_000, end - first); // as much as there is, but for the first minute
    const peak = points.reduce((m, [, value]) => Math.max(m, value ?? 0), 0);
    const lines = [];
    const areas = [];
    let last = null; // where the line has come to
    for (const [time, value] of points) {
      if (value === null) {
        if (last !== null) areas.push(`L${last} ${HEIGHT}Z`);
        last = null;
        continue;
      }
      const x = (WIDTH - ((end - time) / span) * WIDTH).toFixed(1);
      const y = (peak === 0 ? HEIGHT - 1 : HEIGHT - 1 - (value / peak) * (HEIGHT - 4)).toFixed(1);
      lines.push(`${last === null ? "M" : "L"}${x} ${y}`);
      areas.push(last === null ? `M${x} ${HEIGHT}L${x} ${y}` : `L${x} ${y}`);
      last = x;
    }
    if (last !== null) areas.push(`L${last} ${HEIGHT}Z`);
    line.setAttribute("d", lines.join(""));
    area.setAttribute("d", areas.join(""));
    const value = format(points.at(-1)[1] ?? 0);
    const time = duration(span).replace(/ 0 s$/, "");
    write(figure.querySelector("strong"), value);
    write(most, peak === 0 ? "" : format(peak));
    write(from, `${time} ago`);
    svg.setAttribute("aria-label", `${name} in the last ${time}: ${value} now, ${format(peak)} at most`);
  }
  return { draw };
}
