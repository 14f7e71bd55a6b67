// The merchant's side of the API: one function to pay with, one to look with.

export const settings = JSON.parse(document.getElementById("settings").textContent);

const AUTHORIZATION = { Authorization: `Bearer ${settings.apiKey}` };
// Milliseconds. The server gives a request up before.
const PATIENCE = 60_000;

/**
 * POST a body under a key. Never rejects: where no answer comes, its `status` is 0.
 *
 * `fault` asks the demo to break the request. Such a one leaves on a connection of its own, which
 * "omit" is for: on a kept connection that ends without a byte, browsers send a request again by
 * themselves, and this page would never hear that the answer was lost.
 */
export async function post(path, key, body, fault) {
  const headers = { ...AUTHORIZATION, "Content-Type": "application/json", "Idempotency-Key": key };
  if (fault) headers["X-Demo-Fault"] = fault;
  const began = performance.now();
  let answer = { status: 0, body: null, words: "no answer", repeat: 0 };
  try {
    const response = await fetch(path, {
      method: "POST",
      headers,
      body: JSON.stringify(body),
      credentials: fault ? "omit" : "same-origin",
      signal: AbortSignal.timeout(PATIENCE),
    });
    answer = await read(response);
  } catch {
    // A lost connection, or an answer that broke off: the caller cannot know what happened.
  }
  return { ...answer, took: performance.now() - began };
}

/** GET as JSON; null where that fails, so that whoever looks again and again just does. */
export async function get(path) {
  try {
    const response = await fetch(path, { headers: AUTHORIZATION, signal: AbortSignal.timeout(5000) });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

async function read(response) {
  const type = response.headers.get("Content-Type") ?? "";
  // The page of a server error is no JSON. Reading fails where an answer breaks off.
  const text = await response.text();
  const body = type.includes("json") ? JSON.parse(text) : {};
  const replayed = response.headers.get("Idempotent-Replayed") === "true";
  const words = [response.status, body.code, replayed && "replayed"].filter(Boolean).join(" ");
  // Seconds after which the same request may be sent again; 0 where this answer is the last word.
  const again = body.retry === "same_key" && !replayed;
  const repeat = again ? Number(response.headers.get("Retry-After")) || 1 : 0;
  return { status: response.status, body, words, repeat };
}
