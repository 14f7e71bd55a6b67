// The steps. Each does what a client does, and says whether all was as promised.

import { post, settings } from "./api.js";

const CLICKS = 20;
// A charge that 409 "in use" answers is asked for again this often.
const REPEATS = 5;
// Milliseconds: a lease of 30 s, a run of the job every 10 s, and some more.
const RECOVERY = 120_000;

/** One run of one step. `tell` shows what it is at; `note` hears of each request. */
export class Run {
  constructor(step, amount, watch, { tell, note }) {
    Object.assign(this, { step, amount, watch, tell, note });
  }

  newKey() {
    const random = Array.from(crypto.getRandomValues(new Uint32Array(2)), (it) => it.toString(36));
    const key = `lab-${this.step}-${random.join("").slice(0, 10)}`;
    this.watch.follow(key, this.step);
    return key;
  }

  charge(key, changes = {}, fault = "") {
    const order = { amount: this.amount, currency: "EUR", source: "tok_visa", ...changes };
    return this.send(settings.charges, key, order, fault);
  }

  transfer(key) {
    // Nothing else in the lab moves dollars: the balance tells what this did.
    const order = { to: settings.recipient, amount: this.amount, currency: "USD" };
    return this.send(settings.transfers, key, order);
  }

  async send(path, key, order, fault) {
    for (let repeats = 0; ; repeats += 1) {
      const noted = this.note({ step: this.step, path, answer: "…", took: null });
      const answer = await post(path, key, order, fault);
      noted({ answer: answer.words, took: answer.took });
      // What a decline came to is the charge it names.
      this.watch.keys.get(key).created ||= answer.body?.id ?? answer.body?.charge ?? "";
      if (!answer.repeat || repeats === REPEATS) return answer;
      await seconds(answer.repeat);
    }
  }

  /** Compare what came with what was promised, and count what the gateway has charged. */
  async verdict(key, { got, promised, charges }) {
    const known = await this.watch.lookAt(key);
    if (!(await this.watch.lookAtLedger())) {
      return conclude(false, `${got}; the gateway's ledger cannot be read.`);
    }
    const found = this.watch.charges(known.created);
    return conclude(got === promised && found.length === charges, `${got}; ${inWords(found)}.`);
  }
}

export const STORY = { pay, double, lost, amount, decline, kill, transfer };

async function pay(run) {
  const key = run.newKey();
  const { words: got } = await run.charge(key);
  return run.verdict(key, { got, promised: "201", charges: 1 });
}

async function double(run) {
  const key = run.newKey();
  const answers = await Promise.all(Array.from({ length: CLICKS }, () => run.charge(key)));
  const got = counted(answers.map((it) => it.words));
  return run.verdict(key, { got, promised: `1 x 201, ${CLICKS - 1} x 201 replayed`, charges: 1 });
}

async function lost(run) {
  const key = run.newKey();
  const first = await run.charge(key, {}, "drop");
  run.tell("No answer. Sending the same request again…");
  const second = await run.charge(key);
  const got = `${first.words}, ${second.words}`;
  return run.verdict(key, { got, promised: "no answer, 201 replayed", charges: 1 });
}

async function amount(run) {
  const key = run.newKey();
  const first = await run.charge(key);
  const second = await run.charge(key, { amount: 10 * run.amount });
  const got = `${first.words}, ${second.words}`;
  return run.verdict(key, { got, promised: "201, 422 idempotency_key_reused", charges: 1 });
}

async function decline(run) {
  const key = run.newKey();
  const answers = [];
  for (let tries = 0; tries < 2; tries += 1) {
    answers.push((await run.charge(key, { source: "tok_declined" })).words);
  }
  const promised = "402 card_declined, 402 card_declined replayed";
  return run.verdict(key, { got: answers.join(", "), promised, charges: 0 });
}

async function kill(run) {
  const key = run.newKey();
  const { words: first, status } = await run.charge(key, {}, "kill@called");
  if (status) return conclude(false, `${first}, and nothing was killed.`);
  const began = performance.now();
  const waited = () => Math.round((performance.now() - began) / 1000);
  run.tell("No answer. The gateway has charged and nobody has saved it; the client stays away…");
  while ((await run.watch.lookAt(key)).state !== "succeeded") {
    if (performance.now() - began > RECOVERY) {
      return conclude(false, `not recovered after ${waited()} s. Does the Celery worker run?`);
    }
    await seconds(0.3);
  }
  const recovered = waited();
  const { words: second } = await run.charge(key);
  const verdict = await run.verdict(key, {
    got: `${first}, ${second}`,
    promised: "no answer, 201 replayed",
    charges: 1,
  });
  return { ...verdict, text: `${verdict.text} Recovered after ${recovered} s.` };
}

async function transfer(run) {
  const key = run.newKey();
  await run.watch.lookAtBalance();
  const before = dollars(run.watch);
  const answers = [await run.transfer(key), await run.transfer(key)];
  await run.watch.lookAt(key);
  await run.watch.lookAtBalance();
  const got = answers.map((it) => it.words).join(", ");
  const spent = before - dollars(run.watch);
  const once = spent === run.amount && answers[0].body?.id === answers[1].body?.id;
  return conclude(got === "201, 201 replayed" && once, `${got}; ${money(spent, "USD")} left the balance.`);
}

function conclude(asPromised, text) {
  return { asPromised, text: `${asPromised ? "As promised" : "NOT as promised"}: ${text}` };
}

function dollars(watch) {
  return watch.balance.find((it) => it.currency === "USD")?.amount ?? 0;
}

function counted(words) {
  const count = (word) => words.filter((it) => it === word).length;
  return [...new Set(words)].sort().map((word) => `${count(word)} x ${word}`).join(", ");
}

function inWords(entries) {
  if (!entries.length) return "no charge";
  const sum = money(entries.reduce((total, it) => total + it.amount, 0), "EUR");
  return entries.length === 1 ? `one charge of ${sum}` : `${entries.length} charges, ${sum}`;
}

/** An amount in minor units of a currency with two decimals. */
export function money(amount, currency) {
  const format = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  return `${(amount / 100).toLocaleString("en", format)} ${currency}`;
}

function seconds(count) {
  return new Promise((done) => setTimeout(done, 1000 * count));
}
