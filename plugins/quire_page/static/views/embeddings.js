// The playground for embeddings: vectors of texts, and how similar the texts are.

import { html } from "../vendor/preact-htm.js";
import { addNumbers, linesOf } from "../app/chat_body.js";
import { postJson } from "../app/requests.js";
import { choicesFor, chosen, modelOf } from "../app/server.js";
import { CopyButtons } from "../parts/copy.js";
import { Amount, Area, ModelChoice, Problem, useFields } from "../parts/fields.js";
import { sendOnEnter, useRequest } from "../parts/running.js";

const PATH = "v1/embeddings";
const SHOWN = 6;
const DEFAULTS = {
  model: "",
  texts: "Which animal stands for Arvia?\nThe national animal of Arvia is the heron.\nPeople in Dorun keep goats.",
  dimensions: "",
};

export function Embeddings({ server }) {
  const [fields, change] = useFields("embeddings", DEFAULTS);
  const [{ running, result, error }, run] = useRequest();
  const choices = choicesFor(server, ["embed"]).sort(
    (a, b) => a.model.tasks.includes("generate") - b.model.tasks.includes("generate"),
  );
  const model = chosen(choices, fields.model);
  const set = (name) => (value) => change({ [name]: value });
  const body = () => {
    const made = { model, input: linesOf(fields.texts), encoding_format: "float" };
    addNumbers(made, { dimensions: fields.dimensions });
    return made;
  };
  const send = (event) => {
    event.preventDefault();
    run(async (signal) => {
      const asked = body();
      const { data, usage } = await postJson(PATH, asked, signal);
      return { texts: asked.input, vectors: data.map(({ embedding }) => embedding), usage };
    });
  };
  return html`
    <form class="page" onSubmit=${send} onKeyDown=${sendOnEnter}>
      <h1>Embed</h1>
      <div class="row">
        <${ModelChoice} label="Model" value=${model} onChange=${set("model")} choices=${choices} />
        <${Amount}
          label="Dimensions"
          min="1"
          step="1"
          placeholder=${modelOf(server, model)?.embedding_size ?? "all"}
          value=${fields.dimensions}
          onChange=${set("dimensions")}
        />
      </div>
      <${Area} label="Texts, one a line" rows=${5} value=${fields.texts} onChange=${set("texts")} />
      <div class="actions">
        <button type="submit" class="primary" disabled=${running || !model}>Embed</button>
        <${CopyButtons} path=${PATH} body=${body} />
      </div>
      <${Problem} error=${error} />
      ${result && html`<${Similarities} ...${result} />`}
    </form>
  `;
}

const Similarities = ({ texts, vectors, usage }) => html`
  <section class="card" aria-label="Embeddings">
    <div class="scroll" tabindex="0" role="region" aria-label="Similarities">
      <table class="heat">
        <caption>
          Cosine similarities; ${vectors[0].length} dimensions, ${usage.prompt_tokens} tokens
        </caption>
        <thead>
          <tr>
            <th scope="col">Text</th>
            ${texts.map((_, i) => html`<th scope="col" key=${i}>${i + 1}</th>`)}
            <th scope="col">Vector</th>
          </tr>
        </thead>
        <tbody>
          ${vectors.map(
            (vector, i) => html`
              <tr key=${i}>
                <th scope="row">${i + 1}. ${texts[i]}</th>
                ${vectors.map((other, j) => html`<${Cell} key=${j} value=${cosine(vector, other)} />`)}
                <td><code>${vector
                  .slice(0, SHOWN)
                  .map((x) => x.toFixed(3))
                  .join(", ")} …</code></td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  </section>
`;

const Cell = ({ value }) => html`
  <td
    class="number"
  >
    <span class="heat-mark" style=${{ opacity: Math.max(0, value) * 0.45 }}></span><span>${value.toFixed(3)}</span>
  </td>
`;

export function cosine(a, b) {
  let product = 0;
  let left = 0;
  let right = 0;
  a.forEach((x, i) => {
    product += x * b[i];
    left += x * x;
    right += b[i] * b[i];
  });
  return product / Math.sqrt(left * right || 1);
}
