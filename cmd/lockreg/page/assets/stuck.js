// What is wrong: deadlocks, and what is stuck.

import { $, ages, ago, announce, clock, element, moment, visible, write } from "./base.js";
import { show } from "./detail.js";
import { dead, sign } from "./life.js";
import { all, counts, locks, longest, mark } from "./list.js";
import { count, of, tag } from "./prefixes.js";

function pathButton(path, id, prefix) {
  const button = element("button", "path");
  const name = tag(prefix);
  if (name) button.append(name);
  button.append(visible(path));
  button.type = "button";
  button.addEventListener("click", () => show(id, path));
  return button;
}

const MOST = 20; // of a kind are listed
let told = 0; // how many have been announced
let knots = []; // the prefixes of deadlocks

// rest says how many are not listed.
function rest(node, n) {
  node.hidden = n <= 0;
  write(node, n <= 0 ? "" : `and ${n} more`);
}

export function deadlocks(found) {
  const section = $("deadlocks");
  section.hidden = found.length === 0;
  write($("deadlocks-title"), found.length === 1 ? "A deadlock" : `${found.length} deadlocks`);
  const many = found.length === 1 ? "There is a deadlock." : `There are ${found.length} deadlocks.`;
  if (found.length > told) announce(many, section);
  told = found.length;
  knots = found.flatMap((deadlock) => [...new Set(deadlock.waits.map((wait) => of(wait.id)))]);
  mark(found.flatMap((deadlock) => deadlock.waits.map((wait) => wait.id)));
  rest($("deadlocks-more"), found.length - MOST);
  const lists = found.slice(0, MOST).map((deadlock) => {
    const list = element("ol");
    for (const wait of deadlock.waits.slice(0, MOST)) {
      const item = element("li");
      item.append(`${visible(wait.owner)} in ${visible(wait.who)} holds `);
      wait.holds.forEach((path, i) => item.append(i > 0 ? ", " : "", pathButton(path, wait.holdIds[i], deadlock.prefix)));
      item.append(" and waits for ", pathButton(wait.path, wait.id, deadlock.prefix));
      if (wait.since !== null) {
        const since = element("span");
        since.dataset.since = moment(wait.since);
        item.append(" for ", since);
      }
      list.append(item);
    }
    if (deadlock.waits.length > MOST) list.append(element("li", "", `and ${deadlock.waits.length - MOST} more`));
    return list;
  });
  $("deadlock-list").replaceChildren(...lists);
  ages();
}

// ---------- what is stuck ----------

const LONG = 30_000; // a wait that is longer is told
const phone = matchMedia("(max-width: 44rem)");
const listedLong = () => (phone.matches ? 1 : 3); // of the long waits: the list below has them all
const ALL = 100; // losses that the server remembers
let stuck = []; // ids of those that are listed
let slow = [];
let endless = [];

const waitsLong = (lock) => lock.oldest !== null && clock.lastPass - lock.oldest > LONG;

function why(lock) {
  const known = sign(lock.holder, lock.at);
  const waits = waitsLong(lock) ? `; a call has waited for ${ago(lock.oldest)}` : "";
  return `: held by ${lock.who || "nobody"}${known === "" ? "" : `, ${known}`}${waits}`;
}

// list shows locks with a text behind each, and makes the list anew only when they are others.
function list(node, ids, found, text) {
  if (node.children.length !== found.length || found.some((one, i) => one.id !== ids[i])) {
    node.replaceChildren(
      ...found.map((one) => {
        const item = element("li");
        item.append(pathButton(one.path, one.id, one.prefix), element("span"));
        return item;
      }),
    );
  }
  found.forEach((one, i) => write(node.children[i].lastChild, text(one)));
  return found.map((one) => one.id);
}

// unknown reports whether nothing is known of who holds a lock, or nobody does.
const unknown = (lock) => lock.holder === null || lock.holder.label === null;

// findStuck shows where a holder shows no sign of life, and apart from these where it may be at work, and others wait for long.
export function findStuck() {
  const still = [];
  const long = [];
  const forever = [];
  for (const lock of all) {
    if (lock.endless) forever.push(lock);
    const waits = waitsLong(lock);
    if (dead(lock.holder, lock.at)) still.push(lock);
    else if (waits) long.push(lock);
  }
  const bad = new Map();
  for (const prefix of [...knots, ...[...new Set([...still, ...forever])].map((lock) => lock.of)]) bad.set(prefix, (bad.get(prefix) ?? 0) + 1);
  count(counts, bad);
  $("stuck").hidden = still.length === 0 && lost.length === 0;
  write($("stuck-title"), `Holder probably dead or frozen: ${still.length === 0 ? "none now" : still.length}`);
  stuck = list($("stuck-list"), stuck, still.slice(0, MOST), why);
  rest($("stuck-more"), still.length - MOST);
  $("endless").hidden = forever.length === 0;
  write($("endless-title"), `Without expiry: ${forever.length}`);
  endless = list($("endless-list"), endless, forever.slice(0, MOST), why);
  rest($("endless-more"), forever.length - MOST);
  $("long").hidden = long.length === 0;
  write($("long-title"), `Long waits: ${long.length}`);
  long.sort((a, b) => unknown(b) - unknown(a) || a.oldest - b.oldest);
  slow = list($("long-list"), slow, long.slice(0, listedLong()), why);
  rest($("long-more"), long.length - listedLong());
  gone = list($("lost-list"), gone, lost.slice(0, MOST), fate);
  rest($("lost-more"), lost.length - MOST);
}

$("long-more").addEventListener("click", (event) => {
  event.preventDefault();
  longest();
});

// ---------- what was lost ----------

let lost = []; // the newest first
let gone = []; // ids of those that are listed
let since = null; // the newest that this browser has heard of; null: it has heard nothing yet

export function losses(told) {
  const newest = told.at(-1)?.at ?? 0;
  if (since !== null && newest > since) announce("A lock was lost.", $("lost"));
  since = newest;
  lost = told.toReversed();
  $("lost").hidden = lost.length === 0;
  write($("lost-title"), `Lost in the last ten minutes: ${lost.length === ALL ? `${ALL} or more` : lost.length}`);
}

function fate(loss) {
  const now = locks.get(loss.id)?.who || "nobody";
  return `: ${visible(loss.holder.who)}, ${ago(loss.at)} ago; now held by ${now}`;
}
