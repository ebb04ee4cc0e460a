// The prompt, and its answer as it streams. A model without a chat template continues the prompt as plain text.

import { duration, number, quantity } from "./figures.js";
import { events, Gone, Refusal } from "./server.js";

const element = (id) => document.getElementById(id);

export class Ask {
  constructor() {
    this.answering = null; // what aborts the answer that is under way
    this.chats = true;
    element("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    element("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      element("ask-form").requestSubmit();
    });
    element("stop").addEventListener("click", () => this.stop());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.answering) this.stop();
    });
  }

  stop() {
    this.answering?.abort();
    element("prompt").focus();
  }

  async send() {
    const prompt = element("prompt").value;
    if (this.answering) return;
    if (!prompt.trim()) {
      element("prompt").focus();
      return;
    }
    this.answering = new AbortController();
    this.busy(true);
    for (const id of ["answer", "answer-problem", "answer-facts"]) element(id).textContent = "";
    this.began = performance.now();
    this.first = this.usage = this.reason = null;
    try {
      await this.stream(prompt, this.answering.signal);
    } catch (error) {
      if (this.answering.signal.aborted) this.reason = "stopped";
      else if (error instanceof Gone && this.first !== null) this.fail("The connection broke before the answer's end.");
      else if (error instanceof Gone || error instanceof Refusal) this.fail(error.message);
      else throw error;
    } finally {
      this.facts();
      this.busy(false);
      this.answering = null;
    }
  }

  async stream(prompt, signal) {
    const settings = {
      temperature: Number(element("temperature").value),
      max_tokens: Number(element("limit").value),
      stream: true,
      stream_options: { include_usage: true },
    };
    if (this.chats) {
      try {
        await this.show(events("v1/chat/completions", { messages: [{ role: "user", content: prompt }], ...settings }, signal));
        return;
      } catch (error) {
        if (!(error instanceof Refusal) || !/no chat template/.test(error.message)) throw error;
        this.chats = false;
      }
    }
    await this.show(events("v1/completions", { prompt, ...settings }, signal));
  }

  async show(stream) {
    for await (const event of stream) {
      this.usage = event.usage ?? this.usage;
      for (const choice of event.choices) {
        const text = choice.delta?.content ?? choice.text ?? "";
        if (text) {
          this.first ??= performance.now();
          element("answer").append(text);
        }
        this.reason = choice.finish_reason ?? this.reason;
      }
    }
  }

  fail(text) {
    element("answer-problem").textContent = text;
  }

  busy(on) {
    element("answer").setAttribute("aria-busy", String(on)); // it is read out when it is complete
    element("send").hidden = on;
    element("stop").hidden = !on;
  }

  facts() {
    const now = performance.now();
    const told = [];
    if (this.usage) {
      const tokens = this.usage.completion_tokens;
      told.push(quantity(number(tokens), tokens === 1 ? "token" : "tokens"));
      if (tokens > 1 && now > this.first) told.push(quantity(number((1000 * (tokens - 1)) / (now - this.first)), "tokens/s"));
    }
    if (this.first !== null) told.push(`first text after ${duration((this.first - this.began) / 1000)}`);
    if (this.reason === "length") told.push("cut at the limit");
    if (this.reason === "stopped") told.push("stopped");
    if (told.length && !this.chats) told.push("continued as plain text: this model has no chat template");
    element("answer-facts").textContent = told.join(" · ");
  }
}
