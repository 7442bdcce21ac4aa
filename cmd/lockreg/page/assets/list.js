// The locks, in order, and the list, which is in the document if it is not long.

import { $, ago, clock, duration, element, moment, serverNow, visible, write } from "./base.js";
import { show } from "./detail.js";
import { heldFor } from "./life.js";
import { byContention, comparison, merge, sorting } from "./order.js";
import { of, only, several } from "./prefixes.js";
import { later, soon } from "./pump.js";
import { follow } from "./trails.js";

const FEW = 30; // are put in order one by one
const LONG = 70; // a name that is longer is written smaller
const BOUND = 1000; // rows are all in the document, so that the browser's search and printing see them; of more those on the screen
const GROWTH = 60; // rows at most are made at a time, where they are not on the screen

export const locks = new Map(); // by id, as a path may be no text
export const counts = new Map(); // how many there are, by the ids of prefixes
export let all = []; // sorted
let compare = byContention; // how
let chosen = byContention; // how they will be, once they are sorted
let fresh = []; // new ones, yet to be put in order: one by one that takes long where there are many
let shown = []; // those of all that the filter lets through
let generation = 0; // grows with each complete listing
let listing = false; // one is under way
let active = null; // the id of the one that the keyboard is on
let marked = new Set(); // ids of those that calls of deadlocks wait for
let wanted = "";
let beginning = false;

function place(list, lock) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compare(list[middle], lock) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

function matches(lock) {
  if (only !== null && lock.of !== only) return false;
  return beginning ? lock.path.startsWith(wanted) : lock.words.includes(wanted.toLowerCase());
}

// replace puts a lock where an old one was, or where it belongs now. Either may be missing.
function replace(list, old, lock) {
  const at = old ? place(list, old) : -1;
  const there = old !== undefined && list[at] === old;
  if (there && lock && compare(old, lock) === 0) {
    list[at] = lock;
    return;
  }
  if (there) list.splice(at, 1);
  if (lock) list.splice(place(list, lock), 0, lock);
}

// put takes what is new of a lock, and reports whether anything is.
export function put(row) {
  const old = locks.get(row.id);
  const oldest = moment(row.oldest);
  const holder = row.holder;
  const lock = {
    ...row,
    generation,
    oldest,
    oldestOrder: oldest ?? Infinity,
    since: holder === null ? null : moment(holder.granted ?? holder.since),
    ends: holder === null || holder.leaseMs === null ? null : row.at + holder.leaseMs,
    of: of(row.id),
    who: holder === null ? "" : visible(holder.who),
  };
  lock.words = `${row.path}\n${lock.who}\n${row.prefix ?? ""}`.toLowerCase();
  locks.set(row.id, lock);
  if (!old) {
    counts.set(lock.of, (counts.get(lock.of) ?? 0) + 1);
    fresh.push(lock);
  } else {
    replace(all, old, lock);
    replace(shown, old, matches(lock) ? lock : undefined);
  }
  follow(row.id, row.at, row.waiters);
  dirty();
  return !old || old.version !== row.version;
}

export function drop(id) {
  const lock = locks.get(id);
  if (!lock) return;
  locks.delete(id);
  counts.set(lock.of, counts.get(lock.of) - 1);
  replace(all, lock);
  replace(shown, lock);
  follow(id, clock.lastPass, 0);
  dirty();
}

export function filter() {
  wanted = $("filter").value;
  beginning = $("beginning").checked;
  shown = wanted === "" && only === null ? all.slice() : all.filter(matches);
  dirty();
}

// sort puts all in the order that is chosen. What comes from the server waits for that.
function* sort() {
  const by = chosen;
  if (by === compare) return;
  const sorted = yield* sorting(all, by);
  [all, compare] = [sorted, by];
  filter();
}

// begin is the begin of a complete listing. One before it may have been cut off.
export function* begin() {
  yield* mingle(1);
  generation++;
  listing = true;
}

// mingle puts in order what is new, once that is much.
export function* mingle(much = 500 + all.length / 2) {
  if (fresh.length < much) return;
  const added = fresh;
  fresh = [];
  if (added.length < FEW) {
    for (const lock of added) {
      replace(all, undefined, lock);
      if (matches(lock)) replace(shown, undefined, lock);
    }
  } else {
    all = yield* merge(all, yield* sorting(added, compare), compare);
    filter();
  }
  dirty();
}

// end drops what the listing did not name, as it is not there any more, in slices of its own. What has come until its slice stays.
export function* end(gone) {
  yield* mingle(1);
  const left = all.filter((lock) => lock.generation !== generation);
  const still = (i) => left.slice(i, i + 100).filter((lock) => locks.get(lock.id) === lock);
  for (let i = 0; i < left.length; i += 100) later(() => gone(still(i).map((lock) => lock.id)));
  listing = false;
  dirty();
}

// ---------- the list ----------

const grid = $("grid");
const body = $("rows");
const pool = [];
let rowHeight = 52;
let painting = false;
let printing = false;

// mark marks the locks that calls of deadlocks wait for.
export function mark(ids) {
  marked = new Set(ids);
  dirty();
}

export function dirty() {
  if (painting) return;
  painting = true;
  requestAnimationFrame(paint);
}

function newRow(number) {
  const node = element("div", "row");
  node.setAttribute("role", "row");
  node.id = `row-${number}`;
  const cells = [];
  for (let i = 0; i < 6; i++) {
    const cell = element("span");
    cell.setAttribute("role", "gridcell");
    cells.push(cell);
    node.append(cell);
  }
  const prefix = element("span", "kind of");
  const path = element("span", "path");
  const kind = element("span", "kind");
  const knot = element("span", "kind bad");
  cells[0].append(prefix, path, kind, knot);
  const row = { node, cells, prefix, path, kind, knot, lock: null, index: -1 };
  node.addEventListener("click", () => {
    if (row.lock === null) return;
    active = row.lock.id;
    show(row.lock.id, row.lock.path);
  });
  body.append(node);
  return row;
}

// range is which rows are in the document, when some of them are on the screen. All are, in order, if they are not too many:
// they become more and more, with each painting.
function range(from, to) {
  if (printing) return [0, Math.min(shown.length, BOUND)];
  if (listing || shown.length > BOUND) return [from, to];
  const last = Math.min(shown.length, Math.max(to, pool.length + GROWTH));
  if (last < shown.length) dirty();
  return [0, last];
}

function paint() {
  painting = false;
  const top = body.getBoundingClientRect().top;
  const from = Math.max(0, Math.floor(-top / rowHeight) - 4);
  const to = Math.min(shown.length, Math.ceil((innerHeight - top) / rowHeight) + 4);
  const [first, last] = range(from, to);
  const height = `${shown.length * rowHeight}px`;
  if (body.style.height !== height) body.style.height = height;
  const needed = Math.max(0, last - first);
  while (pool.length < needed) pool.push(newRow(pool.length));
  while (pool.length > needed + 30) pool.pop().node.remove();
  const used = new Set();
  for (let index = first; index < last; index++) {
    const row = pool[index % pool.length];
    used.add(row);
    fill(row, index, shown[index], printing || (index >= from && index < to));
  }
  let activeNode = null;
  for (const row of pool) {
    if (!used.has(row)) {
      row.node.hidden = true;
      row.lock = null;
    }
    const on = row.lock !== null && row.lock.id === active;
    if (on) activeNode = row.node;
    if (row.active !== on) {
      row.active = on;
      row.node.classList.toggle("active", on);
      row.node.setAttribute("aria-selected", String(on));
    }
  }
  if (activeNode) grid.setAttribute("aria-activedescendant", activeNode.id);
  else grid.removeAttribute("aria-activedescendant");
  grid.setAttribute("aria-rowcount", String(shown.length + 1));

  const many = only === null ? locks.size : (counts.get(only) ?? 0);
  const whole = clock.lastPass === 0 && locks.size === 0 ? "" : `${many} ${many === 1 ? "lock" : "locks"}`;
  write($("count"), wanted === "" ? whole : `${shown.length} of ${whole}`);
  $("empty").hidden = shown.length > 0 || clock.lastPass === 0 || listing;
  write($("empty"), many === 0 ? "Nothing is locked, and nobody waits." : "No lock matches the filter.");
  $("beyond").hidden = shown.length <= BOUND;
  write($("beyond"), `These are ${shown.length} locks. The browser finds only those on the screen, and prints the first ${BOUND}. Filter the list to have all.`);
}

// fill has a row show a lock. What grows older is written on the screen alone.
function fill(row, index, lock, seen) {
  const { node, cells } = row;
  if (node.hidden) node.hidden = false;
  if (row.index !== index || row.height !== rowHeight) {
    row.index = index;
    row.height = rowHeight;
    node.style.transform = `translateY(${index * rowHeight}px)`;
    node.setAttribute("aria-rowindex", String(index + 2));
  }
  const changed = row.lock !== lock;
  if (changed) {
    row.lock = lock;
    write(row.path, visible(lock.path));
    row.path.classList.toggle("long", lock.path.length > LONG);
    const semaphore = `semaphore of ${lock.permits}`;
    write(row.kind, { readwrite: "read-write", semaphore, "too long": "too long" }[lock.kind] ?? "");
    cells[0].title = visible(lock.path);
    const others = lock.holders - 1;
    const who = others > 0 ? `${lock.who} and ${others} more` : lock.who || "nobody";
    write(cells[1], who);
    cells[1].title = who;
    cells[1].classList.toggle("long", who.length > LONG);
    write(cells[4], String(lock.waiters));
    cells[4].classList.toggle("queued", lock.waiters > 0);
  }
  write(row.prefix, several() && only === null ? visible(lock.prefix) : "");
  write(row.knot, marked.has(lock.id) ? "deadlock" : "");
  if (!seen && !changed) return;
  const [before, behind] = lock.holder === null ? ["", ""] : heldFor(lock.holder);
  write(cells[2], lock.since === null ? "" : before + ago(lock.since) + behind);
  write(cells[3], lock.holder === null ? "" : lock.ends === null ? "no end" : duration(lock.ends - serverNow()));
  write(cells[5], ago(lock.oldest));
}

export function measure() {
  const probe = pool[0] ?? newRow(pool.length);
  if (!pool.includes(probe)) pool.push(probe);
  probe.node.hidden = false;
  rowHeight = probe.node.getBoundingClientRect().height || rowHeight;
  dirty();
}

function go(index) {
  if (shown.length === 0) return;
  const bounded = Math.min(shown.length - 1, Math.max(0, index));
  active = shown[bounded].id;
  const top = body.getBoundingClientRect().top + bounded * rowHeight;
  const above = document.querySelector(".bar").getBoundingClientRect().height;
  if (top < above) scrollBy(0, top - above);
  else if (top + rowHeight > innerHeight) scrollBy(0, top + rowHeight - innerHeight);
  dirty();
}

grid.addEventListener("keydown", (event) => {
  if (event.target !== grid) return; // a column's button has keys of its own
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const lock = active === null ? undefined : locks.get(active);
  const at = lock && shown[place(shown, lock)] === lock ? place(shown, lock) : -1;
  const page = Math.max(1, Math.floor(innerHeight / rowHeight) - 3);
  const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: shown.length - 1 };
  if (event.key in steps) go(steps[event.key]);
  else if ((event.key === "Enter" || event.key === " ") && at >= 0) show(lock.id, lock.path);
  else return;
  event.preventDefault();
});
const headers = [...grid.querySelectorAll("[role=columnheader]")];
for (const header of headers) header.firstElementChild.addEventListener("click", () => next(header));

// next has the list in the column's order, then in its reverse, then in the first one again.
function next(header) {
  const { first } = header.dataset;
  const steps = ["none", first, first === "ascending" ? "descending" : "ascending"];
  arrange(header, steps[(steps.indexOf(header.getAttribute("aria-sort")) + 1) % 3]);
}

// longest has the list show what is waited for longest.
export function longest() {
  $("filter").value = "";
  filter();
  arrange(
    headers.find((header) => header.dataset.column === "oldest"),
    "descending",
  );
  requestAnimationFrame(() => {
    // Then the list is as high as it is without the filter.
    grid.focus({ preventScroll: true });
    grid.scrollIntoView();
  });
}

function arrange(header, direction) {
  const { column } = header.dataset;
  for (const h of headers) h.setAttribute("aria-sort", h === header ? direction : "none");
  chosen = direction === "none" ? byContention : comparison(column, direction);
  write($("list-title"), direction === "none" ? "Locks, the most contended first" : `Locks, by ${header.innerText}, ${direction}`);
  soon(sort);
}

grid.addEventListener("focus", () => {
  if (active === null && grid.matches(":focus-visible")) go(0);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || document.querySelector("dialog[open]") || event.target.matches("input")) return;
  event.preventDefault();
  $("filter").focus();
});
addEventListener("scroll", dirty, { passive: true });
addEventListener("resize", measure);
addEventListener("beforeprint", () => {
  printing = true;
  paint();
});
addEventListener("afterprint", () => {
  printing = false;
  dirty();
});
$("filter").addEventListener("input", filter);
$("beginning").addEventListener("change", filter);
$("filter-form").addEventListener("submit", (event) => {
  event.preventDefault();
  grid.focus();
});
