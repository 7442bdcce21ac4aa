// The address of the page: which prefix is shown, and which lock. It can be pasted elsewhere, and "back" and "forward" go through
// what was shown.

import { $, visible, write } from "./base.js";
import { charts } from "./charts.js";
import { hide, reveal } from "./detail.js";
import { filter } from "./list.js";
import { current, only, select } from "./prefixes.js";

let missed = false; // the server could not be asked what the address names, or could not tell yet

// goTo shows the list of a prefix; null: that of all.
export function goTo(id) {
  history.pushState(null, "", id === null ? location.pathname : `?prefix=${id}`);
  arrive();
}

// arrive shows what the address names. What it cannot mean, or what is not there any more, is said above the list.
export async function arrive() {
  const { search } = location;
  missed = false;
  tell("");
  const wanted = new URLSearchParams(search);
  if (!wanted.has("prefix") && !wanted.has("path")) {
    list(null);
    return;
  }
  let answer;
  let data;
  try {
    answer = await fetch(`lock${search}`);
    data = await answer.json();
  } catch {
    missed = true;
    return;
  }
  if (search !== location.search) return; // it is another one by now
  if (answer.status === 401) location.replace(`login${search}`);
  else if (!answer.ok) {
    list(null);
    tell(`This address leads nowhere: ${visible(data.error)}.`);
  } else if (!wanted.has("path")) {
    list(current(search));
  } else if (data.lock === null && data.at === 0) {
    missed = true;
  } else if (data.lock === null) {
    list(history.state?.only ?? null);
    const where = wanted.has("prefix") ? `${wanted.get("prefix")}: ` : "";
    tell(data.id ? `${visible(where + data.path)} is no longer locked, and nobody waits for it in Redis.` : visible(data.note));
  } else {
    pick(history.state?.only ?? null);
    reveal(data.id, data.path);
  }
}

// again tries what could not be asked.
export function again() {
  if (missed) arrive();
}

function tell(text) {
  write($("notice"), text === "" ? "" : `${text} This is the list.`);
  $("notice").hidden = text === "";
}

function list(id) {
  hide();
  pick(id);
}

function pick(id) {
  if (id === only) return;
  select(id);
  filter();
  charts();
}

addEventListener("popstate", arrive);
$("prefixes").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab has an address, too
  event.preventDefault();
  goTo(link.dataset.id ?? null);
});
$("sign-in").addEventListener("click", () => {
  $("sign-in").href = `login${location.search}`; // and back
});
