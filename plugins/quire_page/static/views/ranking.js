// The playground for ranking: documents, sorted by how well they answer a question.

import { html } from "../vendor/preact-htm.js";
import { linesOf } from "../app/chat_body.js";
import { postJson } from "../app/requests.js";
import { choicesFor, chosen } from "../app/server.js";
import { CopyButtons } from "../parts/copy.js";
import { Area, ModelChoice, Problem, Text, useFields } from "../parts/fields.js";
import { sendOnEnter, useRequest } from "../parts/running.js";

const PATH = "rerank";
const DEFAULTS = {
  model: "",
  query: "From which city is Arvia governed?",
  documents: "The river of Arvia is the Sorn.\nThe capital of Arvia is Belcast.\nPeople in Dorun keep goats.",
};

export function Ranking({ server }) {
  const [fields, change] = useFields("ranking", DEFAULTS);
  const [{ running, result, error }, run] = useRequest();
  // Models that read both texts at once come first: they rank better than vectors do.
  const choices = choicesFor(server, ["classify", "embed", "token_embed"]).sort((a, b) => rankOf(a) - rankOf(b));
  const model = chosen(choices, fields.model);
  const set = (name) => (value) => change({ [name]: value });
  const body = () => ({ model, query: fields.query, documents: linesOf(fields.documents) });
  const send = (event) => {
    event.preventDefault();
    run(async (signal) => (await postJson(PATH, body(), signal)).results);
  };
  return html`
    <form class="page" onSubmit=${send} onKeyDown=${sendOnEnter}>
      <h1>Rank</h1>
      <${ModelChoice} label="Model" value=${model} onChange=${set("model")} choices=${choices} />
      <${Text} label="Question" value=${fields.query} onChange=${set("query")} />
      <${Area} label="Documents, one a line" rows=${6} value=${fields.documents} onChange=${set("documents")} />
      <div class="actions">
        <button type="submit" class="primary" disabled=${running || !model}>Rank</button>
        <${CopyButtons} path=${PATH} body=${body} />
      </div>
      <${Problem} error=${error} />
      ${result && html`<${Results} results=${result} />`}
    </form>
  `;
}

const rankOf = ({ model }) => (model.tasks.includes("classify") ? 0 : model.tasks.includes("generate") ? 2 : 1);

function Results({ results }) {
  const scores = results.map(({ relevance_score: score }) => score);
  const [low, high] = [Math.min(0, ...scores), Math.max(...scores)];
  const width = (score) => `${(100 * (score - low)) / (high - low || 1)}%`;
  return html`
    <section class="card" aria-label="Ranking">
      <table>
        <caption>
          The best document first
        </caption>
        <thead>
          <tr>
            <th scope="col">Document</th>
            <th scope="col" class="wide">Share of the best score</th>
            <th scope="col" class="number">Score</th>
          </tr>
        </thead>
        <tbody>
          ${results.map(
            ({ index, relevance_score: score, document }) => html`
              <tr key=${index}>
                <th scope="row">${document.text}</th>
                <td class="wide"><span class="bar" style=${{ width: width(score) }}></span></td>
                <td class="number">${score.toFixed(4)}</td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </section>
  `;
}
