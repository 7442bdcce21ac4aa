// What is known of whether a holder is at work, as of the last pass. When a lease ends is known from the pass that saw it first.

import { clock, duration, moment } from "./base.js";

const RECORDED = 5000; // who has held or waited for so long has a record of its process, unless it may not write one

const left = (holder, at) => at + holder.leaseMs - clock.lastPass;
const renewed = (holder, at) => duration(holder.renewedMs - left(holder, at));

// renews reports whether a lease is known to be renewed.
const renews = (holder) => holder !== null && holder.renewedMs > 0 && holder.leaseMs !== null;

// heldFor returns what stands before and behind the time since a holder got its lock. Until its process has told that, only when it
// asked is known: it may have waited since, for most of a long time.
export function heldFor(holder) {
  if (holder.granted !== null) return ["", ""];
  return young(holder) ? ["\u2264 ", ""] : ["asked ", " ago"];
}

// young reports whether a holder asked so lately that there may be no record of its process yet.
const young = (holder) => clock.lastPass - moment(holder.since) < RECORDED;

// roundedUp is a duration that is never too short.
const roundedUp = (ms) => duration(ms + 1000);

// chance is how late a renewal may be by chance.
const chance = (holder) => Math.max(1000, holder.renewedMs / 10);

// untilOverdue is how long it takes until a holder is overdue that has renewed its lease for the last time.
const untilOverdue = (holder, at) => left(holder, at) - (holder.renewedMs * 2) / 3 + chance(holder);

// overdue is how late the renewal of a lease is; 0: in time, or not known.
function overdue(holder, at) {
  if (!renews(holder)) return 0;
  const late = (holder.renewedMs * 2) / 3 - left(holder, at);
  return late >= chance(holder) ? late : 0;
}

// dead reports whether a holder is probably dead or frozen: its renewal is overdue, its process renews nothing that it should, or
// has no record.
export const dead = (holder, at) => holder !== null && (overdue(holder, at) > 0 || holder.silentMs > 0 || unrecorded(holder));

// unrecorded reports whether a holder should have a record of its process, and has none.
function unrecorded(holder) {
  if (holder === null || holder.kept || holder.label !== null || holder.since === null) return false;
  return !young(holder);
}

// sign is a few words on it; empty: nothing is known.
export function sign(holder, at) {
  const late = overdue(holder, at);
  if (late > 0) return `renewal overdue by ${duration(late)}, probably dead or frozen`;
  if (unrecorded(holder)) return "no record: probably dead";
  if (dead(holder, at)) return "process probably dead or frozen";
  return renews(holder) ? `granted or renewed ${renewed(holder, at)} ago` : "";
}

// life is all of it, as lockreg release says it.
export function life(holder, at) {
  if (holder.kept) return "no process works under it";
  if (overdue(holder, at) > 0) return `not renewed for ${renewed(holder, at)}: it is probably dead or frozen`;
  if (holder.silentMs > 0) {
    const silent = duration(holder.silentMs + clock.lastPass - at);
    return `its process has shown no sign of life for ${silent}, and should have: it is probably dead or frozen`;
  }
  if (renews(holder)) {
    const text = "ago: its process was alive then; if it has died since, this shows within";
    return `granted or renewed ${renewed(holder, at)} ${text} ${roundedUp(untilOverdue(holder, at))}`;
  }
  if (unrecorded(holder)) {
    const text = "no record of its process: it is dead or frozen, or may not write one";
    if (holder.leaseMs === null) return text;
    const first = Math.round((at + holder.leaseMs - moment(holder.since)) / 1000) * 1000;
    return `${text}; its lease is ${duration(first)} if it was never renewed, else shorter`;
  }
  if (holder.label !== null) {
    const text = "its process was alive in the last minute; if it has died since, this shows within a minute;";
    return `${text} whether it renews its lease is not known`;
  }
  if (holder.since !== null) {
    const until = roundedUp(RECORDED - (clock.lastPass - moment(holder.since)));
    return `it is too new for a record of its process; one shows within ${until}`;
  }
  if (holder.leaseMs === null) return "whether it is alive is not known";
  return `whether it is alive is not known; if it is dead, its lease ends in ${duration(left(holder, at))}`;
}
