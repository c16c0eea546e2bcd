// Makes pages livelier; every page works without it.
//
//   data-refresh="2000"       an element with an id is fetched again so often, from the page or from data-from;
//                             data-also names others that are changed with it, but only if they have become different;
//                             what is in an element with a data-key is known again by that, wherever it moves
//   data-verdict              an element says how things stand, as of the last time that the page was fetched
//   data-confirm="Really?"    a form asks before it is sent
//   data-ask="/console/…"     the same for a form or a button; this path answers with the question when it gets the fields
//                             of the form, or with a status of an error and the reason why there is nothing to do
//   data-submit-on-change     a form is sent when a choice is made
//   data-copy="text"          a button copies a text
//   data-select-all="name"    a box ticks all boxes of that name
//   data-preview="id"         what is typed into fields with data-in-preview of this form is shown there, from data-from
//   data-tail="/console/…"    an element gets the rows that this stream of events brings, newest first; data-status names
//                             the element that tells how the stream goes
//   data-pause="id"           a button makes a refreshed element or a tail wait, and go on
"use strict";

// The one place where text becomes HTML: answers of this server, which has escaped what strangers wrote.
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("console", { createHTML: (html) => html })
  : { createHTML: (html) => html };

function parsed(html) {
  return new DOMParser().parseFromString(policy.createHTML(html), "text/html");
}

// How long the server may take for a page; a page that waits longer is told to be old.
const PATIENCE_MS = 10000;
const LOGIN = "/console/login";

// Why a page could not be fetched again, and where to go on.
class Gone extends Error {
  constructor(text, name, target) {
    super(text);
    this.link = { name, target };
  }
}

async function fetched(from) {
  const response = await fetch(from, { headers: { accept: "text/html" }, signal: AbortSignal.timeout(PATIENCE_MS) });
  const here = location.pathname + location.search;
  if (response.redirected && new URL(response.url).pathname === LOGIN) {
    throw new Gone("the session has ended", "Log in", `${LOGIN}?${new URLSearchParams({ next: here })}`);
  }
  if (!response.ok || response.redirected) throw new Gone(`the server returned ${response.status}`, "Reload", here);
  return parsed(await response.text());
}

// Fields that keep what was typed when what is around them is exchanged.
const TYPED = "input:not([type=hidden], [type=checkbox], [type=radio]), textarea";

// Whether the element is as new as the page says now. Who reads, types or points there is not disturbed.
function isInUse(element) {
  const isFocused = element.contains(document.activeElement) && document.activeElement !== document.body;
  const selection = document.getSelection();
  const isSelected = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
  // What is asked is about a button that must still be there for the answer.
  const isAsked = document.querySelector("dialog[open]");
  return isFocused || isSelected || isAsked || element.dataset.paused !== undefined;
}

async function refresh(element) {
  if (document.hidden || isInUse(element)) return false;
  const page = await fetched(element.dataset.from || location.href);
  // Meanwhile somebody may have begun.
  if (isInUse(element)) return false;
  const fresh = page.getElementById(element.id);
  if (!fresh) throw new Gone("this content no longer exists", "Reload", location.pathname + location.search);
  for (const id of (element.dataset.also || "").split(" ").filter(Boolean)) {
    const [old, next] = [document.getElementById(id), page.getElementById(id)];
    if (old && next && !old.isEqualNode(next)) {
      old.className = next.className;
      old.replaceChildren(...next.childNodes);
    }
  }
  const open = new Map([...element.querySelectorAll("details")].map((details) => [keyOf(details), details.open]));
  const typed = [...element.querySelectorAll(TYPED)].filter((field) => field.value !== field.defaultValue);
  const ticked = new Map(boxesOf(element).filter((box) => box.checked !== box.defaultChecked).map((box) => [boxKey(box), box.checked]));
  element.replaceChildren(...fresh.childNodes);
  for (const { name, value } of typed) {
    for (const field of element.querySelectorAll(TYPED)) if (field.name === name) field.value = value;
  }
  for (const box of boxesOf(element)) box.checked = ticked.get(boxKey(box)) ?? box.checked;
  for (const details of element.querySelectorAll("details")) details.open = open.get(keyOf(details)) ?? details.open;
  settle(element);
  return true;
}

// Boxes that say something: the one that ticks all others does not.
function boxesOf(element) {
  return [...element.querySelectorAll("input[type=checkbox][name]")];
}

function boxKey(box) {
  return `${box.name} ${box.value}`;
}

// What tells one piece of folded text from the others: what it belongs to, and how it is called.
function keyOf(details) {
  return details.dataset.key ?? `${details.closest("[data-key]")?.dataset.key ?? ""} ${details.querySelector("summary")?.firstChild?.textContent ?? ""}`;
}

function keepFresh(element) {
  const again = () => setTimeout(async () => {
    try {
      if (await refresh(element)) isFresh(element);
    } catch (error) {
      isOld(element, error);
    }
    if (element.isConnected) again();
  }, Number(element.dataset.refresh));
  again();
}

// What a verdict becomes when it may no longer be true.
const UNKNOWN = "Current state unknown";

// When each live element was last as new as the server, and why those that are not could not be fetched.
const freshAt = new WeakMap();
const outdated = new Map();
const openedAt = new Date();

function isFresh(element) {
  freshAt.set(element, new Date());
  if (!outdated.delete(element)) return;
  element.classList.remove("stale");
  tellAge();
}

function isOld(element, error) {
  outdated.set(element, error);
  element.classList.add("stale");
  tellAge();
}

// Says that the page is not what it seems. Said again only when it is something else: it is read aloud.
function tellAge() {
  const line = document.getElementById("age");
  const since = ([element]) => freshAt.get(element) ?? openedAt;
  const [oldest] = [...outdated].sort((one, other) => since(one) - since(other));
  if (!line) return;
  if (!oldest) return line.replaceChildren();
  const { message, link } = oldest[1] instanceof Gone ? oldest[1] : { message: "the server is not responding; retrying" };
  const time = document.createElement("time");
  time.dateTime = since(oldest).toISOString();
  time.textContent = `${time.dateTime.slice(11, 19)} UTC`;
  const parts = ["Not updated since ", time, `: ${message}. `];
  if (link) {
    const way = document.createElement("a");
    [way.textContent, way.href] = [link.name, link.target];
    parts.push(way);
  }
  const fresh = document.createElement("p");
  fresh.append(...parts);
  localTimes(fresh);
  if (line.innerHTML !== fresh.innerHTML) line.replaceChildren(...fresh.childNodes);
  for (const verdict of document.querySelectorAll("[data-verdict]")) {
    if (verdict.textContent === UNKNOWN) continue;
    verdict.className = "warn";
    verdict.textContent = UNKNOWN;
    verdict.nextElementSibling?.replaceChildren(": the data below may be out of date.");
  }
}

// Characters that nobody sees or that turn others around, such as U+202E; what joins letters and emoji is left alone.
const UNSEEN = /([\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff])/;

// Shows them by their numbers, so that no text of a stranger looks like another.
function reveal(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (UNSEEN.test(node.data) && !node.parentElement.closest("textarea, option, title")) found.push(node);
  }
  for (const node of found) {
    node.replaceWith(...node.data.split(UNSEEN).map((part, index) => {
      if (index % 2 === 0) return part;
      const mark = document.createElement("span");
      mark.className = "codepoint";
      mark.textContent = `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
      return mark;
    }));
  }
}

// What is done to every piece of a page once it is there.
function settle(root) {
  localTimes(root);
  nameCells(root);
  reveal(root);
}

// Columns whose cells say what they are.
const PLAIN = ["State", "Status", "Actions"];

// Writes the name of its column into each cell: narrow windows show rows as a few lines without a head.
function nameCells(root) {
  for (const row of root.querySelectorAll(".scroll tbody > tr")) {
    const names = row.closest("table").tHead?.rows[0]?.cells ?? [];
    for (const cell of row.cells) {
      const name = names[cell.cellIndex]?.textContent.trim();
      if (name && cell.colSpan === 1 && !PLAIN.includes(name)) cell.dataset.label = name;
    }
  }
}

function localTimes(root) {
  const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  for (const time of root.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    if (!Number.isNaN(date.getTime())) time.title = `${time.dateTime}\n${format.format(date)} here`;
  }
}

// The answers say what they do: a question about a cancel must not have a button "Cancel" that means no.
async function ask(question, action) {
  const yes = action ? `Yes, ${action.charAt(0).toLowerCase()}${action.slice(1).replace(/…$/, "")}` : "Yes";
  return await choose(question, ["No", yes]) === yes;
}

// Shows a text and resolves to the name of the button that was pressed; the last one is the primary one.
function choose(question, names) {
  const dialog = document.createElement("dialog");
  const text = document.createElement("p");
  text.textContent = question;
  const actions = document.createElement("div");
  actions.className = "actions";
  for (const name of names) {
    const button = document.createElement("button");
    button.textContent = name;
    button.type = "button";
    button.addEventListener("click", () => dialog.close(name));
    actions.append(button);
  }
  actions.lastChild.className = "primary";
  dialog.append(text, actions);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue); });
  });
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const submitter = event.submitter;
  const path = submitter?.dataset.ask || form.dataset.ask;
  let question = submitter?.dataset.confirm || form.dataset.confirm;
  if (!(path || question) || form.dataset.confirmed !== undefined) return;
  event.preventDefault();
  if (path) {
    question = await questionAt(path, form, submitter);
    if (question === null) return;
  }
  if (await ask(question, submitter?.textContent.trim())) {
    form.dataset.confirmed = "";
    form.requestSubmit(submitter);
    delete form.dataset.confirmed;
  }
});

// The question that the server has for a form as it is now: it counts what the form means. Null: there is nothing to do,
// which the visitor has seen.
async function questionAt(path, form, submitter) {
  let text = "The server did not respond. Nothing was changed.";
  try {
    const fields = new URLSearchParams(new FormData(form, submitter));
    const response = await fetch(`${path}?${fields}`);
    if (response.redirected) {
      location.reload();
      return null;
    }
    text = await response.text();
    if (response.ok) return text;
  } catch (error) {
    console.error(error);
  }
  await choose(text, ["OK"]);
  return null;
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-submit-on-change]");
  if (form) form.requestSubmit();
  const all = event.target.dataset.selectAll;
  if (all) for (const box of document.querySelectorAll(`input[type=checkbox][name="${CSS.escape(all)}"]`)) box.checked = event.target.checked;
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy failed";
  }
  setTimeout(() => { button.textContent = name; }, 1500);
});

function preview(form) {
  const element = document.getElementById(form.dataset.preview);
  let waiting, latest = 0;
  const show = async (mine) => {
    const fields = [...form.querySelectorAll("[data-in-preview]")].map((field) => [field.name, field.value]);
    const from = `${form.dataset.from}?${new URLSearchParams(fields)}`;
    try {
      const response = await fetch(from, { headers: { accept: "text/html" } });
      const fresh = parsed(await response.text()).getElementById(element.id);
      // A later answer may have come first.
      if (mine !== latest || !fresh) return;
      element.replaceChildren(...fresh.childNodes);
      element.classList.remove("stale");
      settle(element);
    } catch {
      element.classList.add("stale");
    }
  };
  form.addEventListener("input", (event) => {
    if (event.target.dataset.inPreview === undefined) return;
    clearTimeout(waiting);
    latest += 1;
    waiting = setTimeout(show, 250, latest);
  });
}

function tail(element) {
  const rowsMax = Number(element.dataset.rows || 500);
  const status = document.getElementById(element.dataset.status);
  const say = (text) => { if (status && status.textContent !== text) status.textContent = text; };
  // What comes during a pause, the newest first.
  let held = [];
  const show = () => {
    if (element.dataset.paused !== undefined) return say(held.length ? `Paused. New lines: ${held.length}` : "Paused");
    if (held.length) {
      element.querySelector(".none")?.remove();
      element.prepend(...held);
      held = [];
      while (element.children.length > rowsMax) element.lastElementChild.remove();
      settle(element);
    }
    say("Live. New lines appear at the top");
  };
  const connect = () => {
    const source = new EventSource(element.dataset.tail);
    let problem = "";
    source.addEventListener("open", () => { problem = ""; isFresh(element); show(); });
    source.addEventListener("problem", (event) => { problem = event.data; say(problem); });
    source.addEventListener("row", (event) => {
      // Rows are only parsed inside a table.
      held = [...parsed(`<table><tbody>${event.data}</tbody></table>`).querySelectorAll("tbody > *"), ...held].slice(0, rowsMax);
      show();
    });
    source.addEventListener("error", () => {
      say(problem || "Connection lost; reconnecting. Some lines may be missing");
      if (source.readyState !== EventSource.CLOSED) return;
      // Streams do not say why they were refused; the page does.
      fetched(location.href).catch((error) => isOld(element, error));
      setTimeout(connect, 5000);
    });
  };
  element.addEventListener("pause", show);
  connect();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-pause]");
  const element = button && document.getElementById(button.dataset.pause);
  if (!element) return;
  const isPaused = element.toggleAttribute("data-paused");
  button.setAttribute("aria-pressed", String(isPaused));
  button.textContent = isPaused ? "Resume" : "Pause";
  element.dispatchEvent(new Event("pause"));
});

for (const element of document.querySelectorAll("[data-refresh][id]")) keepFresh(element);
for (const form of document.querySelectorAll("form[data-preview]")) preview(form);
for (const element of document.querySelectorAll("[data-tail]")) tail(element);
settle(document.body);
const here = document.querySelector(".top nav a[aria-current]");
if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 40;
