// What all parts of the page use: names of nodes, time, and text that can be trusted. Everything that comes from Redis gets into
// the document by textContent and attributes alone.

export const $ = (id) => document.getElementById(id);
export const MINUTES = 10;

let title = "Locks";

// entitle sets the name of the page, and named that of what is shown on it; empty: nothing in particular.
export function entitle(text) {
  title = text;
  named("");
}

export function named(text) {
  document.title = text === "" ? title : `${visible(text)} – ${title}`;
}

// ---------- time ----------

export const clock = {
  // The server's clock minus this one, as well as it can be known: what has just arrived is at least as old as the quickest event.
  offset: -Infinity,
  lastPass: 0, // when the last pass ended, by the server's clock
};

export const serverNow = () => Date.now() + (Number.isFinite(clock.offset) ? clock.offset : 0);

export function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const ago = (time) => (time === null ? "" : duration(serverNow() - time));
export const moment = (text) => (text === null ? null : Date.parse(text));

// ages writes what grows older by itself.
export function ages() {
  for (const node of document.querySelectorAll("[data-since]")) {
    write(node, (node.dataset.before ?? "") + ago(Number(node.dataset.since)) + (node.dataset.behind ?? ""));
  }
  for (const node of document.querySelectorAll("[data-ends]")) {
    write(node, `lease ${duration(Number(node.dataset.ends) - serverNow())}`);
  }
}

// ---------- names ----------

// Characters that are not seen, or that turn the direction of others, are shown by their numbers. So are blanks but the space.
const HIDDEN =
  /(?! )[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Zs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u{2800}\u{16fe4}\u{1d159}]/gu;
export const visible = (text) => text.replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

// seen reports whether a part of the page is on the screen.
function seen(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return node.checkVisibility() && bottom > 0 && top < innerHeight && document.querySelector("dialog[open]") === null;
}

const silences = new Map();

// announce says something that is over at once, for a while: in a toast, or, where a banner on the screen says it anyway, to those
// alone who hear the page.
export function announce(text, banner) {
  queueMicrotask(() => {
    // The banner is there, too, by now.
    const node = banner && seen(banner) ? $("told") : $("status");
    write(node, text);
    clearTimeout(silences.get(node));
    silences.set(node, setTimeout(() => write(node, ""), 6000));
  });
}
