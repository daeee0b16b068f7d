// Models and adapters: what is served, and loading and unloading of both.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { bytes, short } from "../app/numbers.js";
import { postText } from "../app/requests.js";
import { chatChoices } from "../app/server.js";
import { Problem } from "../parts/fields.js";
import { Leaving, useUnloads } from "./leaving.js";
import { LoadForm } from "./load_form.js";
import { LoadModelForm } from "./load_model.js";

const POLL_MS = 400;
const PASSING = ["loading", "draining", "retired"];

export function Models({ server, active, onUse }) {
  const [error, setError] = useState(null);
  const [modelError, setModelError] = useState(null);
  const [leaving, unloadModel] = useUnloads(server.refresh, setModelError);
  const chats = chatChoices(server).flatMap(({ model }) => model.aliases);
  const useOf = (name) => chats.includes(name) && onUse;
  const busy = [...server.adapters, ...server.states].some(({ state }) => PASSING.includes(state));
  const states = Object.fromEntries(server.states.map((row) => [row.id, row]));
  const others = server.states.filter(({ id }) => !server.models.some((model) => model.id === id));

  useEffect(() => {
    if (active) server.refresh();
  }, [active]);
  useEffect(() => {
    if (!active || !busy) return;
    const timer = setInterval(server.refresh, POLL_MS);
    return () => clearInterval(timer);
  }, [active, busy]);

  const unload = async (name) => {
    try {
      setError(null);
      await postText("v1/unload_lora_adapter", { lora_name: name });
    } catch (problem) {
      setError(problem);
    }
    await server.refresh();
  };

  return html`
    <div class="page">
      <h1>Models and adapters</h1>
      <div class="scroll" tabindex="0" role="region" aria-label="Models">
        <table>
          <thead>
            <tr>
              <th scope="col">Model</th>
              <th scope="col">State</th>
              <th scope="col" class="number">Parameters</th>
              <th scope="col">Weights</th>
              <th scope="col" class="number">Context</th>
              <th scope="col" class="number">KV cache</th>
              <th scope="col">Tasks</th>
              <th scope="col"><span class="off-screen">Actions</span></th>
            </tr>
          </thead>
          <tbody>
            ${server.models.map(
              (model) =>
                html`
                  <${Model}
                    key=${model.id}
                    model=${model}
                    state=${states[model.id]}
                    onUse=${useOf(model.id)}
                    onUnload=${unloadModel}
                  />
                `,
            )}
            ${others.map((row) => html`<${Other} key=${row.id} row=${row} onUnload=${unloadModel} />`)}
            ${
              server.loaded &&
              !server.models.length &&
              !others.length &&
              html`<tr><td colspan="8">No model is served.</td></tr>`
            }
          </tbody>
        </table>
      </div>
      <${Leaving} names=${leaving} onForce=${(name) => unloadModel(name, true)} />
      <${Problem} error=${modelError} />
      <${LoadModelForm} refresh=${server.refresh} />
      <h2>Adapters</h2>
      <${Problem} error=${error} />
      <div class="scroll" tabindex="0" role="region" aria-label="Adapters">
        <table>
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Model</th>
              <th scope="col">State</th>
              <th scope="col">Weights in</th>
              <th scope="col">Kind</th>
              <th scope="col" class="number">Rank</th>
              <th scope="col" class="number">Size</th>
              <th scope="col" class="number">Requests</th>
              <th scope="col"><span class="off-screen">Actions</span></th>
            </tr>
          </thead>
          <tbody>
            ${server.adapters.map(
              (row) => html`<${Adapter} key=${row.id} row=${row} onUse=${useOf(row.parent)} onUnload=${unload} />`,
            )}
            ${!server.adapters.length && html`<tr><td colspan="9">No adapter is loaded.</td></tr>`}
          </tbody>
        </table>
      </div>
      <${LoadForm} models=${server.models} refresh=${server.refresh} />
    </div>
  `;
}

const State = ({ row }) =>
  row &&
  html`
    <span class="state ${row.state}">${row.state}</span>
    ${
      row.state === "loading" &&
      html`<progress aria-label="${row.id} is being loaded" max="1" value=${row.progress ?? 0}></progress>`
    }
    ${row.error && html`<p class="problem">${row.error}</p>`}
  `;

// A model that takes no requests now, or waits for the first.
const Other = ({ row, onUnload }) => html`
  <tr>
    <th scope="row">${row.id}</th>
    <td colspan="6"><${State} row=${row} /></td>
    <td class="buttons">
      ${
        row.state !== "draining" &&
        html`<button type="button" aria-label="Unload ${row.id}" onClick=${() => onUnload(row.id)}>Unload</button>`
      }
    </td>
  </tr>
`;

const Model = ({ model, state, onUse, onUnload }) => html`
  <tr>
    <th scope="row">${model.id}<br /><span class="hint">${model.architecture}</span></th>
    <td><${State} row=${state} /></td>
    <td class="number">${short(model.num_parameters)}</td>
    <td>${model.dtype} on ${model.device}</td>
    <td class="number">${model.max_model_len} tokens</td>
    <td
      class="number"
    >
      ${model.tasks.includes("generate") ? `${short(model.num_pages * model.page_size)} tokens` : "–"}
    </td>
    <td>${[...model.tasks, ...model.modalities.map((kind) => `reads ${kind}`)].join(", ").replaceAll("_", " ")}</td>
    <td class="buttons">
      ${
        onUse &&
        html`
        <button type="button" aria-label="Chat with ${model.id}" onClick=${() => onUse(model.id)}>Chat</button>
      `
      }
      <button type="button" aria-label="Unload ${model.id}" onClick=${() => onUnload(model.id)}>Unload</button>
    </td>
  </tr>
`;

const TIERS = { device: "a slot of the device", host: "CPU memory", disk: "files" };

const Adapter = ({ row, onUse, onUnload }) => html`
  <tr>
    <th scope="row">${row.id}${row.pinned ? " (pinned)" : ""}</th>
    <td>${row.parent}</td>
    <td>
      ${
        row.state === "loading"
          ? html`<progress aria-label="${row.id} is being loaded"></progress>`
          : html`<span class="state ${row.state}">${row.state}</span>`
      }
      ${row.error && html`<p class="problem">${row.error}</p>`}
    </td>
    <td>${TIERS[row.tier] ?? "–"}</td>
    <td>${row.kind || "–"}</td>
    <td class="number">${row.rank || "–"}</td>
    <td class="number">${bytes(row.bytes)}</td>
    <td class="number">${row.requests ? `${row.requests} of ` : ""}${row.requests_total}</td>
    <td class="buttons">
      ${
        onUse &&
        row.state === "ready" &&
        html`
        <button type="button" aria-label="Chat with ${row.id}" onClick=${() => onUse(row.id)}>Chat</button>
      `
      }
      ${
        row.state !== "retired" &&
        html`
        <button type="button" aria-label="Unload ${row.id}" onClick=${() => onUnload(row.id)}>Unload</button>
      `
      }
    </td>
  </tr>
`;
