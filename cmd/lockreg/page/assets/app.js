// The page: a stream of server-sent events on one side, what they tell on the other.

import { again, arrive } from "./address.js";
import { $, ages, announce, clock, duration, entitle, serverNow, visible, write } from "./base.js";
import { began as chartsBegan, failed, sampled, waits } from "./charts.js";
import { changed, reconnected, rights, trail } from "./detail.js";
import { begin, dirty, drop, end, measure, mingle, put } from "./list.js";
import { serve } from "./prefixes.js";
import { later } from "./pump.js";
import { deadlocks, findStuck, losses } from "./stuck.js";
import { lose } from "./trails.js";

let source = null; // the stream; null: none is wanted, as nobody sees the page
let resting = false; // there was none until now
let connected = false;
let silent = 0; // since when Redis does not answer, by the server's clock; 0: it does
let mute = ""; // what does not: Redis, or some of its masters
let began = 0; // when the connection did, by this clock
let greeted = 0; // how often the server has begun to tell
let found = 0; // locks, by the pass that is under way; 0: it is over, or quick

const handlers = {
  hello(data) {
    write($("title"), visible(data.title));
    if (greeted === 0) entitle(data.title === "" ? "Locks" : `Locks: ${visible(data.title)}`);
    serve(data.prefixes);
    rights(data);
    connected = true;
    resting = false;
    silent = 0; // or it is told next
    began = Date.now();
    chartsBegan(data.history);
    lose();
    if (greeted++ === 0) arrive();
    else again();
  },
  begin,
  rows(rows) {
    for (const row of rows) if (put(row)) changed(row.id);
    return mingle();
  },
  gone(ids) {
    for (const id of ids) {
      drop(id);
      changed(id);
    }
  },
  end() {
    reconnected();
    return end(handlers.gone);
  },
  silence(data) {
    const servers = (data.servers ?? []).map(visible);
    const now = `${servers.join(", ") || "Redis"} ${servers.length > 1 ? "do" : "does"} not answer`;
    if (data.since > 0 && (silent === 0 || now !== mute)) announce(`${now}.`, $("age"));
    if (data.since === 0 && silent > 0) announce("Redis answers again.", $("age"));
    silent = data.since;
    mute = now;
    age();
  },
  *tick(data) {
    yield* mingle(1);
    found = data.found;
    if (data.at > 0) {
      clock.lastPass = data.at;
      waits(data.of);
    }
    if (data.failed) failed();
    else if (data.at > 0 && data.found === 0) sampled(data.at, data.of);
    write($("trouble"), data.trouble === "" ? "" : `Redis did not answer everything: ${visible(data.trouble)}`);
    $("trouble").hidden = data.trouble === "";
    if (data.deadlocks) deadlocks(data.deadlocks);
    if (data.lost) losses(data.lost);
    findStuck();
    if (data.at > 0) again();
    age();
    dirty();
  },
};

function connect() {
  const stream = new EventSource("events");
  source = stream;
  for (const name of Object.keys(handlers)) {
    stream.addEventListener(name, (event) => {
      if (name === "tick") {
        // Read before it waits for its turn, as it tells how old things are.
        const at = /"at":(\d+)/.exec(event.data);
        if (at && at[1] !== "0") clock.offset = Math.max(clock.offset, Number(at[1]) - Date.now());
      }
      later(() => handlers[name](JSON.parse(event.data)));
    });
  }
  stream.addEventListener("error", async () => {
    connected = false;
    resting = false;
    age();
    if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again
    stream.close();
    try {
      const answer = await fetch("lock?path=");
      if (answer.status === 401) {
        location.replace(`login${location.search}`);
        return;
      }
    } catch {
      // Not there: try again below.
    }
    setTimeout(() => {
      if (source === stream) connect(); // else the page was hidden meanwhile
    }, 3000);
  });
}

// A browser has six connections to a server for all of its tabs, and a stream takes one for as long as it lasts. So a tab that
// nobody sees gives its own back.
const REST = 10_000; // ms
let hiding = 0; // the timer

function seen() {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(rest, REST);
  else if (source === null) connect();
}

function rest() {
  source.close();
  source = null;
  connected = false;
  resting = true;
}

// ---------- what changes by itself ----------

function age() {
  const old = serverNow() - clock.lastPass;
  const current = connected && silent === 0 && clock.lastPass > 0 && old < 5000;
  $("dot").className = current ? "dot live" : clock.lastPass > 0 || !connected ? "dot old" : "dot";
  let text = "connecting";
  const reading = `reading, ${found} ${found === 1 ? "lock" : "locks"} so far`;
  if (connected && clock.lastPass === 0) text = `${reading}, for ${duration(Date.now() - began)}`;
  if (clock.lastPass > 0) text = old < 10_000 ? `${(Math.max(0, old) / 1000).toFixed(1)} s old` : `${duration(old)} old`;
  if (current) text = `live, ${text}`;
  else if (connected && clock.lastPass > 0 && found > 0) text = `${text}, ${reading}`;
  else if (!connected && clock.lastPass > 0) text = `${resting ? "connecting" : "connection lost"}, ${text}`;
  if (connected && silent > 0) text = `${mute}; last seen ${duration(serverNow() - silent)} ago`;
  write($("age"), text);
}

setInterval(() => {
  ages();
  age();
  trail();
  dirty();
}, 1000);
measure();
connect();
document.addEventListener("visibilitychange", seen);
seen(); // it may have been opened behind another one
