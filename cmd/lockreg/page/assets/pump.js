// Work that comes from the server, a slice at a time, so that the page answers to keys and fingers in between.

const SLICE = 8; // ms

const tasks = [];
const channel = new MessageChannel();
let pumping = false;
let begun = null; // the iterator of a task that goes on

// later has a task done after those before it. One that returns an iterator goes on for as long as that does.
export function later(task) {
  tasks.push(task);
  start();
}

// soon has it done before those.
export function soon(task) {
  tasks.unshift(task);
  start();
}

function start() {
  if (pumping) return;
  pumping = true;
  channel.port2.postMessage(0);
}

channel.port1.onmessage = () => {
  const end = performance.now() + SLICE;
  while ((begun !== null || tasks.length > 0) && performance.now() < end) {
    if (begun === null) begun = tasks.shift()() ?? null;
    else if (begun.next().done) begun = null;
  }
  pumping = begun !== null || tasks.length > 0;
  if (pumping) channel.port2.postMessage(0);
};
