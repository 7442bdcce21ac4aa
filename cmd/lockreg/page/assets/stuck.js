// What is wrong: deadlocks, and what is stuck.

import { $, ages, ago, announce, clock, duration, element, moment, process, visible, write } from "./base.js";
import { show } from "./detail.js";
import { all } from "./list.js";

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
let stuck = [];

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

export function findStuck() {
  const found = all.filter((l) => overdue(l) > 0 || (l.oldest !== null && clock.lastPass - l.oldest > LONG));
  const first = found.slice(0, 20);
  $("stuck").hidden = found.length === 0;
  write($("stuck-title"), `Stuck: ${found.length}`);
  if (first.map((l) => l.id).join() !== stuck.join()) {
    stuck = first.map((l) => l.id);
    $("stuck-list").replaceChildren(
      ...first.map((lock) => {
        const item = element("li");
        item.append(pathButton(lock.path, lock.id), element("span"));
        return item;
      }),
    );
  }
  first.forEach((lock, i) => write($("stuck-list").children[i].lastChild, why(lock)));
}
