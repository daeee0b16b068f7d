// One turn of a conversation: the question, and the answers of one or two models.

import { Component, html, useState } from "../vendor/preact-htm.js";
import { rate, seconds } from "../app/numbers.js";
import { Problem, Text } from "../parts/fields.js";
import { Tokens } from "../parts/tokens.js";

// json: whether the answer should be JSON. onResults(side, results): sends what tools returned; false where it is too
// late for that.
export class Turn extends Component {
  // A turn that is over stays as it is while the next one is written.
  shouldComponentUpdate({ turn, json, onResults }) {
    return turn !== this.props.turn || json !== this.props.json || Boolean(onResults || this.props.onResults);
  }

  render({ turn, json, onResults }) {
    return html`
      <article class="turn">
        <div class="question">
          ${turn.pictures.map(({ name, url }) => html`<img key=${url} src=${url} alt=${name} />`)}
          <p>${turn.text}</p>
        </div>
        <div class="answers ${turn.answers.length > 1 ? "two" : ""}">
          ${turn.answers.map((answer, side) => {
            const send = onResults && ((results) => onResults(side, results));
            return html`<${Answer} key=${side} answer=${answer} json=${json} onResults=${send} />`;
          })}
        </div>
      </article>
    `;
  }
}

function Answer({ answer, json, onResults }) {
  const last = answer.steps.at(-1);
  const waiting = answer.state === "done" && last?.calls?.length > 0;
  return html`
    <section class="answer ${answer.state}" aria-label="Answer of ${answer.model}">
      <h3>${answer.model}</h3>
      ${answer.steps.map((step, i) => html`<${Step} key=${i} step=${step} json=${json} />`)}
      ${answer.state === "running" && html`<span class="cursor" aria-label="is being written"></span>`}
      ${answer.state === "stopped" && html`<p class="hint">Stopped.</p>`}
      <${Problem} error=${answer.error} />
      ${waiting && onResults && html`<${Results} calls=${last.calls} onSend=${onResults} />`}
      ${answer.state === "done" && last && html`<${Numbers} message=${last} />`}
    </section>
  `;
}

const Step = ({ step, json }) =>
  step.role === "tool" ? html`<${Result} step=${step} />` : html`<${Message} step=${step} json=${json} />`;

const Result = ({ step }) =>
  html`<p class="result"><span>${step.name} returned</span> <code>${step.content}</code></p>`;

const Message = ({ step, json }) => html`
  ${step.reasoning && html`<details class="reasoning"><summary>Reasoning</summary><p>${step.reasoning}</p></details>`}
  ${step.content && html`<${Content} text=${step.content} json=${json && step.finish} />`}
  ${step.calls.map(
    (call, i) => html`<p key=${i} class="call"><span>calls ${call.name}</span> <code>${call.arguments}</code></p>`,
  )}
  ${step.tokens.length > 0 && step.finish && html`<${Tokens} tokens=${step.tokens} />`}
`;

function Content({ text, json }) {
  if (!json) return html`<p class="content">${text}</p>`;
  try {
    return html`<pre class="content">${JSON.stringify(JSON.parse(text), null, 2)}</pre>`;
  } catch {
    return html`<p class="content">${text}</p><p class="hint">This is not whole JSON.</p>`;
  }
}

function Results({ calls, onSend }) {
  const [results, setResults] = useState(() => calls.map(() => ""));
  const send = (event) => {
    event.preventDefault();
    onSend(results);
  };
  const set = (i, value) => setResults(results.map((one, j) => (i === j ? value : one)));
  return html`
    <form class="results" onSubmit=${send}>
      ${calls.map(
        (call, i) => html`
          <${Text}
            key=${i}
            label="What ${call.name} returns"
            class="code"
            placeholder=${'{"sky": "sunny", "temperature": 21}'}
            value=${results[i]}
            onChange=${(value) => set(i, value)}
            required
          />
        `,
      )}
      <button type="submit">Send ${calls.length > 1 ? "results" : "result"}</button>
    </form>
  `;
}

function Numbers({ message: { usage, times, finish } }) {
  if (!usage || !times) return null;
  const count = usage.completion_tokens;
  const parts = [
    `${usage.prompt_tokens} + ${count} tokens`,
    `first after ${seconds(times.first)}`,
    `${rate(count / times.total)} tokens/s`,
    finish && finish !== "stop" && `ended by ${finish}`,
  ];
  return html`<p class="numbers">${parts.filter(Boolean).join(" · ")}</p>`;
}
