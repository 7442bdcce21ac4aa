// A lock with its holders and its queue, and its release.

import { $, ages, ago, announce, element, moment, named, visible, write } from "./base.js";
import { dead, heldFor, life } from "./life.js";
import { of, only, queryOf } from "./prefixes.js";
import { drawTrail } from "./trails.js";

let open = null; // the id of the lock in the dialog
let asking = false;
let again = false;
let release = "no"; // or yes, or login
let chosen = null; // what is to be released: the lock's id, and the holds
let lives = []; // of the holders that are shown: each a function that writes what is known of it

// show shows a lock, whose address the page has then.
export function show(id, path) {
  history.pushState({ only }, "", `?${queryOf(id)}`);
  reveal(id, path);
}

// reveal shows the lock that the address names.
export function reveal(id, path) {
  open = id;
  named(path);
  write($("detail-path"), visible(path));
  $("detail-facts").textContent = "";
  $("holders").replaceChildren();
  $("queue").replaceChildren();
  $("queue-more").textContent = "";
  trail();
  if (!$("detail").open) $("detail").showModal();
  refresh();
}

// hide shows no lock.
export function hide() {
  if (open === null) return;
  open = null;
  $("confirm").close();
  $("detail").close();
}

// trail shows how many have waited for the lock that is shown, and whether its holders are alive.
export function trail() {
  if (open === null) return;
  drawTrail(open);
  for (const tell of lives) tell();
}

// changed is called when a lock is another one than before.
export function changed(id) {
  if (id === open) refresh();
}

// reconnected is called when everything may be another.
export function reconnected() {
  if (open !== null) refresh();
}

// rights says what this browser may do.
export function rights(data) {
  release = data.release;
  $("sign-in").hidden = data.release !== "login";
  $("sign-out").hidden = !data.signedIn;
}

// One question at a time: what changes meanwhile is asked for after it.
async function refresh() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  do {
    again = false;
    const id = open;
    if (id === null) break;
    let status = 0;
    let data = null;
    try {
      const answer = await fetch(`lock?${queryOf(id)}`);
      status = answer.status;
      data = await answer.json();
    } catch {
      // The stream tells that the server is away; when it is back, the lock is asked for again.
    }
    if (id !== open) again = true;
    else if (status === 200 && data.lock === null) free();
    else if (status === 200) detail(data.lock, data.at);
  } while (again);
  asking = false;
}

function free() {
  write($("detail-facts"), "Nobody holds it, and nobody waits in Redis.");
  write($("holders-title"), "Holders");
  write($("queue-title"), "Queue");
  $("holders").replaceChildren();
  lives = [];
  $("queue").replaceChildren();
  write($("queue-more"), "");
}

// part is which side of a read-write lock, or how many permits of a semaphore, somebody has or wants.
function part(lock, one) {
  if (lock.kind === "semaphore") return permits(one.permits);
  return one.shared ? "reader" : "";
}

// nobody says that nobody waits, as far as it is known: calls within a process are known from its record alone.
function nobody(lock) {
  const known = lock.holders.length > 0 && lock.holders.every((holder) => holder.label !== null && holder.behind === 0);
  return known ? "nobody waits" : "nobody waits in Redis";
}

// next says who gets a lock when a holder loses it.
function next(lock, holder) {
  const first = lock.waiters.find((w) => !w.gone);
  if (first !== undefined) return `Next: ${visible(first.who)}.`;
  const noticing = "once that process notices at its next renewal or unlock";
  if (holder.behind > 0) return `Next: one of ${holder.behind} waiting in ${visible(holder.who)}, ${noticing}.`;
  return nobody(lock) === "nobody waits" ? "Nobody waits for it." : "Nobody waits for it in Redis.";
}

const permits = (n) => (n === 1 ? "1 permit" : `${n} permits`);

function kindOf(lock) {
  if (lock.kind === "semaphore") {
    const held = lock.holders.reduce((sum, holder) => sum + holder.permits, 0);
    const least = lock.holderCount > lock.holders.length ? "≥ " : "";
    return `semaphore of ${permits(lock.permits)}, ${least}${held} held`;
  }
  const layout = lock.layout === "redisson" ? "Redisson's format" : "Spring's format";
  return { readwrite: "read-write lock", lock: `lock in ${layout}`, "too long": "a name that is too long" }[lock.kind] ?? "free";
}

// people are the holders of a lock as they are listed, each with its holds: the permits of a process together.
function people(lock) {
  if (lock.kind !== "semaphore") return lock.holders.map((holder) => [holder]);
  const byProcess = Map.groupBy(lock.holders, ({ label, holder, kept }) =>
    JSON.stringify(label === null ? [holder.replace(/:\d+$/, ""), kept] : [label.host, label.pid, label.name, kept]),
  );
  return [...byProcess.values()];
}

// together is what several holds of a process are as one: of their leases, and signs of life, those of the worst.
function together(holds, at) {
  if (holds.length === 1) return holds[0];
  const ends = (holder) => holder.leaseMs ?? Infinity;
  const worst = holds.find((holder) => dead(holder, at)) ?? holds.reduce((a, b) => (ends(b) < ends(a) ? b : a));
  const sum = (column) => holds.reduce((n, holder) => n + holder[column], 0);
  return { ...worst, permits: sum("permits"), behind: sum("behind"), holder: `${holds.length} holds` };
}

// first is the hold of several that was asked for first; the server lists them so.
const first = (holds) => holds[0];

function person(name, value, since, [before, behind], kind) {
  const item = element("li");
  const who = element("span", "who", visible(name));
  if (kind) who.append(element("span", "kind", kind));
  if (value) who.append(element("span", "value path", visible(value)));
  item.append(who);
  if (since !== null) {
    const time = element("span");
    time.dataset.since = moment(since);
    time.dataset.before = before;
    time.dataset.behind = behind;
    item.append(time);
  }
  return item;
}

function detail(lock, at) {
  const focused = document.activeElement?.dataset?.holder;
  const long = lock.tooLong.length > 0 ? `; too long to be shown: ${lock.tooLong.join(", ")}` : "";
  write($("detail-facts"), `${kindOf(lock)}, key ${visible(lock.key)}${long}`);
  const listed = people(lock);
  const unlisted = lock.holderCount - lock.holders.length;
  const count = listed.length + unlisted;
  write($("holders-title"), count === 1 ? "Holder" : `${count} holders`);
  lives = [];
  $("holders").replaceChildren(
    ...listed.map((holds) => {
      const holder = together(holds, at);
      const since = first(holds).granted ?? first(holds).since;
      const item = person(holder.who, holder.holder, since, heldFor(first(holds)), part(lock, holder));
      const lease = element("span", "quiet");
      if (holder.leaseMs === null) lease.textContent = "lease without end";
      else lease.dataset.ends = at + holder.leaseMs;
      item.append(lease);
      const known = element("span");
      lives.push(() => {
        known.className = dead(holder, at) ? "bad" : "quiet";
        write(known, life(holder, at));
      });
      item.append(known);
      if (holder.behind > 0) item.append(element("span", "quiet", `${holder.behind} more wait in this process`));
      if (holder.token > 0) item.append(element("span", "quiet", `token ≤ ${holder.token}`));
      if (release === "yes") {
        const button = element("button", "", "Release");
        button.type = "button";
        button.dataset.holder = holder.id;
        button.addEventListener("click", () => ask(lock, holds, at));
        item.append(button);
      }
      return item;
    }),
  );
  if (lock.holderCount === 0) $("holders").append(element("li", "quiet", "Nobody."));
  const within = lock.waiting - lock.waiterCount;
  const some = within === 0 ? "" : `, of them ${within} within processes`;
  write($("queue-title"), lock.waiting === 0 ? `Queue: ${nobody(lock)}` : `Queue: ${lock.waiting} waiting${some}`);
  $("queue").replaceChildren(
    ...lock.waiters.map((w) => {
      const item = person(w.who, w.registry, w.since, ["", ""], part(lock, w));
      if (w.gone) item.append(element("span", "bad", "gone: its process no longer listens"));
      if (w.standby) item.append(element("span", "quiet", "stands by to lead"));
      if (w.behind > 0) item.append(element("span", "quiet", `${w.behind} more wait in its process`));
      return item;
    }),
  );
  const more = lock.waiterCount - lock.waiters.length;
  write($("queue-more"), more > 0 ? `and ${more} more` : "");
  ages();
  trail();
  if (focused !== undefined) {
    for (const button of $("holders").querySelectorAll("button")) if (button.dataset.holder === focused) button.focus();
  }
}

$("detail").addEventListener("close", () => {
  if ($("detail").open) return; // it came late, and another lock is shown already
  named("");
  if (open !== null) history.pushState(null, "", only === null ? location.pathname : `?prefix=${only}`);
  open = null;
  $("grid").focus({ preventScroll: true });
});
$("detail-close").addEventListener("click", () => $("detail").close());
$("detail").addEventListener("click", (event) => {
  if (event.target === $("detail")) $("detail").close(); // beside it
});

// ---------- release ----------

function ask(lock, holds, at) {
  const holder = together(holds, at);
  chosen = { path: lock.path, id: lock.id, prefixId: of(open) || undefined, holders: holds.map((hold) => hold.id) };
  write($("confirm-path"), visible(lock.path));
  const asked = first(holds).since;
  const since = asked === null ? "" : `, which asked for it ${ago(moment(asked))} ago`;
  const several = holds.length === 1 ? "" : ` All its ${holds.length} holds, of ${permits(holder.permits)}, are released.`;
  const held = `It is held by ${visible(holder.who)}${since}.${several}`;
  const known = life(holder, at);
  write($("confirm-text"), holder.kept ? "Nobody holds it: it stays taken after its release." : held);
  write(
    $("confirm-life"),
    `${known[0].toUpperCase()}${known.slice(1)}. ${next(lock, holder)}`,
  );
  $("confirm-error").hidden = true;
  $("reason").value = "";
  $("confirm").showModal();
}

async function change(url, body) {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Lockreg-Request": "1" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error), { status: answer.status });
}

$("confirm-no").addEventListener("click", () => $("confirm").close());
$("confirm-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { path, holders, ...lock } = chosen;
  const many = holders.length;
  $("confirm-yes").disabled = true;
  let late = 0; // holds that had ended before
  try {
    for (; holders.length > 0; holders.shift()) {
      try {
        await change("release", { ...lock, holderId: holders[0], reason: $("reason").value });
      } catch (error) {
        if (error.status !== 409 || many === 1) throw error;
        late++;
      }
    }
    $("confirm").close();
    announce(`Released: ${visible(path)}${late === 0 ? "" : `; ${late} of ${many} holds had ended before`}`);
  } catch (error) {
    const left = many === 1 ? "" : `${holders.length} of ${many} holds are left: `; // they are tried again
    write($("confirm-error"), left + visible(error.message));
    $("confirm-error").hidden = false;
  }
  $("confirm-yes").disabled = false;
});
$("sign-out").addEventListener("click", async () => {
  await change("logout", {}).catch(() => {});
  location.reload();
});
