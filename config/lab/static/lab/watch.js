// What is known of keys, of the gateway's ledger and of the balance, looked up again and again.

import { get, settings } from "./api.js";

// Milliseconds between two looks: while something is open, and while nothing is.
const BUSY = 400;
const IDLE = 2000;
// Of the keys whose state may still change, the newest are looked up each time.
const FOLLOWED = 6;

export class Watch {
  /** `changed` is called after each look. */
  constructor(changed) {
    this.keys = new Map();
    this.entries = [];
    this.balance = [];
    this.silent = 0;
    this.busy = 0;
    this.changed = changed;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.again());
  }

  /** Show a key from now on. */
  follow(key, step) {
    this.keys.set(key, { key, step, state: "", attempt: 0, status: null, created: "" });
  }

  /** Look at everything once, then from time to time. */
  async again() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    await this.look();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.again(), this.running ? BUSY : IDLE);
  }

  async look() {
    const open = this.open().slice(-FOLLOWED);
    await Promise.all([this.lookAtLedger(), this.lookAtBalance(), ...open.map((it) => this.lookAt(it.key))]);
    this.changed();
  }

  open() {
    return [...this.keys.values()].filter((it) => it.state !== "succeeded");
  }

  /** Whether something is under way: a step, or what a step left behind. */
  get running() {
    return this.busy > 0 || this.open().some((it) => it.state === "processing");
  }

  async lookAt(key) {
    const known = this.keys.get(key);
    const found = (await get(settings.keys.replace("KEY", key)))?.data[0];
    if (found) {
      const { state, attempt, status_code: status, resource } = found;
      Object.assign(known, { state, attempt, status });
      // The answer that was saved says what came of the key: /v1/charges/ch_….
      known.created ||= resource?.split("/").at(-1) ?? "";
    }
    return known;
  }

  /** Add what is new in the ledger. False where it cannot be read. */
  lookAtLedger() {
    // One after the other: two at once would add the same entries twice.
    this.reading = (this.reading ?? Promise.resolve()).then(() => this.readLedger());
    return this.reading;
  }

  async readLedger() {
    const last = this.entries.at(-1);
    const from = last ? { after: last.id } : { since: settings.began };
    const found = await get(`${settings.ledger}?${new URLSearchParams(from)}`);
    this.silent = found ? 0 : this.silent + 1;
    this.entries.push(...(found?.entries ?? []));
    return found !== null;
  }

  async lookAtBalance() {
    const found = await get(settings.balance);
    if (found) this.balance = found.data;
  }

  /** Whether the ledger cannot be read. One look that fails may be a worker that was killed. */
  get blind() {
    return this.silent > 2;
  }

  /** The entries of the ledger for one of our charges, by its id. */
  charges(id) {
    return this.entries.filter((it) => it.kind === "charge" && it.reference === id);
  }
}
