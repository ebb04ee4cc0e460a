// The server as the page sees it: every request brings the key, and whatever goes wrong has a text for the user.

const KEY = "stepahead-api-key"; // in this tab's storage: gone when the tab is

export class Refusal extends Error {
  // The server has answered, but not with what was asked for.
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Gone extends Error {
  // Nobody has answered.
  constructor() {
    super("The server does not answer.");
  }
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

// Return the answer's Response. Raises Refusal or Gone; an abort by the caller's signal raises what fetch does.
export async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, cache: "no-store", body: body && JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted && signal.reason?.name === "AbortError") throw error;
    throw new Gone();
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

// Return the JSON that is answered within some seconds.
export async function json(path, options = {}) {
  const answer = await request(path, { ...options, signal: AbortSignal.timeout(8000) });
  try {
    return await answer.json();
  } catch {
    throw new Gone();
  }
}

// Yield the events of a stream as objects. A stream that breaks off raises Gone, an error in it Refusal.
export async function* events(path, body, signal) {
  const answer = await request(path, { method: "POST", body, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Gone();
    }
    if (piece.done) throw new Gone();
    const parts = (rest + piece.value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(500, event.error.message);
      yield event;
    }
  }
}

async function refusal(answer) {
  try {
    const told = await answer.json();
    return new Refusal(answer.status, told.error?.message ?? told.reason);
  } catch {
    return new Refusal(answer.status, `The server answers with status ${answer.status}.`); // a proxy's own page
  }
}
