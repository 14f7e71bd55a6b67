// What is on the page: tabs, the buttons of the steps, and the three tables that move.

import { settings } from "./api.js";
import { money, Run, STORY } from "./story.js";
import { Watch } from "./watch.js";

// Rows that are kept of each table.
const ROWS = 100;

const byId = (id) => document.getElementById(id);
const item = (step) => document.querySelector(`[data-step="${step}"]`);
const label = (step) => item(step).querySelector("button").textContent;
const short = (step) => item(step).dataset.short;
const watch = new Watch(show);
let requests = 0;

// --- Steps

for (const [step, play] of Object.entries(STORY)) {
  item(step).querySelector("button").addEventListener("click", () => start(step, play));
}
byId("order").addEventListener("submit", (event) => event.preventDefault());

async function start(step, play) {
  const amount = byId("amount");
  if (item(step).dataset.outcome === "running" || !amount.reportValidity()) return;
  const run = new Run(step, Math.round(100 * amount.valueAsNumber), watch, {
    tell: (text) => outcome(step, "running", text),
    note,
  });
  outcome(step, "running", "Running…");
  watch.busy += 1;
  watch.again();
  try {
    const { asPromised, text } = await play(run);
    show();
    outcome(step, asPromised ? "good" : "bad", text);
  } catch (error) {
    outcome(step, "bad", `NOT as promised: ${error}`);
    throw error;
  } finally {
    watch.busy -= 1;
    watch.again();
  }
}

function outcome(step, kind, text) {
  item(step).dataset.outcome = kind;
  item(step).querySelector("button").setAttribute("aria-disabled", String(kind === "running"));
  set(byId(`outcome-${step}`), text);
  set(byId("status"), `${label(step)}. ${text}`);
}

/** Show a request; the function it returns tells what came of it. */
function note(request) {
  requests += 1;
  set(byId("requests-count"), requests);
  const path = `POST ${request.path}`;
  const row = newRow("requests", [requests, [path, short(request.step)], request.answer, ""]);
  return ({ answer, took }) => {
    const [, , answered, milliseconds] = row.cells;
    set(answered, answer);
    set(milliseconds, Math.round(took));
  };
}

// --- What moves

function show() {
  for (const known of watch.keys.values()) showKey(known);
  showLedger();
  const charges = watch.entries.filter((it) => it.kind === "charge");
  set(byId("charges-count"), charges.length);
  set(byId("charged"), money(charges.reduce((sum, it) => sum + it.amount, 0), "EUR"));
  const balances = watch.balance.map((it) => money(it.amount, it.currency));
  if (balances.length) set(byId("balance"), balances.join(" · "));
}

const TONES = { processing: "run", succeeded: "good", failed: "bad", in_doubt: "doubt" };

function showKey(known) {
  const row = rowOf("keys", known.key, () => [story(known), "", "", "", ""]);
  const [, state, attempt, status, charges] = row.cells;
  set(state, known.state.replace("_", " ") || "–");
  state.dataset.tone = TONES[known.state] ?? "";
  set(attempt, known.attempt || "–");
  set(status, known.status ?? "–");
  set(charges, known.created ? watch.charges(known.created).length : "–");
}

/** A key's name, and the way to its story in the admin. */
function story({ key, step }) {
  const link = document.createElement("a");
  link.href = `${settings.admin}?${new URLSearchParams({ q: `${settings.account} ${key}` })}`;
  link.textContent = key;
  return [short(step), link];
}

function showLedger() {
  for (const entry of watch.entries) {
    const at = new Date(entry.created).toLocaleTimeString("en-GB");
    const row = rowOf("ledger", entry.id, () => [at, money(entry.amount, entry.currency), ""]);
    row.cells[1].className = "number";
    set(row.cells[2], purpose(entry));
    row.cells[2].dataset.tone = row.cells[2].textContent.startsWith("not") ? "doubt" : "";
  }
  set(byId("ledger-note"), watch.blind ? "The gateway does not answer." : NOTE);
}

const NOTE = byId("ledger-note").textContent;

/** Which step an entry is for. We know as soon as we have saved what the gateway did. */
function purpose(entry) {
  const whose = [...watch.keys.values()].find((it) => it.created === entry.reference);
  if (whose) return short(whose.step);
  return watch.running ? "not saved by us yet" : "not of this page";
}

// --- Rows and cells

/** The row of that id, made at the top of the table where it is new. */
function rowOf(table, id, cells) {
  const known = [...byId(table).rows].find((row) => row.dataset.id === id);
  if (known) return known;
  const row = newRow(table, cells());
  row.dataset.id = id;
  return row;
}

function newRow(table, cells) {
  const row = byId(table).insertRow(0);
  for (const content of cells) fill(row.insertCell(), content);
  if (byId(table).rows.length > ROWS) byId(table).deleteRow(-1);
  return row;
}

/** A text; or two of them, of which the second is of less weight. */
function fill(cell, content) {
  if (!Array.isArray(content)) return void set(cell, content);
  const second = document.createElement("span");
  second.className = "second";
  second.append(content[1]);
  cell.append(content[0], second);
}

/** Only what changed is written: a screen reader would read the rest again. */
function set(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

// --- Tabs

const tabs = [...document.querySelectorAll('[role="tab"]')];

function select(tab) {
  for (const it of tabs) {
    const selected = it === tab;
    it.setAttribute("aria-selected", String(selected));
    it.tabIndex = selected ? 0 : -1;
    byId(it.getAttribute("aria-controls")).hidden = !selected;
  }
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", ({ key }) => {
    const next = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1 }[key];
    if (next === undefined) return;
    const other = tabs.at(next % tabs.length);
    select(other);
    other.focus();
  });
});

select(tabs[0]);
watch.again();
