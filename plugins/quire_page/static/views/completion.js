// The playground for completions: text that a model continues.

import { html } from "../vendor/preact-htm.js";
import { follow, withCompletionEvent } from "../app/answers.js";
import { addNumbers } from "../app/chat_body.js";
import { inFrames } from "../app/frames.js";
import { rate } from "../app/numbers.js";
import { postStream } from "../app/requests.js";
import { chatChoices, chosen } from "../app/server.js";
import { CopyButtons } from "../parts/copy.js";
import { Amount, Area, ModelChoice, Problem, Switch, Text, useFields } from "../parts/fields.js";
import { sendOnEnter, useRequest } from "../parts/running.js";
import { Tokens } from "../parts/tokens.js";

const PATH = "v1/completions";
const DEFAULTS = { model: "", prompt: "The capital of", maxTokens: "32", temperature: "0", stop: "", logprobs: false };

export function Completion({ server }) {
  const [fields, change] = useFields("completion", DEFAULTS);
  const [{ running, result, error }, run, stop] = useRequest();
  const choices = chatChoices(server);
  const model = chosen(choices, fields.model);
  const set = (name) => (value) => change({ [name]: value });

  const body = () => {
    const made = { model, prompt: fields.prompt };
    addNumbers(made, { max_tokens: fields.maxTokens, temperature: fields.temperature });
    if (fields.stop) made.stop = fields.stop;
    if (fields.logprobs) made.logprobs = 5;
    return { ...made, stream: true, stream_options: { include_usage: true } };
  };
  const send = (event) => {
    event.preventDefault();
    run(async (signal, show) => {
      const later = inFrames(show);
      try {
        return await follow(postStream(PATH, body(), signal), withCompletionEvent, later);
      } finally {
        later.cancel();
      }
    });
  };

  return html`
    <form class="page" onSubmit=${send} onKeyDown=${sendOnEnter}>
      <h1>Complete</h1>
      <div class="row">
        <${ModelChoice} label="Model" value=${model} onChange=${set("model")} choices=${choices} />
        <${Amount} label="Max tokens" min="1" step="1" value=${fields.maxTokens} onChange=${set("maxTokens")} />
        <${Amount}
          label="Temperature"
          min="0"
          max="2"
          step="0.1"
          value=${fields.temperature}
          onChange=${set("temperature")}
        />
        <${Text} label="Stop at" placeholder="a text" value=${fields.stop} onChange=${set("stop")} />
      </div>
      <${Area} label="Prompt" rows=${5} value=${fields.prompt} onChange=${set("prompt")} />
      <${Switch} label="Log-probabilities of tokens" value=${fields.logprobs} onChange=${set("logprobs")} />
      <div class="actions">
        ${
          running
            ? html`<button type="button" key="stop" class="primary" onClick=${stop}>Stop</button>`
            : html`<button type="submit" key="send" class="primary" disabled=${!model}>Complete</button>`
        }
        <${CopyButtons} path=${PATH} body=${body} />
      </div>
      <${Problem} error=${error} />
      ${
        result &&
        html`
        <section class="card" aria-label="Completion" aria-busy=${running}>
          <p class="content"><span class="given">${fields.prompt}</span>${result.content}</p>
          ${result.times && result.tokens.length > 0 && html`<${Tokens} tokens=${result.tokens} />`}
          ${result.usage && html`<p class="numbers">${numbersOf(result)}</p>`}
        </section>
      `
      }
    </form>
  `;
}

function numbersOf({ usage, times, finish }) {
  const count = usage.completion_tokens;
  const speed = times ? ` · ${rate(count / times.total)} tokens/s` : "";
  return `${usage.prompt_tokens} + ${count} tokens${speed} · ended by ${finish}`;
}
