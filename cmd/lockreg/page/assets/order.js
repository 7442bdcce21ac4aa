// Orders of the list. Ids differ, so each is total, and a lock is found again by halving. None changes as time passes.

import { order } from "./base.js";

const RUN = 500; // locks that are sorted, or merged, at a time

// The most contended first.
export function byContention(a, b) {
  return b.waiters - a.waiters || a.oldestOrder - b.oldestOrder || order(a.path, b.path) || order(a.id, b.id);
}

const negative = (time) => (time === null ? null : -time);
const columns = {
  path: (lock) => lock.path,
  holder: (lock) => lock.who || null,
  held: (lock) => negative(lock.since),
  lease: (lock) => (lock.holder === null ? null : (lock.ends ?? Infinity)),
  waiting: (lock) => lock.waiters,
  oldest: (lock) => negative(lock.oldest),
};

// comparison is the order of a column: what is not known comes last, and the most contended first where it is the same.
export function comparison(column, direction) {
  const value = columns[column];
  const sign = direction === "descending" ? -1 : 1;
  return (a, b) => {
    const x = value(a);
    const y = value(b);
    if (x === null || y === null) return (x === null) - (y === null) || byContention(a, b);
    return sign * order(x, y) || byContention(a, b);
  };
}

// sorting returns a list in order, and yields again and again while it works: there may be many thousands.
export function* sorting(list, compare) {
  let runs = [];
  for (let i = 0; i < list.length; i += RUN) {
    runs.push(list.slice(i, i + RUN).sort(compare));
    yield;
  }
  while (runs.length > 1) {
    const merged = [];
    for (let i = 0; i < runs.length; i += 2) merged.push(i + 1 < runs.length ? yield* merge(runs[i], runs[i + 1], compare) : runs[i]);
    runs = merged;
  }
  return runs[0] ?? [];
}

// merge is one list of two that are in order.
export function* merge(a, b, compare) {
  const out = [];
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    out.push(compare(a[i], b[j]) <= 0 ? a[i++] : b[j++]);
    if (out.length % RUN === 0) yield;
  }
  return out.concat(a.slice(i), b.slice(j));
}
