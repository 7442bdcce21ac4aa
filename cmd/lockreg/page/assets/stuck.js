// What is wrong: deadlocks, and what is stuck.

import { $, ages, ago, announce, clock, duration, element, moment, process, visible, write } from "./base.js";
import { show } from "./detail.js";
import { all, locks } from "./list.js";

function pathButton(path, id) {
  const button = element("button", "path", visible(path));
  button.type = "button";
  button.addEventListener("click", () => show(id, path));
  return button;
}

let told = 0; // how many have been announced

export function deadlocks(found) {
  const section = $("deadlocks");
  section.hidden = found.length === 0;
  write($("deadlocks-title"), found.length === 1 ? "A deadlock" : `${found.length} deadlocks`);
  if (found.length > told) announce(found.length === 1 ? "There is a deadlock." : `There are ${found.length} deadlocks.`);
  told = found.length;
  const lists = found.slice(0, 20).map((deadlock) => {
    const list = element("ol");
    for (const wait of deadlock.waits.slice(0, 20)) {
      const item = element("li");
      item.append(`${visible(wait.owner)} in ${process(wait.label, null, "")} holds `);
      wait.holds.forEach((path, i) => item.append(i > 0 ? ", " : "", pathButton(path, wait.holdIds[i])));
      item.append(" and waits for ", pathButton(wait.path, wait.id));
      if (wait.since !== null) {
        const since = element("span");
        since.dataset.since = moment(wait.since);
        item.append(" for ", since);
      }
      list.append(item);
    }
    return list;
  });
  $("deadlock-list").replaceChildren(...lists);
  ages();
}

// ---------- what is stuck ----------

const LONG = 30_000; // a wait that is longer is told
const MOST = 20; // are listed
const ALL = 100; // losses that the server remembers
let stuck = []; // ids of those that are listed

// How late the renewal of a lock's lease was at the last pass; 0: in time, or not known.
function overdue(lock) {
  if (lock.renewed === 0 || lock.ends === null) return 0;
  const late = (lock.renewed * 2) / 3 - (lock.ends - clock.lastPass);
  return late >= Math.max(1000, lock.renewed / 10) ? late : 0;
}

function why(lock) {
  const late = overdue(lock);
  if (late > 0) return `: ${lock.who}, renewal overdue by ${duration(late)}, probably dead`;
  return `: held by ${lock.who || "nobody"}, somebody has waited for ${ago(lock.oldest)}`;
}

// list shows locks with a text behind each, and makes the list anew only when they are others.
function list(node, ids, found, text) {
  if (node.children.length !== found.length || found.some((one, i) => one.id !== ids[i])) {
    node.replaceChildren(
      ...found.map((one) => {
        const item = element("li");
        item.append(pathButton(one.path, one.id), element("span"));
        return item;
      }),
    );
  }
  found.forEach((one, i) => write(node.children[i].lastChild, text(one)));
  return found.map((one) => one.id);
}

export function findStuck() {
  const found = all.filter((l) => overdue(l) > 0 || (l.oldest !== null && clock.lastPass - l.oldest > LONG));
  $("stuck").hidden = found.length === 0 && lost.length === 0;
  write($("stuck-title"), `Stuck: ${found.length === 0 ? "nothing now" : found.length}`);
  stuck = list($("stuck-list"), stuck, found.slice(0, MOST), why);
  gone = list($("lost-list"), gone, lost.slice(0, MOST), fate);
}

// ---------- what was lost ----------

let lost = []; // the newest first
let gone = []; // ids of those that are listed
let since = null; // the newest that this browser has heard of; null: it has heard nothing yet

export function losses(told) {
  const newest = told.at(-1)?.at ?? 0;
  if (since !== null && newest > since) announce("A lock was lost.");
  since = newest;
  lost = told.toReversed();
  $("lost").hidden = lost.length === 0;
  write($("lost-title"), `Lost in the last ten minutes: ${lost.length === ALL ? `${ALL} or more` : lost.length}`);
}

function fate(loss) {
  const now = locks.get(loss.id)?.who || "nobody";
  return `: ${process(loss.holder.label, loss.holder.since, loss.holder.holder)}, ${ago(loss.at)} ago; now held by ${now}`;
}
