// The page: a stream of server-sent events on one side, a list of which only what can be seen is in the document on the other.
// Everything that comes from Redis gets into the document by textContent and attributes alone.

const $ = (id) => document.getElementById(id);
const MINUTES = 10;
const SLICE = 8; // ms of work at a time, so that the page answers to keys and fingers in between

// ---------- time ----------

// The server's clock minus this one, as well as it can be known: what has just arrived is at least as old as the quickest event.
let offset = -Infinity;
let lastPass = 0; // when the last pass ended, by the server's clock
let connected = false;
let silent = 0; // since when Redis does not answer, by the server's clock; 0: it does
let began = 0; // when the connection did, by this clock
let found = 0; // locks, by the pass that is under way; 0: it is over, or quick

const serverNow = () => Date.now() + (Number.isFinite(offset) ? offset : 0);

function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const ago = (time) => (time === null ? "" : duration(serverNow() - time));
const moment = (text) => (text === null ? null : Date.parse(text));

// ---------- names ----------

// Characters that are not seen, or that turn the direction of others, are shown by their numbers. So are blanks but the space.
const HIDDEN =
  /(?! )[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Zs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u{2800}\u{16fe4}\u{1d159}]/gu;
const visible = (text) => text.replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

// A registry tells its label when it has held or waited for a second. Java and older versions never do, nor since when they hold.
function process(label, since, registry) {
  if (label === null) {
    return since === null ? "unknown (Java, or an older version)" : `registry ${visible(registry).slice(0, 8)}`;
  }
  const place = `${visible(label.host)}, pid ${label.pid}`;
  return label.name === "" ? place : `${visible(label.name)} (${place})`;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---------- the locks ----------

const locks = new Map(); // by id, as a path may be no text
let all = []; // sorted
let shown = []; // those of all that the filter lets through
let generation = 0; // grows with each complete listing
let listing = false; // one is under way
let active = null; // the id of the one that the keyboard is on
let wanted = "";
let beginning = false;

// The most contended first. Ids differ, so the order is total, and a lock is found again by halving.
function compare(a, b) {
  return b.waiters - a.waiters || a.oldestOrder - b.oldestOrder || order(a.path, b.path) || order(a.id, b.id);
}

const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

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
  return beginning ? lock.path.startsWith(wanted) : lock.words.includes(wanted.toLowerCase());
}

function take(list, lock) {
  const at = place(list, lock);
  if (list[at] === lock) list.splice(at, 1);
}

function put(row) {
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
    renewed: holder === null ? 0 : holder.renewedMs,
    who: holder === null ? "" : holder.kept ? "kept after its release" : process(holder.label, holder.since, holder.holder),
  };
  lock.words = `${row.path}\n${lock.who}`.toLowerCase();
  if (old) {
    take(all, old);
    take(shown, old);
  }
  locks.set(row.id, lock);
  all.splice(place(all, lock), 0, lock);
  if (matches(lock)) shown.splice(place(shown, lock), 0, lock);
  if (row.id === open && (!old || old.version !== row.version)) refresh();
}

function drop(id) {
  const lock = locks.get(id);
  if (!lock) return;
  locks.delete(id);
  take(all, lock);
  take(shown, lock);
  if (id === open) refresh();
}

function filter() {
  wanted = $("filter").value;
  beginning = $("beginning").checked;
  shown = all.filter(matches);
  dirty();
}

// ---------- events ----------

const handlers = {
  hello(data) {
    write($("title"), visible(data.title));
    document.title = data.title === "" ? "Locks" : `Locks: ${visible(data.title)}`;
    release = data.release;
    $("sign-in").hidden = data.release !== "login";
    $("sign-out").hidden = !data.signedIn;
    samples = data.history;
    connected = true;
    silent = 0; // or it is told next
    began = Date.now();
    charts();
  },
  begin() {
    generation++;
    listing = true;
  },
  rows(rows) {
    for (const row of rows) put(row);
    dirty();
  },
  gone(ids) {
    for (const id of ids) drop(id);
    dirty();
  },
  end() {
    // What the listing did not name is not there any more. Looking for it is work for a slice of its own.
    const left = all.filter((lock) => lock.generation !== generation).map((lock) => lock.id);
    for (let i = 0; i < left.length; i += 100) inbox.push(["gone", left.slice(i, i + 100)]);
    listing = false;
    if (open !== null) refresh();
    dirty();
  },
  silence(data) {
    if ((silent > 0) !== (data.since > 0)) announce(data.since > 0 ? "Redis does not answer." : "Redis answers again.");
    silent = data.since;
    age();
  },
  tick(data) {
    found = data.found;
    if (data.at > 0) {
      lastPass = data.at;
      const last = samples.at(-1);
      if (!last || data.at - last[0] >= 1000) {
        samples.push([data.at, data.held, data.waiters, data.oldest]);
        while (samples.length > MINUTES * 60) samples.shift();
        charts();
      }
    }
    write($("trouble"), data.trouble === "" ? "" : `Redis cannot be asked for everything: ${visible(data.trouble)}`);
    $("trouble").hidden = data.trouble === "";
    if (data.deadlocks) deadlocks(data.deadlocks);
    findStuck();
    age();
    dirty();
  },
};

const inbox = [];
const channel = new MessageChannel();
let pumping = false;

function pump() {
  const end = performance.now() + SLICE;
  while (inbox.length > 0 && performance.now() < end) {
    const [name, data] = inbox.shift();
    handlers[name](typeof data === "string" ? JSON.parse(data) : data);
  }
  pumping = inbox.length > 0;
  if (pumping) channel.port2.postMessage(0);
}
channel.port1.onmessage = pump;

function connect() {
  const source = new EventSource("events");
  for (const name of Object.keys(handlers)) {
    source.addEventListener(name, (event) => {
      if (name === "tick") {
        // Read before it waits in the inbox, as it tells how old things are.
        const at = /"at":(\d+)/.exec(event.data);
        if (at && at[1] !== "0") offset = Math.max(offset, Number(at[1]) - Date.now());
      }
      inbox.push([name, event.data]);
      if (!pumping) {
        pumping = true;
        channel.port2.postMessage(0);
      }
    });
  }
  source.addEventListener("error", async () => {
    connected = false;
    age();
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
    source.close();
    try {
      const answer = await fetch("lock?path=");
      if (answer.status === 401) {
        location.replace("login");
        return;
      }
    } catch {
      // Not there: try again below.
    }
    setTimeout(connect, 3000);
  });
}

// ---------- the list ----------

const grid = $("grid");
const body = $("rows");
const pool = [];
let rowHeight = 52;
let painting = false;

function dirty() {
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
  const path = element("span", "path");
  const kind = element("span", "kind");
  cells[0].append(path, kind);
  const row = { node, cells, path, kind, lock: null, index: -1 };
  node.addEventListener("click", () => {
    if (row.lock === null) return;
    active = row.lock.id;
    show(row.lock.id, row.lock.path);
  });
  body.append(node);
  return row;
}

function paint() {
  painting = false;
  const top = body.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(-top / rowHeight) - 4);
  const last = Math.min(shown.length, Math.ceil((innerHeight - top) / rowHeight) + 4);
  const height = `${shown.length * rowHeight}px`;
  if (body.style.height !== height) body.style.height = height;
  const needed = Math.max(0, last - first);
  while (pool.length < needed) pool.push(newRow(pool.length));
  while (pool.length > needed + 30) pool.pop().node.remove();
  const used = new Set();
  for (let index = first; index < last; index++) {
    const row = pool[index % pool.length];
    used.add(row);
    fill(row, index, shown[index]);
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

  const whole = `${locks.size} ${locks.size === 1 ? "lock" : "locks"}`;
  write($("count"), wanted === "" ? whole : `${shown.length} of ${whole}`);
  $("empty").hidden = shown.length > 0 || lastPass === 0 || listing;
  write($("empty"), locks.size === 0 ? "Nothing is locked, and nobody waits." : "No lock matches the filter.");
}

function fill(row, index, lock) {
  const { node, cells } = row;
  if (node.hidden) node.hidden = false;
  if (row.index !== index || row.height !== rowHeight) {
    row.index = index;
    row.height = rowHeight;
    node.style.transform = `translateY(${index * rowHeight}px)`;
    node.setAttribute("aria-rowindex", String(index + 2));
  }
  if (row.lock !== lock) {
    row.lock = lock;
    write(row.path, visible(lock.path));
    write(row.kind, { readwrite: "read-write", "too long": "too long" }[lock.kind] ?? "");
    cells[0].title = visible(lock.path);
    const others = lock.holders - 1;
    const who = others > 0 ? `${lock.who} and ${others} more` : lock.who || "nobody";
    write(cells[1], who);
    cells[1].title = who;
    write(cells[4], String(lock.waiters));
    cells[4].classList.toggle("queued", lock.waiters > 0);
  }
  write(cells[2], ago(lock.since));
  write(cells[3], lock.holder === null ? "" : lock.ends === null ? "no end" : duration(lock.ends - serverNow()));
  write(cells[5], ago(lock.oldest));
}

function measure() {
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
$("filter").addEventListener("input", filter);
$("beginning").addEventListener("change", filter);
$("filter-form").addEventListener("submit", (event) => {
  event.preventDefault();
  grid.focus();
});

// ---------- charts ----------

let samples = [];

function charts() {
  if (samples.length === 0) return;
  const end = samples.at(-1)[0];
  // As much as there is, but for the first minute.
  const span = Math.min(MINUTES * 60_000, Math.max(60_000, end - samples[0][0]));
  chart("held", 1, end, span, "Locks held", String);
  chart("waiters", 2, end, span, "Waiting", String);
  chart("oldest", 3, end, span, "Oldest wait", duration);
}

function chart(id, column, end, span, name, format) {
  const most = samples.reduce((m, s) => Math.max(m, s[column]), 0);
  const lines = [];
  const areas = [];
  let before = null;
  for (const sample of samples) {
    const x = 600 - ((end - sample[0]) / span) * 600;
    const y = most === 0 ? 59 : 59 - (sample[column] / most) * 56;
    const point = `${x.toFixed(1)} ${y.toFixed(1)}`;
    if (before === null || sample[0] - before.time > 5000) {
      // Nobody looked in between, so nothing is known.
      if (before !== null) areas.push(`L${before.x} 60Z`);
      lines.push(`M${point}`);
      areas.push(`M${x.toFixed(1)} 60L${point}`);
    } else {
      lines.push(`L${point}`);
      areas.push(`L${point}`);
    }
    before = { time: sample[0], x: x.toFixed(1) };
  }
  if (before !== null) areas.push(`L${before.x} 60Z`);
  const svg = $(id);
  svg.querySelector(".line").setAttribute("d", lines.join(""));
  svg.querySelector(".area").setAttribute("d", areas.join(""));
  const now = format(samples.at(-1)[column]);
  write($(`${id}-now`), now);
  write($(`${id}-most`), `peak ${format(most)}`);
  svg.setAttribute("aria-label", `${name} in the last ${duration(span)}: ${now} now, ${format(most)} at most`);
}

// ---------- deadlocks ----------

function pathButton(path, id) {
  const button = element("button", "path", visible(path));
  button.type = "button";
  button.addEventListener("click", () => show(id, path));
  return button;
}

let told = 0; // how many have been announced

function deadlocks(found) {
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
  const late = (lock.renewed * 2) / 3 - (lock.ends - lastPass);
  return late >= Math.max(1000, lock.renewed / 10) ? late : 0;
}

function why(lock) {
  const late = overdue(lock);
  if (late > 0) return `: ${lock.who}, renewal overdue by ${duration(late)}, probably dead`;
  return `: held by ${lock.who || "nobody"}, somebody has waited for ${ago(lock.oldest)}`;
}

function findStuck() {
  const found = all.filter((l) => overdue(l) > 0 || (l.oldest !== null && lastPass - l.oldest > LONG));
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

// ---------- a lock ----------

let open = null; // the id of the lock in the dialog
let asking = false;
let again = false;
let release = "no";
let chosen = null; // the holder to be released

function show(id, path) {
  open = id;
  write($("detail-path"), visible(path));
  $("detail-facts").textContent = "";
  $("holders").replaceChildren();
  $("queue").replaceChildren();
  $("queue-more").textContent = "";
  if (!$("detail").open) $("detail").showModal();
  refresh();
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
      const answer = await fetch(`lock?path=${id}`);
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
  write($("detail-facts"), "Nobody holds it, and nobody waits.");
  write($("holders-title"), "Holders");
  write($("queue-title"), "Queue");
  $("holders").replaceChildren();
  $("queue").replaceChildren();
  write($("queue-more"), "");
}

function person(label, value, since, shared) {
  const item = element("li");
  const who = element("span", "who", process(label, since, value));
  if (shared) who.append(element("span", "kind", "reader"));
  if (value) who.append(element("span", "value path", visible(value)));
  item.append(who);
  if (since !== null) {
    const time = element("span");
    time.dataset.since = moment(since);
    item.append(time);
  }
  return item;
}

function detail(lock, at) {
  const focused = document.activeElement?.dataset?.holder;
  const layout = lock.layout === "redisson" ? "Redisson's format" : "Spring's format";
  const kind = { readwrite: "read-write lock", lock: `lock in ${layout}`, "too long": "a name that is too long" }[lock.kind] ?? "free";
  const long = lock.tooLong.length > 0 ? `; too long to be shown: ${lock.tooLong.join(", ")}` : "";
  write($("detail-facts"), `${kind}, key ${visible(lock.key)}${long}`);
  write($("holders-title"), lock.holderCount === 1 ? "Holder" : `${lock.holderCount} holders`);
  $("holders").replaceChildren(
    ...lock.holders.map((holder) => {
      const item = person(holder.label, holder.holder, holder.granted ?? holder.since, holder.shared);
      if (holder.kept) item.querySelector(".who").prepend("Kept after its release, by ");
      const lease = element("span", "quiet");
      if (holder.leaseMs === null) lease.textContent = "lease without end";
      else lease.dataset.ends = at + holder.leaseMs;
      item.append(lease);
      if (holder.overdueMs > 0) {
        item.append(element("span", "bad", `renewal overdue by ${duration(holder.overdueMs)}, probably dead`));
      }
      if (holder.behind > 0) item.append(element("span", "quiet", `${holder.behind} more wait in this process`));
      if (holder.token > 0) item.append(element("span", "quiet", `token ≤ ${holder.token}`));
      if (release === "yes") {
        const button = element("button", "", "Release");
        button.type = "button";
        button.dataset.holder = holder.id;
        button.addEventListener("click", () => ask(lock, holder));
        item.append(button);
      }
      return item;
    }),
  );
  if (lock.holderCount === 0) $("holders").append(element("li", "quiet", "Nobody."));
  write($("queue-title"), lock.waiterCount === 0 ? "Queue: nobody waits" : `Queue: ${lock.waiterCount} waiting`);
  $("queue").replaceChildren(
    ...lock.waiters.map((w) => {
      const item = person(w.label, w.registry, w.since, w.shared);
      if (w.gone) item.append(element("span", "bad", "gone: nobody listens"));
      if (w.standby) item.append(element("span", "quiet", "stands by to lead"));
      if (w.behind > 0) item.append(element("span", "quiet", `${w.behind} more wait in its process`));
      return item;
    }),
  );
  const more = lock.waiterCount - lock.waiters.length;
  write($("queue-more"), more > 0 ? `and ${more} more` : "");
  ages();
  if (focused !== undefined) {
    for (const button of $("holders").querySelectorAll("button")) if (button.dataset.holder === focused) button.focus();
  }
}

$("detail").addEventListener("close", () => {
  if ($("detail").open) return; // it came late, and another lock is shown already
  open = null;
  grid.focus({ preventScroll: true });
});
$("detail-close").addEventListener("click", () => $("detail").close());
$("detail").addEventListener("click", (event) => {
  if (event.target === $("detail")) $("detail").close(); // beside it
});

// ---------- release ----------

function ask(lock, holder) {
  chosen = { path: lock.path, id: lock.id, holder: holder.id };
  write($("confirm-path"), visible(lock.path));
  const since = holder.since === null ? "" : `, which asked for it ${ago(moment(holder.since))} ago`;
  const held = `It is held by ${process(holder.label, holder.since, holder.holder)}${since}.`;
  write($("confirm-text"), holder.kept ? "Nobody holds it: it stays taken after its release." : held);
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
  if (!answer.ok) throw new Error((await answer.json()).error);
}

$("confirm-no").addEventListener("click", () => $("confirm").close());
$("confirm-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { path, id, holder } = chosen;
  $("confirm-yes").disabled = true;
  try {
    await change("release", { id, holderId: holder, reason: $("reason").value });
    $("confirm").close();
    announce(`Released: ${visible(path)}`);
  } catch (error) {
    write($("confirm-error"), visible(error.message));
    $("confirm-error").hidden = false;
  }
  $("confirm-yes").disabled = false;
});
$("sign-out").addEventListener("click", async () => {
  await change("logout", {}).catch(() => {});
  location.reload();
});

let silence = 0;
function announce(text) {
  write($("status"), text);
  clearTimeout(silence);
  silence = setTimeout(() => write($("status"), ""), 6000);
}

// ---------- what changes by itself ----------

function ages() {
  for (const node of document.querySelectorAll("[data-since]")) write(node, ago(Number(node.dataset.since)));
  for (const node of document.querySelectorAll("[data-ends]")) {
    write(node, `lease ${duration(Number(node.dataset.ends) - serverNow())}`);
  }
}

function age() {
  const old = serverNow() - lastPass;
  const current = connected && silent === 0 && lastPass > 0 && old < 5000;
  $("dot").className = current ? "dot live" : lastPass > 0 || !connected ? "dot old" : "dot";
  let text = "connecting";
  const reading = `reading, ${found} ${found === 1 ? "lock" : "locks"} so far`;
  if (connected && lastPass === 0) text = `${reading}, for ${duration(Date.now() - began)}`;
  if (lastPass > 0) text = old < 10_000 ? `${(Math.max(0, old) / 1000).toFixed(1)} s old` : `${duration(old)} old`;
  if (current) text = `live, ${text}`;
  else if (connected && lastPass > 0 && found > 0) text = `${text}, ${reading}`;
  else if (!connected && lastPass > 0) text = `connection lost, ${text}`;
  if (connected && silent > 0) text = `Redis does not answer; last seen ${duration(serverNow() - silent)} ago`;
  write($("age"), text);
}

setInterval(() => {
  ages();
  age();
  dirty();
}, 1000);
measure();
connect();
