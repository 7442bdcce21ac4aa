// The prefixes that the page shows, and the switch between them.

import { $, element, visible, write } from "./base.js";

let served = []; // each a name and an id; empty: the only one has no name
export let only = null; // the id of the one whose locks are listed; null: all are

export const several = () => served.length > 1;

// number is which one is listed, for what the server tells of each; -1: all are.
export const number = () => served.findIndex((prefix) => prefix.id === only);

// of is the id of a lock's prefix; empty: it has no name.
export const of = (id) => id.slice(0, Math.max(0, id.indexOf("/")));

// queryOf is what names a lock in addresses.
export function queryOf(id) {
  const at = id.indexOf("/");
  return at < 0 ? `path=${id}` : `prefix=${id.slice(0, at)}&path=${id.slice(at + 1)}`;
}

// tag is the name of a lock's prefix, where there are several; else null.
export function tag(name) {
  return several() ? element("span", "kind of", visible(name)) : null;
}

// current is the id of the prefix in an address, or null.
export function current(search) {
  const name = new URLSearchParams(search).get("prefix");
  const raw = /[?&]prefix=([^&]*)/.exec(search)?.[1];
  return served.find((prefix) => prefix.id === raw || prefix.name === name)?.id ?? null;
}

function link(name, id) {
  const node = element("a", "", name);
  node.href = id === null ? location.pathname : `?prefix=${id}`;
  if (id !== null) node.dataset.id = id;
  node.append(element("span", "quiet"), element("span", "bad"));
  return node;
}

// serve takes the prefixes that the server shows.
export function serve(prefixes) {
  served = prefixes;
  if (!served.some((prefix) => prefix.id === only)) only = null;
  $("prefixes").hidden = !several();
  $("prefixes").replaceChildren(link("All", null), ...served.map(({ name, id }) => link(visible(name), id)));
  select(only);
}

export function select(id) {
  only = id;
  for (const node of $("prefixes").children) {
    if ((node.dataset.id ?? null) === id) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
  }
}

// count says how many locks each prefix has, and how many of them are stuck.
export function count(locks, stuck) {
  if (!several()) return;
  const sum = (counts) => [...counts.values()].reduce((a, b) => a + b, 0);
  for (const node of $("prefixes").children) {
    const { id } = node.dataset;
    const [n, bad] = id === undefined ? [sum(locks), sum(stuck)] : [locks.get(id) ?? 0, stuck.get(id) ?? 0];
    write(node.children[0], String(n));
    write(node.children[1], bad === 0 ? "" : `${bad} stuck`);
  }
}
