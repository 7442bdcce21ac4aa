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

// thinned are points from a time on, of those that fall on the same place the one with the most.
function thinned(points, begin, span) {
  const out = [];
  let place = -1;
  for (const point of points) {
    if (point[0] < begin) continue;
    const here = Math.floor(((point[0] - begin) / span) * WIDTH);
    const last = out.at(-1);
    if (here !== place || last[1] === null || point[1] === null) out.push(point);
    else if (point[1] > last[1]) out[out.length - 1] = [last[0], point[1]];
    place = here;
  }
  const last = points.at(-1); // whose value is shown
  if (out.at(-1)?.[1] !== last[1]) out.push(last);
  return out;
}

const lengthOf = (gaps, why, begin) =>
  gaps.reduce((sum, [from, to, text]) => sum + (text === why ? to - Math.max(from, begin) : 0), 0);

// blank shows the gaps of a line, with their texts.
function blank(node, gaps, end, span) {
  while (node.children.length > gaps.length) node.lastChild.remove();
  while (node.children.length < gaps.length) node.append(element("span"));
  gaps.forEach(([from, to, text], i) => {
    const left = Math.max(0, 100 - ((end - from) / span) * 100);
    node.children[i].style.left = `${left}%`;
    node.children[i].style.width = `${100 - ((end - to) / span) * 100 - left}%`;
    node.children[i].title = `${text} for ${duration(to - from)}`;
    write(node.children[i], text);
  });
}

// newPlot makes one in a figure, whose caption has a place for the newest value.
export function newPlot(figure, name) {
  const svg = shape("svg", { role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" });
  const [area, line] = [shape("path", { class: "area" }), shape("path", { class: "line" })];
  svg.append(area, line);
  const [most, zero, from, now] = [mark("most"), mark("zero", "0"), mark("from"), mark("now", "now")];
  const plot = element("div", "plot");
  const blanks = element("div", "blanks");
  blanks.setAttribute("aria-hidden", "true");
  plot.append(most, zero, svg, blanks, from, now);
  figure.append(plot);

  // draw shows points, each a time and a value, up to a time. From a value of null on nothing is known. Gaps say why: each is a
  // time, another one, and a text.
  function draw(all, end, format, minutes = MINUTES, gaps = []) {
    const first = Math.max(all[0][0], end - minutes * 60_000);
    const span = Math.max(60_000, end - first); // as much as there is, but for the first minute
    const points = all.length > WIDTH ? thinned(all, end - span, span) : all.filter(([time]) => time >= end - span);
    if (points.length === 0) points.push(all.at(-1));
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
    const seen = gaps.filter(([, to]) => to > end - span);
    blank(blanks, seen, end, span);
    const unknown = [...new Set(seen.map(([, , why]) => why))].map((why) => `; ${why} for ${duration(lengthOf(seen, why, end - span))}`);
    svg.setAttribute("aria-label", `${name} in the last ${time}: ${value} now, ${format(peak)} at most${unknown.join("")}`);
  }
  return { draw };
}
