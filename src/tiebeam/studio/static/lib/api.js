// Requests to the studio's server; its error messages become exceptions.
import { visible } from "./visible.js";

export async function get(path) {
  return answer(await fetch(path, { headers: { accept: "application/json" } }));
}

export async function post(path, body) {
  return answer(await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));
}

async function answer(response) {
  const document = await response.json().catch(() => null);
  if (!response.ok) throw new Error(document?.error ? visible(document.error) : `the studio answered ${response.status}`);
  return document;
}

let known = null;
export const catalog = () => (known ??= get("catalog.json"));

// POST that returns server-sent events: calls on(name, data) for each event until the stream ends.
export async function postStream(path, body, on, signal) {
  await events(await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal }), on);
}

// Work of the server that takes long: progress({stage, done, total, seconds_left}) until the result is there, and
// partial(found) with what is known before.
export async function job(path, progress, { method = "GET", body = null, signal, partial = () => {} } = {}) {
  let result = null;
  const sent = body === null ? {} : { body: JSON.stringify(body) };
  const headers = { accept: "text/event-stream", ...(body === null ? {} : { "content-type": "application/json" }) };
  await events(await fetch(path, { method, headers, signal, ...sent }), (name, data) => {
    if (name === "progress") progress(data);
    if (name === "partial") partial(data);
    if (name === "error") throw new Error(visible(data.error));
    if (name === "result") result = data;
  });
  if (result === null) throw new Error("the studio ended the work without a result");
  return result;
}

async function events(response, on) {
  if (!response.ok) await answer(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part)?.[1];
      const data = /^data: (.*)$/m.exec(part)?.[1];
      if (name) on(name, JSON.parse(data ?? "null"));
    }
  }
}
